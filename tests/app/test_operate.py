"""Reloading settings while a controller runs, in virtual time: what changes, what waits for a restart, what a mistake does."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.app.backup import journal_of
from headway.app.operate import Given, Past, Reloaded, Reloader, differences, put_in_force
from headway.core import columns as c
from headway.core.columns import EventKind, Name, Phase
from headway.core.errors import UserError
from headway.core.model import JobSpec
from headway.engines import accounts
from headway.policies.registry import Chosen, choose
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.home import Home
from headway.runtime.journal import Journal
from headway.runtime.rights import Identity
from headway.runtime.rounds import Inline
from headway.runtime.settings import ClusterSettings, Settings, UserSettings, parse_settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.runtime.fake import US, World, brains_of, job


class Lab(World):
    """A fake cluster of 2x2 with a settings file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "journal.db")
        self.file = root / "headway.toml"
        self.given = Given(home=Home(root))
        self.identity = Identity.NAMES
        self.adopted: list[str] = []

    def write(self, text: str) -> None:
        self.file.write_text(text)

    async def start(self) -> Controller:
        settings = self.given.load()
        self.controller = Controller(
            Journal(self.path), self.engine, brains_of(settings.policy), pace=self.pace, clock=self.clock,
            worker=Inline(), settings=settings, identity=self.identity,
        )  # fmt: skip
        await self.controller.start()

        async def adopted(chosen: Chosen) -> None:
            self.adopted.append(chosen.spec)

        self.reloader = Reloader(self.controller, self.given, settings, lambda chosen: brains_of(chosen.spec), adopted)
        await self.drain()
        return self.controller

    async def reload(self, text: str) -> Reloaded:
        self.write(text)
        task = asyncio.ensure_future(self.reloader.reload())
        while not task.done():
            await self.drain()
            await asyncio.sleep(0.001)  # a thread reads the journal
        return await task

    def quotas(self) -> dict[str, tuple[int, int]]:
        state = self.controller.state
        names = state.names[Name.QUEUE].items()
        return {name: (int(state.Q[c.Q_QUOTA, number]), int(state.Q[c.Q_LIMIT, number])) for number, name in names}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


async def test_a_controller_starts_with_its_quotas(lab: Lab) -> None:
    lab.write("[queues.a]\nquota = 3\nlimit = 4\n[queues.b]\nparent = 'a'")
    await lab.start()
    assert lab.quotas() == {"a": (3000, 4000), "b": (-1, -1)}
    assert lab.controller.state.Q[c.Q_PARENT, 1] == 0


async def test_a_quota_is_changed_while_jobs_wait_for_it(lab: Lab) -> None:
    """Queue b borrows all four GPUs; then a is given a quota, and its job claims it at once."""
    await lab.start()
    lab.engine.work_us = {1: 100 * US, 2: 100 * US, 3: 5 * US}
    b = [await lab.submit(replace(job(f"b{i}", workers=2), queue="b")) for i in range(2)]
    a = await lab.submit(replace(job("a", workers=2), queue="a"))
    await lab.to(10 * US)
    assert a.first_started_us is None and all(one.first_started_us == 0 for one in b)
    done = await lab.reload("[queues.a]\nquota = 2\n[queues.b]\nquota = 2\n")
    assert done.changed == ("queues.a.quota", "queues.b.quota") and not done.restart
    assert lab.quotas()["a"] == (2000, -1)
    await lab.to(12 * US)
    assert a.first_started_us is not None and a.first_started_us <= 11 * US
    assert sum(one.preemptions for one in b) == 1


async def test_a_queue_that_is_taken_out_keeps_its_jobs_and_loses_its_quota(lab: Lab) -> None:
    lab.write("[queues.a]\nquota = 1\n[queues.b]\nquota = 3\n")
    await lab.start()
    lab.engine.work_us = {1: 20 * US}
    record = await lab.submit(replace(job(), queue="a"))
    await lab.reload("[queues.b]\nquota = 3\n")
    assert lab.quotas() == {"a": (-1, -1), "b": (3000, -1)}
    with pytest.raises(UserError, match=r"queue: there is no queue \"a\""):
        await lab.submit(replace(job(), queue="a"))
    await lab.to(30 * US)
    assert record.phase == Phase.COMPLETED


async def test_a_mistake_leaves_everything_in_force(lab: Lab) -> None:
    lab.write("[queues.a]\nquota = 1\n[limits]\nqueued = 7\n")
    await lab.start()
    before, events = lab.controller.intake.settings, len(lab.journal())
    with pytest.raises(UserError, match=r"headway\.toml:2: queues\.a\.quota: expected a whole number"):
        await lab.reload("[queues.a]\nquota = 'much'\n[limits]\nqueued = 1\n")
    assert lab.controller.intake.settings is before and len(lab.journal()) == events
    assert lab.quotas() == {"a": (1000, -1)}


