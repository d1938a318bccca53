"""Rates on shared GPUs, cpus and networks against the event-by-event twin: completion times to one part in a thousand million."""

from __future__ import annotations

import math
import random

import pytest
from tests.reference.rates import RateJob, RateNode, RateTask, Usage, completion_times

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBatch
from headway.core.view import gpus_of
from headway.policies.registry import make_policy
from headway.sim.curve import mix
from headway.sim.run import simulate
from headway.testing.builders import JobSketch, cluster, job, workload
from headway.workloads.schema import Workload

US = 1_000_000
PPM = 1_000_000
CPUS, NETWORK = 16, 10**9


def random_sharing_jobs(r: random.Random, *, all_use_all: bool) -> list[JobSketch]:
    """Shares, whole GPUs and jobs without one, all long: over 10⁴ s the rounding of other jobs' ends is below the tolerance."""
    nothing = [] if all_use_all else [0]
    t, jobs = 0, []
    for number in range(r.randint(3, 12)):
        t += r.choice([0, 0, 7, 1000, 20_000])
        workers = r.choice([1, 1, 2, 3])
        each = r.choice([0, 0.25, 0.3, 0.5, 0.6, 0.999, 1])
        jobs.append(
            job(
                f"j{number}", round(each * workers, 3), r.randint(30_000, 100_000), t, workers=workers, share=each < 1,
                estimate_s=1, cpus=r.choice([*nothing, 1, 2, 3.3]),
                network_bytes_per_s=r.choice([*nothing, 10**8, 333_333_333, 7 * 10**8]),
            )
        )  # fmt: skip
    return jobs


def usage_of(load: Workload) -> Usage:
    """What each task uses in each interval: the request, and the draw of the counter-based hash."""
    jitter, seed = load.usage_jitter_ppm, load.usage_seed

    def usage(number: int, task: int, interval: int) -> dict[str, float]:
        error = mix(seed, number, task, interval) % (2 * jitter + 1) - jitter if jitter else 0
        asked = {"gpu_milli": c.J_GPU_TASK, "cpus_milli": c.J_CPU_TASK, "network_bytes_per_s": c.J_NET_TASK}
        requests = {name: int(load.spec[column, number]) for name, column in asked.items()}
        return {name: float(request + request * error // PPM) for name, request in requests.items()}

    return usage


def placed(journal: EventBatch, load: Workload) -> tuple[list[RateJob], dict[int, int]]:
    """Start times and places from the journal, in the twin's terms, and the completion times (µs)."""
    places: dict[int, list[tuple[int, int | None]]] = {}
    jobs, ends = [], {}
    for record, payload in zip(journal.records.tolist(), journal.payloads(), strict=True):
        t, kind, number, attempt = record[:4]
        if kind == EventKind.START_REQUESTED:
            assert attempt == 1
            places[number] = [(node, (*gpus_of(mask), None)[0]) for node, mask, _ in payload.reshape(-1, c.PLACE).tolist()]
        elif kind == EventKind.STARTED:
            hold = load.usage_hold_us
            phases = [
                mix(load.usage_seed, number, k, -1) % hold / US if load.usage_jitter_ppm else 0.0
                for k in range(len(places[number]))
            ]
            tasks = tuple(RateTask(node, gpu, phase) for (node, gpu), phase in zip(places[number], phases, strict=True))
            jobs.append(RateJob(number, t / US, int(load.work_us[number]) / US, tasks))
        elif kind == EventKind.COMPLETED:
            ends[number] = t
    return jobs, ends


def check_against_twin(seed: int, *, all_use_all: bool) -> int:
    """One random case; how many of its jobs were slowed by more than 1 %."""
    r = random.Random(seed)
    where = cluster([r.choice([1, 2, 4]) for _ in range(r.randint(1, 3))], cpus=CPUS, network_bytes_per_s=NETWORK)
    jitter = r.choice([0.0, 0.2, 0.5])
    load = workload(random_sharing_jobs(r, all_use_all=all_use_all), jitter=jitter, hold_s=r.choice([777, 5000]), usage_seed=seed)
    run = simulate(load, where, make_policy("fifo:sharing=true"), interval_s=1, keep_journal=True)
    assert run.journal is not None
    jobs, ends = placed(run.journal, load)
    nodes = [RateNode(n, CPUS * 1000.0, float(NETWORK)) for n in range(len(where.nodes))]
    expected = completion_times(jobs, nodes, usage_of(load), load.usage_hold_us / US if jitter else math.inf)
    assert ends.keys() == expected.keys()
    for number, end_s in expected.items():
        assert ends[number] == pytest.approx(end_s * US, rel=1e-9, abs=1.0), (seed, number)
    return sum(expected[it.number] > it.start_s + it.work_s * 1.01 for it in jobs)


@pytest.mark.parametrize("chunk", range(5))
def test_completions_are_those_of_the_twin(chunk: int) -> None:
    """With steady usage, and with usage that changes every quarter of an hour or so."""
    slowed = sum(check_against_twin(seed, all_use_all=True) for seed in range(20 * chunk, 20 * chunk + 20))
    assert slowed > 40, "the cases would not show a wrong rate"


def test_completions_of_jobs_that_use_a_part_only() -> None:
    for seed in range(100, 140):
        check_against_twin(seed, all_use_all=False)


def test_a_network_slows_only_those_who_use_it() -> None:
    """b uses 1.8 of the network and goes at 0.5: 10 s take 20. a uses none of it: 10 s take 10."""
    jobs = [job("a", 1, 10), job("b", 1, 10, network_bytes_per_s=1800)]
    run = simulate(workload(jobs), cluster([2], network_bytes_per_s=1000), make_policy("fifo"), interval_s=1, keep_journal=True)
    assert run.journal is not None
    assert placed(run.journal, workload(jobs))[1] == {0: 10 * US, 1: 20 * US}


def test_two_shares_by_hand() -> None:
    """0.6 and 0.4 fill a GPU: both go at 1 − (1 − 0.9) = 0.9. The first has done its 9 s at 10; the second 9 of its 18,
    and ends at 19."""
    jobs = [job("a", 0.6, 9, share=True), job("b", 0.4, 18, share=True)]
    run = simulate(workload(jobs), cluster([1]), make_policy("fifo:sharing=true"), interval_s=1, keep_journal=True)
    assert run.journal is not None
    assert placed(run.journal, workload(jobs))[1] == {0: 10 * US, 1: 19 * US}


def test_a_full_network_slows_by_hand() -> None:
    """Two jobs with 0.9 of a network each: u = 1.8, both at 0.9 / 1.8 = 0.5. 10 s of work take 20; the other's 15 s: 10 by
    then, 5 alone."""
    jobs = [job("a", 1, 10, network_bytes_per_s=900), job("b", 1, 15, network_bytes_per_s=900)]
    run = simulate(workload(jobs), cluster([2], network_bytes_per_s=1000), make_policy("fifo"), interval_s=1, keep_journal=True)
    assert run.journal is not None
    assert placed(run.journal, workload(jobs))[1] == {0: 20 * US, 1: 25 * US}
