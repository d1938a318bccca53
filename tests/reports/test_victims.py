"""What users of other schedulers have reported of who is preempted, and of names, each as a test of what is right. One line each.

* A job in the middle is evicted, and the lowest runs on.
* Of equals the oldest is evicted; and when there is room again, one that never ran goes before it. (Where equals rank by arrival:
  `graphene` and `slaq` rank them by what they have had.)
* Of two victims the one is taken that saved itself three hours ago, and not the one that did so ten seconds ago.
* A name in another script is accepted, and then every list crashes.
"""

from __future__ import annotations

import pytest

from headway.api.jobviews import job_json
from headway.api.schemas import JobOut
from headway.cli_output import columns, job_line
from headway.core.columns import EventKind, Phase
from headway.core.events import EventBuffer
from headway.core.model import JobSpec, validate
from headway.testing.virtual import now_us

from .cluster import Cluster, live

BY_PRIORITY = ["srtf", "las:quantum=1000", "tiresias", "edf", "drf", "borg-fair", "graphene", "slaq"]


@pytest.mark.parametrize("policy", BY_PRIORITY)
@pytest.mark.parametrize("order", ["low mid", "mid low"])
def test_the_lowest_goes_first(policy: str, order: str) -> None:
    async def body(cluster: Cluster) -> None:
        for name in order.split():
            await cluster.submit(name, workers=2, work_s=300.0, estimate_s=300.0, priority={"low": 10, "mid": 50}[name])
        await cluster.to(5)
        await cluster.submit("high", workers=2, work_s=10.0, estimate_s=10.0, priority=90)
        await cluster.to(8)
        assert [cluster.phase(name) for name in ("low", "mid", "high")] == [Phase.QUEUED, Phase.RUNNING, Phase.RUNNING]
        assert cluster.controller.find("mid").preemptions == 0

    live(body, policy=policy, gpus=[4])


@pytest.mark.parametrize("policy", [name for name in BY_PRIORITY if name not in ("graphene", "slaq")])
def test_of_equals_the_newest_goes_and_comes_back_before_those_that_never_ran(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        for second, name in enumerate(("e1", "e2", "e3")):
            await cluster.to(second)
            await cluster.submit(name, workers=2, work_s=300.0, estimate_s=300.0)
        await cluster.to(5)
        await cluster.submit("e4", workers=2, work_s=300.0, estimate_s=300.0, priority=90)
        await cluster.to(10)
        assert [cluster.phase(f"e{n}") for n in (1, 2, 3, 4)] == [Phase.RUNNING, Phase.QUEUED, Phase.QUEUED, Phase.RUNNING]
        await cluster.controller.cancel("e4")
        await cluster.to(15)
        assert [cluster.phase(f"e{n}") for n in (1, 2, 3)] == [Phase.RUNNING, Phase.RUNNING, Phase.QUEUED]

    live(body, policy=policy, gpus=[4])


@pytest.mark.parametrize("policy", ["tiresias:threshold=1000000", "las:quantum=1000000", "edf"])
@pytest.mark.parametrize(("saved", "other"), [("old", "new"), ("new", "old")])
def test_of_equals_the_one_goes_that_saved_itself_ten_seconds_ago(policy: str, saved: str, other: str) -> None:
    hours_s = 3600.0

    async def body(cluster: Cluster) -> None:
        def save(name: str, units: int) -> None:
            out = EventBuffer()
            out.add(now_us(), EventKind.SAVED, cluster.controller.find(name).number, 1, a=units)
            cluster.controller._record(out.take())

        for name in ("old", "new"):
            await cluster.submit(name, workers=2, work_s=9 * hours_s, estimate_s=9 * hours_s)
            await cluster.to(1)
        await cluster.to(10)
        save(other, 1)
        await cluster.to(3 * hours_s)
        save(saved, 100)
        await cluster.to(3 * hours_s + 10)
        await cluster.submit("high", workers=2, work_s=100.0, estimate_s=100.0, priority=90)
        await cluster.to(3 * hours_s + 60)
        assert [cluster.phase(name) for name in (saved, other, "high")] == [Phase.QUEUED, Phase.RUNNING, Phase.RUNNING]
        await cluster.to(3 * hours_s + 120)
        assert [cluster.phase(name) for name in (saved, other)] == [Phase.RUNNING] * 2
        assert cluster.controller.find(saved).preemptions == 1 and cluster.controller.find(other).preemptions == 0

    live(body, policy=policy, gpus=[4])


GOOD = ["dédé 你好 🦙", "שלום", 'a,"b"', "a;b|c", "=1+1", "%s{}", "a-" + "b" * 100, "Ⅷ", "a'b\"c`$(d)"]
BAD = [
    "",
    "a\nb",
    "a\rb",
    "a\tb",
    "../x",
    "..",
    "/etc",
    "a/b",
    "x" * 4096,
    "a\x00b",
    "-rf",
    "\u202egpj",
    " a",
    "\ud800",
    "a\x1b[2J",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_name_in_any_script_is_listed_as_it_is(name: str) -> None:
    async def body(cluster: Cluster) -> None:
        job = await cluster.submit(name, work_s=1.0, queue=name, user=name)
        for _ in range(2):
            fields = job_json(cluster.controller, cluster.controller.find(name))
            assert JobOut.model_validate_json(JobOut(**fields).model_dump_json()).name == name
            assert (fields["queue"], fields["user"], fields["name"]) == (name, name, name) and name in job_line(fields)
            assert name in columns(("X", "NAME"), [("", fields["name"])])[1]
            assert await cluster.end(job) == ["COMPLETED"]
        await cluster.down()
        await cluster.up()
        assert cluster.controller.find(name).name == name, "after a restart, too"

    assert not list(validate(JobSpec(name=name, run="true", user=name, queue=name)))
    live(body)


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_could_do_harm_is_refused_in_a_line(name: str) -> None:
    faults = list(validate(JobSpec(name=name, run="true")))
    assert [fault.key for fault in faults] == ["name"] and "\n" not in f"{faults[0].expected}{faults[0].got}"
