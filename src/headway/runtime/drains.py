"""Why a node takes no jobs: an operator has drained it, it is sick, or it was in trouble too often (quarantine).

Each is a *hold* of its own, and none undoes another; what runs on a held node runs on. Folded from the journal, so that a new
controller goes on with them, also over the node's loss and return. An event about a node (up, draining, down) says in `b`
which holds are in force after it, in `c` which ones it is about, and in its text why.

Quarantine has hysteresis: trouble that came `troubles_max` times within a window begins it, and only a long quiet ends it. An
operator who undrains the node is believed: its troubles are forgotten.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headway.core import columns as c
from headway.core.columns import NEVER, EventKind, NodePhase, Reason
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State

OPERATOR, SICK, QUARANTINE = 1, 2, 4
HOLDS = {OPERATOR: "drained", SICK: "sick", QUARANTINE: "quarantine"}
"""The holds as people see them."""
US = 1_000_000
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Trust:
    """When a node is not trusted any more, and when again: after so many troubles (losses, sicknesses) within a window, until it
    has been quiet for a while."""

    troubles_max: int = 3
    window_us: int = 3600 * US
    quiet_us: int = 1800 * US


class Drains:
    """The holds of each node, by its number, and its troubles."""

    def __init__(self, trust: Trust | None = None) -> None:
        self.trust = trust or Trust()
        self._holds: dict[int, int] = {}
        self._why: dict[int, dict[int, str]] = {}
        self._down: set[int] = set()
        self._troubles: dict[int, list[int]] = {}

    # -- what is ------------------------------------------------------------------------------------------------------
    def holds(self, node: int) -> int:
        """The holds in force, as bits."""
        return self._holds.get(node, 0)

    def reasons(self, node: int) -> list[str]:
        """The holds in force for people, each with its why, if that is known."""
        why = self._why.get(node, {})
        mask = self.holds(node)
        return [word + (f": {why[bit]}" if why.get(bit) else "") for bit, word in HOLDS.items() if mask & bit]

    # -- the fold -----------------------------------------------------------------------------------------------------
    def fold(self, batch: EventBatch) -> None:
        """Take in a batch that has been journalled."""
        kinds = batch.records[:, c.E_KIND]
        of_nodes = (kinds >= EventKind.NODE_ADDED) & (kinds <= EventKind.NODE_DRAINING)
        if of_nodes.any():
            for index in of_nodes.nonzero()[0].tolist():
                self._take(batch.records[index].tolist(), batch.texts.get(index, ""))

    def _take(self, record: list[int], text: str) -> None:
        node, t, kind, about = record[c.E_ID], record[c.E_T], record[c.E_KIND], record[c.E_C]
        before, mask = self.holds(node), record[c.E_B]
        if kind == EventKind.NODE_ADDED:
            self._down.discard(node)
            return
        if kind == EventKind.NODE_DOWN:
            if node not in self._down:
                self._trouble(node, t)
            self._down.add(node)
            if not about:
                return
        else:
            self._down.discard(node)
        if kind == EventKind.NODE_DRAINING and not mask:
            # A journal from before holds were told apart, or an event made by hand.
            mask = before | (QUARANTINE if record[c.E_A] == Reason.NODE_LOST else OPERATOR)
        self._set(node, before, mask, t)
        if mask & about and text:
            self._why.setdefault(node, {})[about & mask] = text
        if about & QUARANTINE and not mask & QUARANTINE:
            self._troubles.pop(node, None)

    def _set(self, node: int, before: int, mask: int, t: int) -> None:
        if mask & SICK and not before & SICK:
            self._trouble(node, t)
        if before & QUARANTINE and not mask & QUARANTINE:
            self._troubles.pop(node, None)
        for bit in HOLDS:
            if not mask & bit and node in self._why:
                self._why[node].pop(bit, None)
        if mask:
            self._holds[node] = mask
        else:
            self._holds.pop(node, None)
            self._why.pop(node, None)

    def _trouble(self, node: int, t: int) -> None:
        self._troubles.setdefault(node, []).append(t)

    def plain(self) -> list[Any]:
        """All of it as lists and dicts, for a snapshot."""
        return [dict(self._holds), {n: dict(w) for n, w in self._why.items()}, sorted(self._down), dict(self._troubles)]

    def restore(self, found: list[Any]) -> None:
        """Become what was `plain`."""
        self._holds, self._why, down, troubles = found
        self._down = set(down)
        self._troubles = {node: list(times) for node, times in troubles.items()}

    # -- events -------------------------------------------------------------------------------------------------------
    def hold(self, state: State, node: int, bit: int, now: int, out: EventBuffer, why: str = "") -> None:
        """Append that a hold is in force, unless it is already, for the same reason (numbers in it aside)."""
        known = self._why.get(node, {}).get(bit, "")
        if self.holds(node) & bit and NUMBER.sub("", known) == NUMBER.sub("", why):
            return
        self._say(state, node, self.holds(node) | bit, bit, now, out, why)

    def lift(self, state: State, node: int, bits: int, now: int, out: EventBuffer) -> None:
        """Append that these holds are over, if one of them is in force."""
        if self.holds(node) & bits:
            self._say(state, node, self.holds(node) & ~bits, bits, now, out)

    def back(self, node: int, now: int, out: EventBuffer) -> None:
        """Append that a node which was down is back: up, or still held."""
        mask = self.holds(node)
        out.add(now, EventKind.NODE_DRAINING if mask else EventKind.NODE_UP, node, b=mask)

    def _say(self, state: State, node: int, mask: int, about: int, now: int, out: EventBuffer, why: str = "") -> None:
        if state.N[c.N_PHASE, node] == NodePhase.DOWN:
            kind = EventKind.NODE_DOWN
        else:
            kind = EventKind.NODE_DRAINING if mask else EventKind.NODE_UP
        reason = Reason.NODE_LOST if mask & about & QUARANTINE else Reason.NONE
        out.add(now, kind, node, a=reason, b=mask, c=about, text=why or None)

    def events(self, state: State, now: int) -> EventBatch:
        """What is due: nodes that are not trusted any more, and those that are again."""
        out = EventBuffer(8, 8)
        for node, troubles in self._troubles.items():
            recent = [t for t in troubles if t > now - max(self.trust.window_us, self.trust.quiet_us)]
            troubles[:] = recent
            if node in self._down or state.N[c.N_PHASE, node] == NodePhase.DOWN:
                continue
            often = sum(t > now - self.trust.window_us for t in recent) >= self.trust.troubles_max
            if self.holds(node) & QUARANTINE:
                if self._until_us(node) <= now:
                    self.lift(state, node, QUARANTINE, now, out)
            elif often and self._until_us(node) > now:
                why = f"in trouble {len(recent)} times within {self.trust.window_us // (60 * US)} min"
                self.hold(state, node, QUARANTINE, now, out, why)
        for node, mask in self._holds.items():
            if mask & QUARANTINE and node not in self._troubles and node not in self._down:
                self.lift(state, node, QUARANTINE, now, out)
        return out.take()

    def next_us(self) -> int:
        """When the next node may be trusted again (µs), or NEVER."""
        held = [node for node, mask in self._holds.items() if mask & QUARANTINE and node not in self._down]
        return min(map(self._until_us, held), default=NEVER)

    def _until_us(self, node: int) -> int:
        troubles = self._troubles.get(node)
        return troubles[-1] + self.trust.quiet_us if troubles else 0
