"""What operators do with a running controller, inside it: reload the settings, drain nodes and give them back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.columns import Name
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.events import EventBatch, EventBuffer
from headway.core.policy import Memo, asks, remembers
from headway.core.round import Brains
from headway.perf.histories import Histories
from headway.policies.registry import Chosen
from headway.runtime.controller import Controller
from headway.runtime.drains import OPERATOR, QUARANTINE
from headway.runtime.home import Home
from headway.runtime.journal import Journal
from headway.runtime.rules import settings_events
from headway.runtime.settings import (
    POLICY,
    RESTART,
    ClusterSettings,
    Settings,
    choose_policy,
    parse_round_us,
    parse_shadows,
    read_settings,
)
from headway.runtime.warm import warm_up

log = logging.getLogger(__name__)

REASON_LENGTH_MAX = 200
READS_MAX = 3
"""Segments may move into an archive between a look at the archives and one at the segments; they are looked for again."""


class NoSuchNodeError(UserError):
    """Nobody knows a node of this name."""


# -- settings -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Where the settings come from: the file, and the options of the command line, which stand above it (None: not given).

    `file`: one that was named, and so has to be there; None: the one in the home, if there is one.
    """

    home: Home
    file: Path | None = None
    options: ClusterSettings = field(default_factory=ClusterSettings)
    policy: str | None = None
    shadows: tuple[str, ...] = ()

    def load(self) -> Settings:
        """What is to be in force. `UserError` with file, line and key for a mistake."""
        path = self.file or self.home.settings_file
        settings = read_settings(path) if self.file is not None or path.exists() else Settings()
        given = {key: value for key, value in _cluster_values(self.options).items() if value is not None}
        policy = self.policy if self.policy is not None else settings.policy or POLICY
        shadow = replace(settings.shadow, policies=_shadows(self.shadows)) if self.shadows else settings.shadow
        return replace(settings, cluster=replace(settings.cluster, **given), policy=choose_policy(policy).spec, shadow=shadow)


def _shadows(given: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return parse_shadows(list(given))
    except ValueError as error:
        raise UserError(str(error), key="shadow") from None


def _cluster_values(cluster: ClusterSettings) -> dict[str, Any]:
    return {key: getattr(cluster, key) for key in ("nodes", "slots", "journal", "lease", "host", "port", "round")}


def flat(settings: Settings) -> dict[str, Any]:
    """Each setting by its dotted key; the journal's address too."""
    found: dict[str, Any] = {}

    def walk(value: Any, key: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(inner, f"{key}.{name}" if key else str(name))
        elif value != {} or "." in key:
            found[key] = value

    walk(settings.to_json(), "")
    if settings.cluster.journal is not None:
        found["cluster.journal"] = settings.cluster.journal
    return found


def differences(before: Settings, after: Settings) -> list[str]:
    """The keys that differ."""
    old, new = flat(before), flat(after)
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key))


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has done: the keys that are in force now, and those that wait for a restart."""

    file: str
    changed: tuple[str, ...]
    restart: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "changed": list(self.changed), "restart": list(self.restart)}


class Reloader:
    """Brings a running controller to what its file says now. One reload at a time; a file with a mistake changes nothing.

    `brains`: of a policy, with those who decide when its plan is refused; `adopted` is called when another policy decides.
    """

    def __init__(
        self, controller: Controller, given: Given, settings: Settings, brains: Callable[[Chosen], Brains],
        adopted: Callable[[Chosen], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.controller, self.given, self.settings = controller, given, settings
        self._brains, self._adopted = brains, adopted
        self._lock = asyncio.Lock()

    async def reload(self) -> Reloaded:
        """Read the file again.

        Raises:
            UserError: the file has a mistake; the old settings stay in force.
        """
        async with self._lock:
            before, after = self.settings, self.given.load()
            keys = differences(before, after)
            restart = tuple(key for key in keys if key in RESTART)
            changed = tuple(key for key in keys if key not in RESTART)
            for key in restart:
                log.warning("%s is another now: it takes effect at the next start", key)
            after = replace(after, engine=before.engine, cluster=replace(before.cluster, round=after.cluster.round))
            if changed:
                await self._apply(before, after)
                log.warning("settings reloaded: %s", ", ".join(changed))
            return Reloaded(after.file, changed, restart)

    async def on_signal(self) -> None:
        """Reload; a mistake is told in the log."""
        try:
            done = await self.reload()
            if not done.changed and not done.restart:
                log.warning("settings reloaded: nothing has changed")
        except UserError as error:
            log.warning("settings not reloaded, the old ones stay in force: %s", error)

    async def _apply(self, before: Settings, after: Settings) -> None:
        controller = self.controller
        chosen = choose_policy(after.policy) if after.policy != before.policy else None
        past = None
        if chosen is not None:
            await asyncio.to_thread(warm_up, chosen.policy)
            past = Past(chosen, controller.journal)
            await asyncio.to_thread(past.follow)

        def make(now: int) -> EventBatch:
            if chosen is not None and past is not None:
                past.follow()
                controller.adopt(self._brains(chosen), past.memo, past.histories)
            put_in_force(controller, after)
            return settings_events(controller.state, controller.names, after, now)

        try:
            await controller.change(make)
        finally:
            if past is not None:
                past.close()
        self.settings = after
        if chosen is not None:
            await self._adopted(chosen)


def put_in_force(controller: Controller, settings: Settings) -> None:
    """Tell the controller's parts what they have to go by; the tables learn it by `settings_events`."""
    controller.intake.obey(settings)
    if settings.cluster.round is not None:
        controller.pace = replace(controller.pace, interval_us=parse_round_us(settings.cluster.round))
        controller.rounds.pace = controller.pace


