"""Scenarios with faults: nothing is lost, doubled or over-committed, whatever is late, repeated, reordered, lost or broken."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State
from headway.policies.registry import REGISTRY, make_policy
from headway.sim.faults import Faults
from headway.sim.run import Simulation, StuckError, simulate
from headway.sim.world import World, WorldError
from headway.testing import fuzz
from headway.testing.builders import cluster, job, state, workload
from headway.testing.invariants import verify
from headway.testing.scenarios import POLICIES, run_scenario, run_seeds, scenario, verify_journal
from headway.testing.views import random_case

CHUNK, CHUNKS = 40, 13
KEPT = Path(__file__).with_name("seeds.txt")


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_seeds(chunk: int) -> None:
    """520 seeds, each policy in its turn."""
    ended = run_seeds(range(CHUNK * chunk, CHUNK * chunk + CHUNK))
    assert ended["completed"] > CHUNK


def kept_seeds() -> list[tuple[int, str]]:
    """Seed and policy of every line, without its remark."""
    lines = [line.partition("#")[0].split() for line in KEPT.read_text("utf-8").splitlines()]
    return [(int(words[0]), words[1] if len(words) > 1 else "") for words in lines if words]


def test_seeds_that_failed_once() -> None:
    for seed, policy in kept_seeds():
        run_scenario(scenario(seed, policy))


def test_every_policy_and_every_fault_has_its_turn() -> None:
    assert {spec.partition(":")[0] for spec in POLICIES} == set(REGISTRY)
    cases = [scenario(seed) for seed in range(CHUNK * CHUNKS)]
    for name in ("node_losses", "fail_frac", "start_s_max", "late_frac", "repeat_frac", "lost_frac", "cancel_frac"):
        assert sum(getattr(case.faults, name) > 0 for case in cases) > 100, name
    specs = np.concatenate([case.workload.spec for case in cases], axis=1)
    for column in (c.J_SAVE, c.J_RESTORE, c.J_EVERY, c.J_SHARE, c.J_SERVERS, c.J_CPU_TASK, c.J_MEM_TASK, c.J_UNITS_TOTAL,
                   c.J_SERVER_CPU, c.J_SERVER_MEM):  # fmt: skip
        assert np.count_nonzero(specs[column]) > 50, c.SPEC_COLUMN_NAMES[column]
    assert len(np.unique(specs[c.J_PRIORITY])) > 2
    assert np.count_nonzero(specs[c.J_KIND_MASK] != -1) > 50
    assert np.count_nonzero(specs[c.J_GPU_TASK] == 0) > 50


def test_the_same_seed_is_the_same_scenario() -> None:
    """Also under another policy: only the policy differs."""
    one, other = scenario(17, "srtf"), scenario(17, "srtf")
    assert (one.workload.sha256, one.cluster, one.faults, str(one)) == (
        other.workload.sha256,
        other.cluster,
        other.faults,
        str(other),
    )
    assert scenario(17, "las").workload.sha256 == one.workload.sha256


# -- the checks see what they are for ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("N", column)
        for column in (
            c.N_FREE, c.N_FREE_MASK, c.N_HELD_MASK, c.N_CPU, c.N_MEM, c.N_NET, c.N_HELD_CPU, c.N_HELD_MEM, c.N_USE_CPU,
            c.N_USE_MEM, c.N_USE_NET,
        )
    ]
    + [("G", column) for column in (c.G_NODE, c.G_BOOKED, c.G_TASKS, c.G_HELD, c.G_HELD_TASKS, c.G_USED)]
    + [("Q", column) for column in (c.Q_BOOKED, c.Q_WAITING)]
    + [("T", column) for column in (c.T_JOB, c.T_NODE, c.T_MASK, c.T_BOOK, c.T_HELD_NODE, c.T_HELD_MASK, c.T_HELD_BOOK)]
    + [
        ("J", column)
        for column in (c.J_PLACED, c.J_PHASE, c.J_HELD_TASKS, c.J_HELD_MILLI, c.J_MUST_STOP, c.J_TASKS, c.J_WORKERS,
        c.J_GPUS, c.J_GPU_MILLI)
    ],
    ids=lambda value: str(value),
)  # fmt: skip
def test_verify_sees_a_wrong_number(table: str, column: int) -> None:
    """One too many in the first row, whose job runs with two tasks."""
    good = state([4], [job("a", 2), job("b", 1)], running={"a": [(0, [0]), (0, [1])]})
    verify(good)
    getattr(good, table)[column, 0] += 1
    with pytest.raises(AssertionError):
        verify(good)


@pytest.mark.parametrize(
    "counter",
    [c.C_DEAD, c.C_QUEUED, c.C_WAITING, c.C_PLACED_WAITING, c.C_RUNNING, c.C_MUST_STOP, c.C_FIRST_WAITING, c.C_WAITING_CPU,
    c.C_GPUS_UP,
     c.C_FINISHED, c.C_REJECTED, c.C_DEAD_TASKS, c.C_DEAD_EDGES],
)  # fmt: skip
def test_verify_sees_a_wrong_counter(counter: int) -> None:
    good = state([4], [job("a", 2), job("b", 1)], running={"a": [(0, [0]), (0, [1])]})
    good.C[counter] += 1
    with pytest.raises(AssertionError):
        verify(good)


def test_verify_sees_wrong_buckets_and_numbers() -> None:
    for table, at in (("B", (4, 0)), ("B", (4, 1)), ("R", (0,)), ("R", (5,))):
        good = state([4], [job("a", 2), job("b", 1)])
        getattr(good, table)[at] += 1
        with pytest.raises(AssertionError):
            verify(good)


def test_random_views_verify() -> None:
    for seed in range(150):
        verify(random_case(seed).state())


def starts(attempts: list[tuple[int, int, int]]) -> EventBatch:
    """START_REQUESTED of (job, attempt, mask) on node 0."""
    out = EventBuffer()
    for number, attempt, mask in attempts:
        out.add(0, EventKind.START_REQUESTED, number, attempt, b=1, payload=(0, mask, c.WHOLE))
    return out.take()


@pytest.mark.parametrize(
    ("attempts", "sentence"),
    [
        ([(0, 1, 1), (0, 2, 2)], "an attempt of it still runs"),
        ([(0, 1, 1), (1, 1, 1)], "over its whole"),
        ([(0, 1, 4)], "the node does not have"),
    ],
)
def test_the_world_checks_itself(attempts: list[tuple[int, int, int]], sentence: str) -> None:
    world = World(workload([job("a"), job("b")]), cluster([2]))
    world.advance(0, 1)
    with pytest.raises(WorldError, match=sentence):
        world.execute(starts(attempts), 0)


@pytest.mark.parametrize(
    ("attempts", "sentence"),
    [
        ([(0, 1, 1), (0, 2, 2)], "while it holds a place"),
        ([(0, 1, 1), (1, 1, 1)], "over its whole"),
        ([(0, 2, 1)], "attempt of job 0"),
        ([(0, 1, 4)], "does not have"),
        ([(0, 1, 1)], "hold a place at the end"),
    ],
)
def test_the_journal_is_checked_alone(attempts: list[tuple[int, int, int]], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        verify_journal(starts(attempts), cluster([2]))


def test_a_failure_tells_its_scenario() -> None:
    class Idle:
        name = "idle"

        def decide(self, view: object, memo: object) -> object:
            raise AssertionError("nothing comes to mind")

    with pytest.raises(AssertionError, match="nothing comes to mind") as caught:
        run_scenario(scenario(3), policy=Idle())  # type: ignore[arg-type]
    assert "seed 3" in caught.value.__notes__[0]


# -- the command ---------------------------------------------------------------------------------------------------------
def test_fuzz_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--seed", "5", "--count", "3", "--policy", "srtf"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 scenarios in ") and out.endswith("every check held\n") and "completed" in out


def test_fuzz_names_the_failing_seeds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(it: object) -> Counter[str]:
        raise AssertionError("job 3 was lost")

    monkeypatch.setattr(fuzz, "run_scenario", fails)
    assert fuzz.main(["--seed", "5", "--count", "2"]) == 1
    streams = capsys.readouterr()
    assert "failing seeds: 5 6" in streams.out and "job 3 was lost" in streams.err and "seed 5: " in streams.err


def test_fuzz_refuses_an_unknown_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--policy", "fifi"]) == 2
    assert "did you mean 'fifo'" in capsys.readouterr().err


# -- jobs that can never run ----------------------------------------------------------------------------------------------
def bounded(run: Simulation) -> None:
    assert run.rounds < 300, "the run does not end"


def test_a_job_whose_server_has_no_room_is_rejected() -> None:
    load = workload([job("a", 1, 1, cpus=1, servers=1, server_cpus=1)])
    run = simulate(load, cluster([1], cpus=1), make_policy("fifo"), interval_s=1, watch=bounded)
    assert run.state.ended_phase(0) == c.Phase.REJECTED


def test_waiting_for_ever_is_told() -> None:
    load = workload([job("a", 1, 1)])
    never = World(load, cluster([1]), node_faults=[(0, 0, False)])
    with pytest.raises(StuckError, match="1 jobs wait"):
        simulate(load, cluster([1]), make_policy("fifo"), interval_s=1, world=never, watch=bounded)


def test_waiting_for_ever_is_told_under_faults_too() -> None:
    load = workload([job("a", 1, 1)])
    never = World(load, cluster([1]), node_faults=[(0, 0, False)])
    with pytest.raises(StuckError):
        simulate(load, cluster([1]), make_policy("fifo"), interval_s=1, world=never, faults=Faults(), watch=bounded)


def test_replay_of_nothing() -> None:
    empty = State()
    empty.apply(EventBuffer().take())
    verify(empty)