async def test_what_needs_a_restart_says_so_and_is_not_in_force(lab: Lab) -> None:
    lab.write("[cluster]\nport = 80\n")
    await lab.start()
    done = await lab.reload("[cluster]\nport = 81\nround = '2s'\n[engine]\nsilent = '9s'\n")
    assert (done.changed, done.restart) == (("cluster.round",), ("cluster.port", "engine.silent"))
    assert lab.controller.pace.interval_us == 2 * US
    again = await lab.reload("[cluster]\nport = 81\nround = '2s'\n[engine]\nsilent = '9s'\n")
    assert (again.changed, again.restart) == ((), ("cluster.port", "engine.silent")), "it is told each time"


async def test_an_option_stands_above_the_file(lab: Lab) -> None:
    lab.given = replace(lab.given, policy="las", options=ClusterSettings(port=5))
    lab.write("[policy]\nname = 'srtf'\n[cluster]\nport = 80\nlease = '3s'\n")
    found = lab.given.load()
    assert (found.policy, found.cluster.port, found.cluster.lease) == ("las", 5, "3s")
    await lab.start()
    assert (await lab.reload("[policy]\nname = 'edf'\n[cluster]\nport = 81\nlease = '3s'\n")).changed == ()


async def test_nothing_changed_is_nothing_journalled(lab: Lab) -> None:
    lab.write("[limits]\nqueued = 7\n")
    await lab.start()
    events = len(lab.journal())
    assert await lab.reload("# the same\n[limits]\nqueued = 7\n") == Reloaded(str(lab.file), (), ())
    assert len(lab.journal()) == events


async def test_the_journal_says_which_settings_were_in_force_when(lab: Lab) -> None:
    lab.write("[cluster]\njournal = 'postgresql://ann:secret@db/x'\n")
    await lab.start()
    await lab.to(5 * US)
    await lab.reload("[policy]\nname = 'las'\n[users.ann]\nadmin = true\n")
    batch = lab.journal()
    told = [
        (int(batch.records[index, c.E_T]), json.loads(text))
        for index, text in batch.texts.items()
        if batch.records[index, c.E_KIND] == EventKind.SETTINGS_SET
    ]
    assert [(t, text["policy"], text["users"]) for t, text in told] == [
        (0, "fifo", {}),
        (5 * US, "las", {"ann": {"admin": True}}),
    ]
    assert "secret" not in str(told)


# Policies


async def started(world: World, *records: JobRecord) -> list[int | None]:
    await world.to(60 * US)
    return [None if r.first_started_us is None else r.first_started_us // US for r in records]


async def test_another_policy_decides_from_now_on(lab: Lab) -> None:
    """Under fifo the long job would be next; srtf takes the short one first."""
    await lab.start()
    lab.engine.work_us = {1: 10 * US, 2: 20 * US, 3: 5 * US}
    await lab.submit(replace(job("a", workers=4), estimate_s=10))
    long = await lab.submit(replace(job("long", workers=4), estimate_s=20))
    short = await lab.submit(replace(job("short", workers=4), estimate_s=5))
    await lab.to(8 * US)
    done = await lab.reload("[policy]\nname = 'srtf'\n")
    assert done.changed == ("policy",) and lab.adopted == ["srtf"]
    assert await started(lab, long, short) == [15, 10]


async def test_a_policy_that_remembers_remembers_what_was_before_it(lab: Lab) -> None:
    """Its memo is that of a controller which has had it from the beginning."""
    spec = "tiresias:variant=gittins"
    await lab.start()
    lab.engine.work_us = {n: n * US for n in range(1, 8)}
    for n in range(1, 8):
        await lab.submit(replace(job(f"j{n}", workers=1 + n % 3), estimate_s=n))
    await lab.to(6 * US)
    await lab.reload(f"[policy]\nname = '{spec}'\n")
    reader = Journal(lab.path)
    past = Past(choose(spec), reader)
    past.follow()
    controller = lab.controller
    mind = controller.rounds.mind
    mind.catch_up(controller.brains.policy)
    memo = mind.memo
    assert repr(memo) == repr(past.memo) and past.memo != choose(spec).policy.start()  # type: ignore[attr-defined]
    past.close()
    reader.close()
    await lab.to(30 * US)
    assert controller.rounds.refused == 0 and all(record.phase == Phase.COMPLETED for record in controller.board)


async def test_a_policy_that_asks_for_estimates_can_follow_one_that_does_not(lab: Lab) -> None:
    await lab.start()
    lab.engine.work_us = {1: 20 * US}
    record = await lab.submit(job())
    await lab.to(5 * US)
    await lab.reload("[policy]\nname = 'slaq'\n")
    histories = lab.controller.rounds.mind.histories
    assert histories is not None and list(histories.live) == [1]
    await lab.to(30 * US)
    assert record.phase == Phase.COMPLETED


# Rights


async def refusal(lab: Lab, spec: JobSpec) -> str:
    with pytest.raises(UserError) as caught:
        await lab.submit(spec)
    return str(caught.value)


def of(user: str, **more: Any) -> JobSpec:
    return replace(job(**more), user=user)


async def test_users_have_their_queues_and_limits(lab: Lab) -> None:
    lab.write(
        "[queues.vision]\nquota = 2\n[users.ann]\nqueues = ['vision']\ngpus = 2\n"
        "[users.bob]\nqueued = 1\n[users.'*']\nqueues = []\n"
    )
    await lab.start()
    lab.engine.work_us = dict.fromkeys(range(1, 9), 100 * US)
    assert (
        await refusal(lab, replace(of("ann"), queue="visoin")) == "queue: there is no queue \"visoin\" (did you mean 'vision'?)"
    )
    assert await refusal(lab, of("ann")) == 'queue: "ann" may use only vision, not "default"'
    wide = replace(of("ann", workers=3), queue="vision")
    assert await refusal(lab, wide) == 'resources.gpu: "ann" may use at most 2 GPUs in one job, got 3'
    assert await refusal(lab, of("eve")) == 'queue: "eve" may use no queue at all, not "default"'
    await lab.submit(replace(of("ann", workers=2), queue="vision"))
    await lab.submit(of("bob", workers=2))
    await lab.submit(of("bob"), "waits")
    assert await refusal(lab, of("bob")) == 'user: "bob" may have at most 1 jobs waiting at once'
    assert (await lab.submit(of("bob"), "waits")).id == "waits", "the same job may be handed in again"


async def test_two_jobs_at_one_instant_count_both(lab: Lab) -> None:
    lab.write("[limits]\nqueued = 1\n")
    await lab.start()
    tasks = [asyncio.ensure_future(lab.controller.submit(of("ann", workers=4))) for _ in range(2)]
    await lab.drain()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, UserError) for one in outcomes] == [False, True]