class Past:
    """What a policy would remember, had it decided from the journal's beginning; nothing, where it does not remember."""

    def __init__(self, chosen: Chosen, journal: Journal, *, histories: bool = True) -> None:
        """`histories`: what a policy's requests are answered from, too."""
        policy = chosen.policy
        self._fold = policy.fold if remembers(policy) else None
        self.memo: Memo = policy.start() if remembers(policy) else None
        self.histories = Histories() if histories and asks(policy) else None
        self._wanted = self._fold is not None or self.histories is not None
        self._of = journal
        self._journal: Journal | None = None

    def follow(self) -> None:
        """Go on to the journal's end."""
        if not self._wanted:
            return
        if self._journal is None:
            self._journal = Journal(self._of.where, writes=False)
        reader = self._journal
        for _ in range(READS_MAX):
            for batch in reader.read(reader.segments, reader.events):
                if self._fold is not None:
                    self.memo = self._fold(self.memo, batch)
                if self.histories is not None:
                    self.histories.update(batch)
            if reader.damage is None:
                return
        raise UserError(f"the policy can't be told the past: {reader.damage}")

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()


# -- nodes ----------------------------------------------------------------------------------------------------------
async def drain(controller: Controller, node: str, why: str = "") -> None:
    """Give a node no more jobs; what runs there runs on. Again and again without harm; the newest reason counts."""
    number = _number(controller, node)
    if len(why) > REASON_LENGTH_MAX or not why.isprintable():
        raise UserError(f"expected one line of at most {REASON_LENGTH_MAX} characters, got {shown(why)}", key="reason")

    def make(now: int) -> EventBatch:
        out = EventBuffer(4, 4)
        controller.drains.hold(controller.state, number, OPERATOR, now, out, why)
        return out.take()

    await controller.change(make)


async def undrain(controller: Controller, node: str) -> None:
    """Give a drained node jobs again. It also ends a quarantine: the operator is believed. A sick node stays sick."""
    number = _number(controller, node)

    def make(now: int) -> EventBatch:
        out = EventBuffer(4, 4)
        controller.drains.lift(controller.state, number, OPERATOR | QUARANTINE, now, out)
        return out.take()

    await controller.change(make)


def _number(controller: Controller, node: str) -> int:
    names = {controller.state.name(Name.NODE, number): number for number in controller.intake.here}
    if node not in names:
        raise NoSuchNodeError(f"there is no node {shown(node)}{did_you_mean(node, names) or ' (see: headway nodes)'}")
    return names[node]
