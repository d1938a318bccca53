"""Shadow mode, and the guard's hourly look: forks of the live state under other policies, beside a running controller.

Copies are taken in the controller's loop (about a millisecond a hundred jobs), the forks are made in a thread, and what they say
is journalled: `SHADOWED`, and `GUARDED` where the policy in force has a teacher. Neither makes a round due. A comparison that is
late (the one before still runs) or too long for its budget is left out, and the journal says so; with no live jobs there is
nothing to compare, and nothing is said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum

import numpy as np

from headway.app.operate import Past
from headway.app.why_live import Copied, copied
from headway.core.columns import EventKind
from headway.core.errors import UserError, one_line
from headway.core.events import EMPTY, EventBatch
from headway.core.policy import Memo, Policy, teacher_memo, teacher_of
from headway.core.round import Brains, InCharge, in_charge
from headway.core.units import US_PER_S
from headway.policies.registry import Chosen
from headway.runtime.controller import Controller
from headway.runtime.guard import guarded_event, judge
from headway.runtime.settings import choose_policy
from headway.runtime.shadows import Shadows
from headway.runtime.warm import warm_up
from headway.sim.beside import Compared, Contender, compare

log = logging.getLogger(__name__)

SWITCH_S = 0.0005
"""While forks are made, a thread that wants to go on waits for at most so long. By default it is ten times that, and every step
of the controller's loop would come so much later."""


class Skip(IntEnum):
    """Why there is no comparison, as `SHADOWED` says it."""

    NO = 0
    RUNS = 1
    BUDGET = 2
    FAILED = 3


