"""What users of other schedulers have reported of queues, quotas and books, each as a test of what is right. One line each.

* A limit fits one gang, many are handed in at once: several start some of their tasks, and none can go on.
* Three GPUs, two queues that each deserve one and a half, jobs of two: nothing runs.
* The head of one queue can't start, and the other queue may not borrow what stands idle meanwhile.
* Two queues take back what is theirs at once; one victim goes, and both are let in.
* Jobs are cancelled in the middle of their start: usage shows -1, and reservations leak.
* After a restart limits do not hold until a cache is warm: hundreds of jobs start.
* Queues are guaranteed more than the cluster has: the scheduler panics, again and again.
* Many jobs with parts of GPUs come at once, and GPUs are packed beyond what they have.
* Which GPU a task was given is forgotten on the way: two run on GPU 0, and none on GPU 2.
* A share of a GPU that is no number is accepted; none at all, or no cpus beside GPUs, break things or slip in.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from headway.app.jobfile import job_from_command
from headway.core import columns as c
from headway.core.columns import EventKind, Name, Phase
from headway.core.errors import UserError
from headway.core.events import EventBuffer
from headway.core.model import validate
from headway.core.plan import Capabilities
from headway.core.round import Brains, run_round
from headway.core.units import parse_gpu
from headway.policies.registry import choose
from headway.testing import builders
from headway.testing.invariants import verify
from headway.testing.virtual import US

from .cluster import Cluster, live

PREEMPTIVE = ["srtf", "las:quantum=20", "tiresias", "drf", "borg-fair", "edf", "graphene", "slaq", "mlf-h", "gandiva:slice=20"]
IN_TURN = ["fifo", "fifo-backfill"]


def set_queue(cluster: Cluster, name: str, quota: int = -1, limit: int = -1) -> None:
    """Give a queue a quota and a limit (in GPUs)."""
    controller, out = cluster.controller, EventBuffer()
    queue = controller.names.number(Name.QUEUE, name)
    controller.names.take_news(out, controller.now_us())
    milli = [value * 1000 if value >= 0 else -1 for value in (quota, limit)]
    out.add(controller.now_us(), EventKind.QUEUE_SET, queue, payload=(*milli, 1, -1))
    controller._record(out.take())


def running(cluster: Cluster) -> dict[str, int]:
    """How many tasks of each job really run."""
    return {gang.launch.name: len(gang.live) for gang in cluster.machine.gangs.values() if gang.live}


@pytest.mark.parametrize("policy", IN_TURN + PREEMPTIVE)
def test_of_many_gangs_beyond_a_limit_one_runs_whole_at_a_time(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        set_queue(cluster, "default", limit=4)
        jobs = await asyncio.gather(*(cluster.submit(f"g{n}", workers=3, work_s=5.0, estimate_s=5.0) for n in range(24)))
        for tenth in range(200):
            await cluster.to(tenth / 2)
            now = running(cluster)
            assert len(now) <= 1 and all(tasks == 3 for tasks in now.values())
        assert await cluster.end(*jobs, by_s=400) == ["COMPLETED"] * 24

    live(body, policy=policy, gpus=[8, 8])


@pytest.mark.parametrize("seed", range(20))
def test_gangs_handed_in_at_random_times_hold_all_or_nothing(seed: int) -> None:
    async def body(cluster: Cluster) -> None:
        r = random.Random(seed)
        set_queue(cluster, "default", limit=7)
        sizes = {f"g{n}": r.randint(1, 7) for n in range(15)}
        for name, workers in sizes.items():
            await cluster.submit(name, workers=workers, work_s=r.uniform(1, 4), estimate_s=4.0, start_s=r.choice([0.0, 0.5]))
            await asyncio.sleep(r.choice([0.0, 0.3, 1.7]))
            now = running(cluster)
            assert sum(now.values()) <= 7 and all(tasks == sizes[name] for name, tasks in now.items())
        assert await cluster.end(*map(cluster.controller.find, sizes), by_s=300) == ["COMPLETED"] * 15

    live(body, policy=random.Random(seed).choice(IN_TURN + PREEMPTIVE), gpus=[4, 4, 4])


@pytest.mark.parametrize("policy", IN_TURN + PREEMPTIVE)
def test_halves_that_nobody_can_use_alone_are_put_together(policy: str) -> None:
    """Each queue deserves 1.5 of 3 GPUs: quotas of one, the rest for whoever comes."""

    async def body(cluster: Cluster) -> None:
        for queue in "ab":
            set_queue(cluster, queue, quota=1)
        jobs = [await cluster.submit(f"{q}{n}", workers=2, work_s=5.0, estimate_s=5.0, queue=q) for n in (0, 1) for q in "ab"]
        await cluster.to(2)
        assert list(running(cluster).values()) == [2]
        assert await cluster.end(*jobs, by_s=100) == ["COMPLETED"] * 4

    live(body, policy=policy, gpus=[3])


@pytest.mark.parametrize("policy", ["fifo-backfill", "drf", "mlf-h"])
def test_a_head_that_can_not_start_lets_another_queue_use_what_is_idle(policy: str) -> None:
    """Queue b runs on six of eight GPUs for 100 s. The head of a wants four; two stand idle, for jobs of b that end before."""

    async def body(cluster: Cluster) -> None:
        await cluster.submit("long", workers=6, work_s=100.0, estimate_s=100.0, queue="b")
        await cluster.to(1)
        await cluster.submit("head", workers=4, work_s=50.0, estimate_s=50.0, queue="a")
        await cluster.to(2)
        for n in range(6):
            await cluster.submit(f"s{n}", work_s=10.0, estimate_s=10.0, queue="b")
        idle_gpu_s = 0.0
        for second in range(3, 33):
            await cluster.to(second + 0.5)
            idle_gpu_s += 8 - sum(running(cluster).values())
        assert idle_gpu_s <= 10, "of 30 s × 2"
        await cluster.end(cluster.controller.find("head"), by_s=400)

    live(body, policy=policy, gpus=[8])


@pytest.mark.parametrize("policy", IN_TURN + PREEMPTIVE)
def test_two_queues_take_back_what_is_theirs_and_each_has_it(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        for queue in "ab":
            set_queue(cluster, queue, quota=4)
        for n in range(8):
            await cluster.submit(f"guest{n}", work_s=300.0, estimate_s=300.0, queue="c", save_s=1.0 + n)
        await cluster.to(5)
        jobs = await asyncio.gather(*(cluster.submit(q, workers=4, work_s=10.0, estimate_s=10.0, queue=q) for q in "ab"))
        assert await cluster.end(*jobs, by_s=80) == ["COMPLETED"] * 2

    live(body, policy=policy, gpus=[4, 4])


@pytest.mark.parametrize("seed", range(12))
def test_queues_that_reclaim_at_random_never_hold_more_than_there_is(seed: int) -> None:
    """The machine itself sees a GPU that is given twice; here the books are held against it."""

    async def body(cluster: Cluster) -> None:
        r = random.Random(seed)
        for queue, quota in (("a", 3), ("b", 3), ("c", 2)):
            set_queue(cluster, queue, quota=quota)
        jobs = []
        for n in range(30):
            words = {"work_s": r.uniform(1, 20), "estimate_s": r.uniform(1, 20), "save_s": r.choice([0.0, 0.5, 3.0])}
            jobs.append(await cluster.submit(f"j{n}", workers=r.randint(1, 4), queue=r.choice("abcd"), **words))
            await asyncio.sleep(r.choice([0.0, 0.0, 0.4, 2.0]))
            G, Q = cluster.controller.state.G, cluster.controller.state.Q
            assert G[c.G_HELD].max() <= c.WHOLE and G[c.G_BOOKED].max() <= c.WHOLE and Q[c.Q_BOOKED].sum() <= 8 * c.WHOLE
        assert await cluster.end(*jobs, by_s=1500) == ["COMPLETED"] * 30

    live(body, policy=random.Random(seed).choice(IN_TURN + PREEMPTIVE), gpus=[4, 4])


def test_jobs_cancelled_in_the_middle_of_their_start_leave_nothing_behind() -> None:
    """A thousand jobs, each cancelled before, while or just after it comes up."""

    async def body(cluster: Cluster) -> None:
        r = random.Random(5)
        for n in range(1000):
            await cluster.submit(f"j{n}", workers=r.randint(1, 4), work_s=50.0, start_s=0.05)
            await asyncio.sleep(r.choice([0.0, 0.01, 0.04, 0.05, 0.06]))
            await cluster.controller.cancel(f"j{n}")
            N, G = cluster.controller.state.N, cluster.controller.state.G
            assert min(N[c.N_FREE].min(), G[c.G_BOOKED].min(), G[c.G_HELD].min()) >= 0
        await asyncio.sleep(60)
        state = cluster.controller.state
        assert not len(state.live_rows()) and int(state.N[c.N_FREE].sum()) == 4
        assert int(state.G[[c.G_BOOKED, c.G_TASKS, c.G_HELD, c.G_HELD_TASKS]].sum()) == 0 and int(state.Q[c.Q_BOOKED].sum()) == 0

    live(body, policy="fifo-backfill", gpus=[4])


@pytest.mark.parametrize("policy", ["fifo", "srtf", "mlf-h", "gandiva:slice=20"])
def test_a_limit_holds_from_the_first_round_after_a_restart(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        set_queue(cluster, "default", limit=2)
        jobs = [await cluster.submit(f"j{n}", work_s=3.0, estimate_s=3.0) for n in range(500)]
        for second in range(1, 25):
            await cluster.to(second)
            assert sum(running(cluster).values()) <= 2
            if second % 6 == 0:
                await cluster.down()
                await cluster.up()
                assert sum(running(cluster).values()) <= 2, "nor at its start"
        assert sum(job.ended for job in map(cluster.controller.find, (job.id for job in jobs))) >= 10

    live(body, policy=policy, gpus=[8, 8])


@pytest.mark.parametrize("policy", IN_TURN + PREEMPTIVE)
def test_guarantees_beyond_the_cluster_stop_nobody(policy: str) -> None:
    """Three queues with 16 GPUs each, of eight that there are; and one without."""

    async def body(cluster: Cluster) -> None:
        for queue in "abc":
            set_queue(cluster, queue, quota=16)
        jobs = [
            await cluster.submit(f"{q}{n}", workers=4, work_s=5.0, estimate_s=5.0, queue=q, save_s=0.1)
            for n in range(3)
            for q in "abcd"
        ]
        assert await cluster.end(*jobs, by_s=2000) == ["COMPLETED"] * 12
        assert cluster.controller.rounds.refused == 0

    live(body, policy=policy, gpus=[4, 4])


def test_parts_of_gpus_come_all_at_once_and_no_gpu_has_more_than_it_is() -> None:
    """A hundred jobs of 0.3 GPU on eight: three on each, in one round."""
    jobs = [builders.job(f"j{n}", gpus=0.3, workers=1, work_s=100, share=True) for n in range(100)]
    for policy in ("fifo:sharing=true", "fifo-backfill:sharing=true", "srtf:sharing=true", "drf:sharing=true", "mlf-h"):
        state = builders.state([4, 4], jobs)
        keep = choose("fifo-backfill").policy
        result = run_round(state, Brains(choose(policy).policy, keep, keep), None, US, seed=0, capabilities=Capabilities())
        assert result.violation is None
        state.apply(result.events)
        verify(state)
        assert state.G[c.G_BOOKED].max() <= c.WHOLE
        if policy != "mlf-h":  # which leaves a part of each GPU free
            assert state.G[c.G_BOOKED].tolist() == [900] * 8 and int(state.J[c.J_PLACED].sum()) == 24


def test_each_task_has_the_gpu_that_the_books_say() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.submit("pair", gpus=2, workers=2, work_s=50.0)
        for n in range(4):
            await cluster.submit(f"j{n}", work_s=50.0)
        await cluster.to(3)
        launched = [(t.node, gpu, g.launch.job) for g in cluster.machine.gangs.values() for t in g.launch.tasks for gpu in t.gpus]
        state = cluster.controller.state
        booked = []
        for row in state.live_rows():
            first = int(state.J[c.J_HELD_TASK0, row])
            for task in range(first, first + int(state.J[c.J_HELD_TASKS, row])):
                mask, node = int(state.T[c.T_HELD_MASK, task]), state.name(Name.NODE, int(state.T[c.T_HELD_NODE, task]))
                booked += [(node, bit, int(state.J[c.J_ID, row])) for bit in range(64) if mask >> bit & 1]
        assert sorted(launched) == sorted(booked) and len({place[:2] for place in launched}) == 8
        assert all(cluster.phase(f"j{n}") == Phase.RUNNING for n in range(4))

    live(body, gpus=[4, 4])


@pytest.mark.parametrize("gpus", ["NaN", "inf", "-0.5", "1e309", "0,5", "1.5"])
def test_gpus_that_are_no_number_are_refused_in_a_line(gpus: str) -> None:
    with pytest.raises(UserError) as error:
        job_from_command(["true"], gpus=gpus)
    assert "gpu" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("gpus", [0, "0", 0.0, "a100:0", "gpu:titanrtx:0"])
def test_zero_gpus_are_none_of_any_kind(gpus: object) -> None:
    assert parse_gpu(0.1 + 0.2).milli == 300
    assert (parse_gpu(gpus).milli, parse_gpu(gpus).kind) == (0, "")


@pytest.mark.parametrize("cpus", ["0", "-1", "nan"])
def test_gpus_without_cpus_are_refused(cpus: str) -> None:
    with pytest.raises(UserError, match="cpus"):
        spec = job_from_command(["true"], gpus="1", cpus=cpus)
        for fault in validate(spec):
            raise UserError(f"expected {fault.expected}", key=fault.key)
