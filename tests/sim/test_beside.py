"""What would become of the live jobs under several policies: figures worked out by hand on tiny states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBuffer
from headway.core.policy import PolicyFault, mark_of
from headway.core.round import Brains
from headway.core.state import State
from headway.metrics.reward import reward
from headway.policies.registry import make_policy
from headway.policies.taught import Taught
from headway.sim.beside import Compared, Contender, Fate, bytes_across, compare
from headway.sim.guess import Guess, Known, guess, known_of
from headway.testing.builders import job, state

US = 1_000_000
H = 3600
KEEP = make_policy("fifo-backfill")


def contender(spec: str, role: str = "shadow", policy: Any = None) -> Contender:
    return Contender(spec, role, Brains(policy or make_policy(spec), KEEP, KEEP))


def certain(made: State) -> tuple[Guess, Known]:
    """Every job has left what its owner said."""
    known = known_of(made, None)
    told = guess(made, known, int(made.C[c.C_NOW]))
    rows = [made.row(number) for number in told.jobs.tolist()]
    left = made.J[c.J_ESTIMATE, rows] / US
    return replace(told, median_s=left, log_sd=np.zeros(len(left)), pools={}), known


def compared(made: State, *specs: str | Contender, horizon_s: float = 6 * H, **more: Any) -> tuple[Fate, ...]:
    found = whole(made, *specs, horizon_s=horizon_s, **more)
    return found.fates


def whole(made: State, *specs: str | Contender, horizon_s: float = 6 * H, **more: Any) -> Compared:
    told, known = certain(made)
    contenders = [spec if isinstance(spec, Contender) else contender(spec) for spec in specs]
    now_us = int(made.C[c.C_NOW])
    found = compare(made, contenders, told, known, now_us=now_us, horizon_us=round(horizon_s * US), draws=1, **more)
    assert found is not None
    return found


def test_two_orders_of_two_jobs_by_hand() -> None:
    """One GPU; a job of 100 s came before one of 20 s, both now. FIFO: they end at 100 and 120; SRTF: at 120 and 20."""
    made = state([1], [job("long", work_s=100), job("short", work_s=20, deadline_s=60)])
    fifo, srtf = compared(made, "fifo", "srtf")
    assert (fifo.completed, fifo.avg_jct_s, fifo.avg_wait_s, fifo.deadlines, fifo.deadlines_kept) == (2, 110, 50, 1, 0)
    assert (srtf.completed, srtf.avg_jct_s, srtf.avg_wait_s, srtf.deadlines, srtf.deadlines_kept) == (2, 70, 10, 1, 1)
    assert (fifo.unfinished, srtf.preemptions, fifo.moved_bytes) == (0, 0, None)
    # Goals: T0 / (T0 + mean JCT); the one deadline; nobody sends, requires or tells anything.
    assert fifo.goals == pytest.approx((3600 / 3710, 0, 0, 0, 0)) and srtf.goals == pytest.approx((3600 / 3670, 1, 0, 0, 0))
    assert fifo.reward == pytest.approx(0.5 * 3600 / 3710) and srtf.reward == pytest.approx(0.5 * 3600 / 3670 + 0.55)
    assert fifo.reward == pytest.approx(float(reward(fifo.goals)))


def test_what_has_not_ended_counts_with_what_it_has_left() -> None:
    """A horizon of 50 s: under FIFO the long one has 50 s left (ends at 100), the short one all its 20 (70)."""
    made = state([1], [job("long", work_s=100), job("short", work_s=20, deadline_s=60)])
    fifo, srtf = compared(made, "fifo", "srtf", horizon_s=50)
    assert (fifo.completed, fifo.unfinished, fifo.avg_jct_s, fifo.avg_wait_s, fifo.deadlines_kept) == (0, 2, 85, 25, 0)
    # Under SRTF the short one ends at 20; the long one has run for 30 s of 100, and ends at 50 + 70.
    assert (srtf.completed, srtf.unfinished, srtf.avg_jct_s, srtf.avg_wait_s) == (1, 1, 70, 10)


def test_preemptions_are_counted_and_work_is_kept() -> None:
    """The long job has run for 10 s when the short one is there: SRTF stops it (saving takes 5 s)."""
    made = state([1], [job("long", work_s=100, save_s=5), job("short", work_s=20, submit_s=10)],
                 running={"long": [(0, [0])]}, at_s=10)  # fmt: skip
    (srtf,) = compared(made, "srtf")
    # From 10 on: saved at 15, short ends at 35, long works 35 … 135 (what is left: all 100, by the guess).
    assert (srtf.preemptions, srtf.completed) == (1, 2)
    assert srtf.avg_jct_s == pytest.approx(((135 - 0) + (35 - 10)) / 2) and srtf.avg_wait_s == pytest.approx((25 + 5) / 2)


def test_a_job_that_is_held_is_left_out() -> None:
    made = state([1], [job("a", work_s=100), job("b", work_s=20)])
    out = EventBuffer()
    out.add(0, EventKind.HOLD_SET, 1, a=1)
    made.apply(out.take())
    found = whole(made, "fifo")
    assert found.jobs == 1 and found.fates[0].completed == 1 and found.fates[0].avg_jct_s == 100


def test_the_state_stays_as_it_is_and_the_same_call_says_the_same() -> None:
    made = state([2, 2], [job(f"j{i}", gpus=1 + i % 2, work_s=50 + 13 * i % 40) for i in range(8)])
    before = made.digest()
    known = known_of(made, None)
    told = guess(made, known, 0)
    both = [compare(made, [contender("fifo"), contender("srtf")], told, known, now_us=0, horizon_us=H * US, seed=s)
            for s in (3, 3, 4)]  # fmt: skip
    assert made.digest() == before and both[0] == both[1] != both[2]
    assert both[0] is not None and both[0].draws == 4


def test_a_policy_beside_itself_has_the_same_fate() -> None:
    made = state([2, 2], [job(f"j{i}", gpus=1 + i % 2, work_s=50 + 13 * i % 40) for i in range(8)])
    one, other = compared(made, contender("mlf-h", "policy"), "mlf-h")
    assert replace(one, role="shadow") == other


def test_neither_the_guard_nor_past_refusals_keep_a_policy_from_deciding() -> None:
    made = state([1], [job("long", work_s=100), job("short", work_s=20)])
    policy = Taught(make_policy("srtf"), make_policy("fifo"))
    out = EventBuffer()
    out.add(0, EventKind.GUARDED, mark_of(policy), a=1)
    for _ in range(3):
        out.add(0, EventKind.REFUSED, 0, a=97)
    made.apply(out.take())
    told, known = certain(made)
    taught = Contender("taught", "policy", Brains(policy, KEEP, KEEP), policy.start())
    found = compare(made, [taught, contender("srtf"), contender("fifo")], told, known, now_us=0, horizon_us=H * US, draws=1)
    assert found is not None
    mine, srtf, fifo = found.fates
    assert mine.avg_jct_s == srtf.avg_jct_s == 70 and fifo.avg_jct_s == 110


def test_rounds_in_which_a_plan_did_not_hold_are_told() -> None:
    class GivesUp:
        name = "gives-up"
        teacher = make_policy("fifo")

        def decide(self, view: Any, memo: Any) -> Any:
            raise PolicyFault("no")

    made = state([1], [job("long", work_s=100), job("short", work_s=20)])
    mine, fifo = compared(made, contender("gives-up", policy=GivesUp()), "fifo")
    # Rounds are held at 0, and at 100 s when the first one ends.
    assert mine.refused == 2 and fifo.refused == 0 and mine.avg_jct_s == fifo.avg_jct_s


def test_when_the_time_is_over_only_whole_draws_count() -> None:
    made = state([1], [job(f"j{i}", work_s=10 + i) for i in range(30)])
    known = known_of(made, None)
    told = guess(made, known, 0)

    def run(asks: int) -> Compared | None:
        left = iter(range(asks))
        return compare(
            made, [contender("fifo"), contender("srtf")], told, known, now_us=0, horizon_us=H * US,
            go_on=lambda: next(left, None) is not None,
        )  # fmt: skip

    assert run(3) is None
    found = [one.draws for asks in (20, 30, 40, 50) if (one := run(asks)) is not None]
    assert found == sorted(found) and 1 <= found[0] < found[-1] <= 4


def test_by_what_the_rest_is_known() -> None:
    made = state([1], [job("a", work_s=100, units=100), job("b", work_s=20), job("c", estimate_s=None)])
    made.J[c.J_ESTIMATE, 2] = c.NEVER
    known = known_of(made, None)
    known = replace(known, rate=np.array([1.0, np.nan, np.nan]))
    told = guess(made, known, 0)
    found = compare(made, [contender("fifo")], told, known, now_us=0, horizon_us=H * US, draws=1)
    assert found is not None and dict(found.estimates) == {"progress": 1, "others": 0, "announced": 1, "nothing": 1}


# -- bytes between nodes --------------------------------------------------------------------------------------------
def spec(**columns: int) -> Any:
    found = np.zeros(c.JOB_COLUMNS, np.int64)
    found[[c.J_DATA, c.J_PIPELINE, c.J_TENSOR]] = 1
    for name, value in columns.items():
        found[getattr(c, f"J_{name}")] = value
    return found


def test_a_ring_sends_an_edge_between_neighbours_on_different_nodes() -> None:
    ring = spec(SYNC=c.Sync.ALL_REDUCE, EDGE_BYTES=10)
    assert bytes_across(ring, np.array([0, 0, 1, 1]), 4, 0) == 20
    assert bytes_across(ring, np.array([0, 1, 0, 1]), 4, 0) == 40
    assert bytes_across(ring, np.array([3, 3, 3, 3]), 4, 0) == 0


def test_a_chain_and_servers() -> None:
    chain = spec(PIPELINE=3, CUT=c.Cut.CHAIN, EDGE_BYTES=10)
    assert bytes_across(chain, np.array([0, 1, 1]), 1, 0) == 10
    served = spec(SYNC=c.Sync.PARAMETER_SERVER, SYNC_BYTES=100)
    assert bytes_across(served, np.array([0, 1, 0]), 2, 1) == 100, "the worker beside the server sends nothing over the network"
    assert bytes_across(served, np.array([0, 1]), 3, 1) == 0, "a shape that the tasks are not of"


def test_bytes_follow_the_work() -> None:
    """A gang over two nodes has 50 of 100 units left, and sends 2 × 10 bytes a unit."""
    made = state([1, 1], [job("gang", gpus=2, work_s=100, units=100)], running={"gang": [(0, [0]), (1, [0])]}, at_s=0)
    made.J[[c.J_SYNC, c.J_EDGE_BYTES, c.J_UNITS_DONE], 0] = (c.Sync.ALL_REDUCE, 10, 50)
    (fate,) = compared(made, "fifo")
    assert fate.moved_bytes == pytest.approx(50 * 10)
    half = compared(made, "fifo", horizon_s=50)[0]
    assert half.moved_bytes == pytest.approx(250), "half of the work by then"
    assert fate.goals[2] == pytest.approx(1.0)


def test_accuracy_by_the_deadline_and_what_is_required() -> None:
    """Without a curve a job is as good as it says that it is now."""
    made = state([1], [job("a", work_s=100, units=100, deadline_s=500), job("b", work_s=20)])
    made.J[c.J_ACCURACY] = [800_000, c.NOTHING, *[0] * (made.J.shape[1] - 2)]
    made.J[c.J_ACC_REQUIRED, :2] = (700_000, 900_000)
    (fate,) = compared(made, "fifo")
    assert fate.goals[1:] == pytest.approx((1, 0, 1, 0.8)), "of b nothing is known"