class Comparer:
    """The comparisons of one controller. `choose` makes a policy of a shadow's spec."""

    def __init__(
        self, controller: Controller, clock: Callable[[], float] = time.monotonic,
        choose: Callable[[str], Chosen] = choose_policy,
    ) -> None:  # fmt: skip
        self.controller, self._clock, self._choose = controller, clock, choose
        self._shadows: dict[str, tuple[Chosen, Past]] = {}
        self._busy = False

    @property
    def settings(self) -> Shadows:
        """As they are now: a reload may have changed them."""
        return self.controller.intake.settings.shadow

    async def look(self) -> None:
        """Compare once, and journal what comes of it."""
        controller, wanted = self.controller, self.settings
        policy = controller.brains.policy
        if not (wanted.policies or teacher_of(policy)) or not len(controller.state.live_rows()):
            return
        if self._busy:
            await self._tell(Skip.RUNS, "the comparison before still runs", wanted, policy)
            return
        self._busy = True
        try:
            await self._compare(wanted, policy)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a comparison is never worth the controller
            log.warning("policies could not be compared: %s: %s", type(error).__name__, error)
            await self._tell(Skip.FAILED, one_line(f"{type(error).__name__}: {error}"), wanted, policy)
        finally:
            self._busy = False

    async def _compare(self, wanted: Shadows, policy: Policy) -> None:
        controller = self.controller
        await asyncio.to_thread(self._prepare, wanted)
        memos: dict[str, Memo] = {}
        for spec in wanted.policies:
            past = self._shadows[spec][1]
            past.follow()
            memos[spec] = past.memo
        taken = copied(controller)
        if controller.brains.policy is not policy or not len(taken.known.jobs):
            return
        contenders = self._contenders(taken, memos)
        begin = self._clock()

        def go_on() -> bool:
            return not controller.stopping and self._clock() - begin <= wanted.budget_s

        def work() -> Compared | None:
            return compare(
                taken.state, contenders, taken.guess(), taken.known, now_us=taken.now_us, seed=taken.seed % 2**32,
                horizon_us=round(wanted.horizon_s * US_PER_S), capabilities=controller.rounds.capabilities, go_on=go_on,
            )  # fmt: skip

        with _switching(SWITCH_S):
            found = await asyncio.to_thread(work)
        if found is None:
            jobs = len(taken.known.jobs)
            why = f"{len(contenders)} policies and {jobs} jobs: not one simulation of each within {wanted.budget_s:g} s"
            await self._tell(Skip.BUDGET, why, wanted, policy)
            return
        in_force = in_charge(taken.state, taken.brains, taken.now_us)
        await self._tell(Skip.NO, _text(found, in_force, taken, contenders), wanted, policy, found)

    def _prepare(self, wanted: Shadows) -> None:
        """Have each shadow ready: compiled, and with a memo of the journal's past. In a thread."""
        for spec in [spec for spec in self._shadows if spec not in wanted.policies]:
            self._shadows.pop(spec)[1].close()
        for spec in wanted.policies:
            if spec not in self._shadows:
                chosen = self._choose(spec)
                warm_up(chosen.policy)
                self._shadows[spec] = chosen, Past(chosen, self.controller.journal, histories=False)
            self._shadows[spec][1].follow()

    def _contenders(self, taken: Copied, memos: dict[str, Memo]) -> list[Contender]:
        brains, policy = taken.brains, taken.brains.policy
        spec = self.controller.intake.settings.policy or policy.name
        found = [Contender(spec, "policy", brains, taken.memo)]
        if (teacher := teacher_of(policy)) is not None:
            own = Brains(teacher, brains.keep, brains.fallback)
            found.append(Contender(teacher.name, "teacher", own, teacher_memo(policy, taken.memo)))
        for shadow, memo in memos.items():
            chosen = self._shadows[shadow][0].policy
            found.append(Contender(shadow, "shadow", Brains(chosen, brains.keep, brains.fallback), memo))
        return found

    async def _tell(
        self, skip: Skip, text: str, wanted: Shadows, policy: Policy, found: Compared | None = None
    ) -> None:  # fmt: skip
        """Journal a comparison, or why there is none. A round is due at once where somebody else decides from now on."""
        controller = self.controller
        guarded = found is not None and controller.brains.policy is policy and teacher_of(policy) is not None
        mine, teachers = (found.fates[0].reward, found.fates[1].reward) if found is not None and guarded else (0.0, 0.0)
        judged = judge(controller.state, policy, mine, teachers) if guarded else None
        before = in_charge(controller.state, controller.brains, controller.now_us()) is InCharge.TEACHER
        switches = judged is not None and judged.teacher != before
        if judged is not None and switches:
            log.warning("%s", judged.why)

        def make(now: int) -> EventBatch:
            draws = found.draws if found is not None else 0
            horizon = round(wanted.horizon_s * US_PER_S)
            record = np.array([[now, EventKind.SHADOWED, 0, 0, skip, horizon, draws, 0]], np.int64)
            told = EventBatch(record, EMPTY.pool, {0: text})
            return told if judged is None else told + guarded_event(policy, judged, mine, teachers, now)

        with suppress(UserError):  # the controller stops
            await controller.change(make, quiet=not switches)

    def close(self) -> None:
        for _, past in self._shadows.values():
            past.close()


@contextmanager
def _switching(interval_s: float) -> Iterator[None]:
    """Threads give way to each other after so long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(interval_s, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _text(found: Compared, who: InCharge, taken: Copied, contenders: list[Contender]) -> str:
    in_force = contenders[1].spec if who is InCharge.TEACHER else contenders[0].spec
    if who is InCharge.FALLBACK:
        in_force = taken.brains.fallback.name
    told = {"at_s": found.now_us / US_PER_S, "in_force": in_force, **found.to_json()}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


async def keep_compared(controller: Controller, comparer: Comparer | None = None) -> None:
    """Compare after each interval of the settings, until it is cancelled."""
    comparer = comparer or Comparer(controller)
    looks: set[asyncio.Task[None]] = set()
    try:
        while not controller.stopping:
            await asyncio.sleep(comparer.settings.every_s)
            look = asyncio.create_task(comparer.look(), name="headway-compares-once")
            looks.add(look)
            look.add_done_callback(looks.discard)
    finally:
        for look in looks:
            look.cancel()
        comparer.close()