async def test_in_one_trust_domain_there_is_one_user_and_admins(lab: Lab) -> None:
    lab.write("[users.root]\nadmin = true\n")
    lab.identity = Identity.ONE_DOMAIN
    await lab.start()
    await lab.submit(of("root"))
    await lab.submit(of("ann"))
    await lab.submit(of(""))
    said = await refusal(lab, of("bob"))
    assert said.startswith('user: all jobs run under one account here, and it is that of "ann": a second user needs')
    await lab.controller.close()
    await lab.start()
    await lab.submit(of("ann"))
    assert await refusal(lab, of("bob")) == said, "also under the next controller"
    await lab.reload("[users.root]\nadmin = true\n[users.bob]\nadmin = true\n")
    await lab.submit(of("bob"))


async def test_a_user_without_an_account_is_refused_when_the_job_is_handed_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def account_of(user: str) -> None:
        if user != "ann-lab":
            raise accounts.NoAccount(f"the user {user!r} has no Unix account on this node")

    monkeypatch.setattr(accounts, "account_of", account_of)
    lab.write("[users.ann]\naccount = 'ann-lab'\n")
    lab.identity = Identity.ACCOUNTS
    await lab.start()
    await lab.submit(of("ann"))
    (launch,) = lab.engine.launches
    assert launch.user == "ann-lab"
    assert await refusal(lab, of("bob")) == "user: the user 'bob' has no Unix account on this node"
    assert await refusal(lab, of("")) == "user: expected a user, whose Unix account the job runs under, got nothing"


def test_backup_goes_to_the_journal_of_the_settings(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert journal_of(home, "") == home.journal
    home.settings_file.write_text("[cluster]\njournal = 'postgresql://ann@db/x'\n")
    assert str(journal_of(home, "")).startswith("postgresql") and "db/x" in str(journal_of(home, ""))
    assert "other/y" in str(journal_of(home, "postgresql://ann@other/y"))


def test_differences_are_keys() -> None:
    before = Settings(users={"a": UserSettings(queued_max=1)})
    after = Settings(users={"a": UserSettings(queued_max=2), "b": UserSettings()})
    assert differences(before, after) == ["users.a.queued", "users.b"]
    assert differences(parse_settings("[cluster]\njournal='postgresql://a@b/c'"), Settings()) == ["cluster.journal"]


async def test_urgency_budgets_are_in_force_at_once(lab: Lab) -> None:
    """Ann's 3 points above 5 are spent by her first job; whoever is not named has 1."""
    await lab.start()
    await lab.reload("[users.ann]\nurgency_budget = 3\n[users.bob]\n[users.'*']\nurgency_budget = 1\n")
    lab.engine.work_us = dict.fromkeys(range(1, 9), 100 * US)
    for user in ("ann", "ann", "bob", "eve"):
        await lab.submit(replace(of(user), urgency=10))
    state = lab.controller.state
    assert state.J[c.J_URGENCY, : state.C[c.C_ROWS]].tolist() == [8, 5, 10, 6]


async def test_limits_are_in_force_at_once(lab: Lab) -> None:
    await lab.start()
    await lab.reload("[limits]\nbody = '5KB'\n[quarantine]\ntroubles = 9\n")
    assert lab.controller.intake.settings.limits.body_bytes == 5000 and lab.controller.drains.trust.troubles_max == 9
    put_in_force(lab.controller, Settings())
    assert lab.controller.drains.trust.troubles_max == 3
