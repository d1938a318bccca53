"""Nodes that come and go: one that was lost too often takes no jobs until it has been quiet for a while.

Folded from the journal, so a new controller goes on with it. The node is drained (what runs there runs on), with the reason
`node-lost`; an operator who undrains it is believed, and its losses are forgotten.
"""

from __future__ import annotations

from typing import Any

from headway.core import columns as c
from headway.core.columns import NEVER, EventKind, NodePhase, Reason
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State

LOSSES_MAX = 3
"""A node that was lost so often within `WINDOW_US` is not trusted any more."""
WINDOW_US = 3600 * 1_000_000
QUIET_US = 1800 * 1_000_000
"""It is trusted again when it has not been lost for so long."""


class Quarantine:
    """The losses of each node, by its number, and who is in quarantine."""

    def __init__(self) -> None:
        self._losses: dict[int, list[int]] = {}
        self._down: set[int] = set()
        self.held: set[int] = set()

    def fold(self, batch: EventBatch) -> None:
        """Take in a batch that has been journalled."""
        kinds = batch.records[:, c.E_KIND]
        if not ((kinds >= EventKind.NODE_UP) & (kinds <= EventKind.NODE_DRAINING)).any():
            return
        for record in batch.records[(kinds >= EventKind.NODE_UP) & (kinds <= EventKind.NODE_DRAINING)].tolist():
            node, t = record[c.E_ID], record[c.E_T]
            if record[c.E_KIND] == EventKind.NODE_DOWN:
                if node not in self._down:
                    self._losses.setdefault(node, []).append(t)
                self._down.add(node)
            elif record[c.E_KIND] == EventKind.NODE_DRAINING:
                self._down.discard(node)
                if record[c.E_A] == Reason.NODE_LOST:
                    self.held.add(node)
            elif node in self._down:
                self._down.discard(node)
            else:
                self.held.discard(node)
                self._losses.pop(node, None)

    def plain(self) -> list[Any]:
        """All of it as lists, for a snapshot."""
        return [[[node, losses] for node, losses in self._losses.items()], sorted(self._down), sorted(self.held)]

    def restore(self, found: list[Any]) -> None:
        """Become what was `plain`."""
        losses, down, held = found
        self._losses = {node: list(times) for node, times in losses}
        self._down, self.held = set(down), set(held)

    def events(self, state: State, now: int) -> EventBatch:
        """What is due: nodes that are not trusted any more, and those that are again."""
        out = EventBuffer(8, 8)
        for node, losses in self._losses.items():
            losses[:] = [t for t in losses if t > now - WINDOW_US]
            phase = state.N[c.N_PHASE, node]
            if node in self.held and phase == NodePhase.DRAINING and self._until_us(node) <= now:
                out.add(now, EventKind.NODE_UP, node)
            elif len(losses) >= LOSSES_MAX and phase == NodePhase.UP and self._until_us(node) > now:
                out.add(now, EventKind.NODE_DRAINING, node, a=Reason.NODE_LOST)
        return out.take()

    def next_us(self) -> int:
        """When the next node may be trusted again (µs), or NEVER."""
        return min((self._until_us(node) for node in self.held - self._down), default=NEVER)

    def _until_us(self, node: int) -> int:
        losses = self._losses.get(node)
        return losses[-1] + QUIET_US if losses else 0
