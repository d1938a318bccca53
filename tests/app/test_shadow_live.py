"""Shadow mode and the guard on a running controller in virtual time: what is journalled, when not, and what a restart leaves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake import US, World, job

from headway.app import shadow_live
from headway.app.operate import Given
from headway.app.shadow_live import Comparer, Skip, keep_compared
from headway.app.shadow_report import difference, shadow_report
from headway.app.why_live import why_live
from headway.cli import run_command
from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.core.plan import Plan
from headway.core.policy import PolicyFault
from headway.core.round import TIMED_OUT, Brains, InCharge
from headway.core.view import ClusterView
from headway.engines.base import NodeInfo
from headway.policies.registry import choose, make_policy
from headway.policies.taught import Taught
from headway.runtime.controller import Controller
from headway.runtime.guard import standing
from headway.runtime.home import Home
from headway.runtime.journal import Journal
from headway.runtime.rounds import Inline, Pace
from headway.runtime.settings import Settings, parse_settings, parse_shadows
from headway.runtime.shadows import Shadows
from headway.testing.live_process import MemoryJournal
from headway.testing.machine import Machine
from headway.testing.script import Script
from headway.testing.simulated import SimulatedEngine
from headway.testing.virtual import VirtualClock, VirtualLoop, run_virtual

Captured = pytest.CaptureFixture[str]
Json = dict[str, Any]
H = 3600


class Moody:
    """SRTF, or, while it is idle, a policy that starts nobody; it gives up on demand."""

    name, strict = "moody", False

    def __init__(self) -> None:
        self.idle = self.gives_up = False
        self.inner = make_policy("srtf")

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if self.gives_up:
            raise PolicyFault("an output is NaN")
        return view.draft().plan() if self.idle else self.inner.decide(view, memo)


class GuardedWorld(World):
    """A world with a policy and shadows of the test's own."""

    def __init__(self, path: Path, policy: Any, *shadows: str, **more: Any) -> None:
        super().__init__(path, **more)
        self.object, self.shadows = policy, Shadows(policies=shadows)

    async def start(self) -> Controller:
        keep = make_policy("fifo-backfill")
        self.controller = Controller(
            Journal(self.path), self.engine, Brains(self.object, keep, keep), pace=self.pace, clock=self.clock, worker=Inline(),
            settings=Settings(policy=self.object.name, shadow=self.shadows),
        )  # fmt: skip
        await self.controller.start()
        await self.drain()
        self.comparer = Comparer(self.controller)
        return self.controller

    async def look(self, comparer: Comparer | None = None) -> None:
        task = asyncio.ensure_future((comparer or self.comparer).look())
        while not task.done():
            await self.drain()
            await asyncio.sleep(0.001)
        await task

    def said(self, kind: EventKind) -> list[tuple[list[int], str]]:
        batch = self.journal()
        return [(r.tolist(), batch.texts.get(i, "")) for i, r in enumerate(batch.records) if r[c.E_KIND] == kind]

    @property
    def who(self) -> InCharge:
        return standing(self.controller.state, self.controller.brains, self.controller.now_us()).who


async def crowd(world: World) -> None:
    """Four slots; long jobs came before short ones, which all wait for a gang of four."""
    world.engine.work_us = {1: 50 * US, 2: 1000 * US, 3: 20 * US, 4: 30 * US}
    for estimate_s in (50.0, 1000.0, 20.0, 30.0):
        await world.submit(replace(job("j", workers=4), estimate_s=estimate_s))


# -- shadow mode ----------------------------------------------------------------------------------------------------
async def test_the_shadow_is_simulated_beside_the_policy_in_force(tmp_path: Path) -> None:
    world = GuardedWorld(tmp_path / "journal.db", make_policy("fifo"), "srtf", "mlf-h")
    await world.start()
    await crowd(world)
    before = (world.controller.rounds.held, len(world.engine.launches))
    due = world.controller.rounds.due_us()
    await world.look()
    assert (world.controller.rounds.held, len(world.engine.launches)) == before and world.controller.rounds.due_us() == due
    ((record, text),) = world.said(EventKind.SHADOWED)
    assert (record[c.E_A], record[c.E_B], record[c.E_C]) == (Skip.NO, 6 * H * US, 4)
    told = json.loads(text)
    assert (told["in_force"], told["horizon_s"], told["jobs"], told["draws"]) == ("fifo", 6 * H, 4, 4)
    assert told["estimates"] == {"progress": 0, "others": 0, "announced": 4, "nothing": 0}
    names = [(fate["policy"], fate["role"]) for fate in told["policies"]]
    assert names == [("fifo", "policy"), ("srtf", "shadow"), ("mlf-h", "shadow")]
    fifo, srtf, _ = told["policies"]
    assert srtf["avg_jct_s"] < 0.8 * fifo["avg_jct_s"] and srtf["reward"] > fifo["reward"]
    assert not world.said(EventKind.GUARDED), "fifo has no teacher"
    await world.to(1200 * US)
    assert len(world.engine.launches) == 4


async def test_with_nobody_there_or_nobody_to_compare_nothing_is_said(tmp_path: Path) -> None:
    world = GuardedWorld(tmp_path / "journal.db", make_policy("fifo"), "srtf")
    await world.start()
    await world.look()
    assert not world.said(EventKind.SHADOWED)
    alone = GuardedWorld(tmp_path / "other.db", make_policy("fifo"))
    await alone.start()
    await crowd(alone)
    await alone.look()
    assert not alone.said(EventKind.SHADOWED)


async def test_a_comparison_that_can_not_be_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = GuardedWorld(tmp_path / "journal.db", make_policy("fifo"), "srtf")
    await world.start()
    await crowd(world)
    ticks = iter(range(10_000))
    await world.look(Comparer(world.controller, clock=lambda: 20.0 * next(ticks)))
    world.comparer._busy = True
    await world.look()
    world.comparer._busy = False

    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no jobs\nat all")

    monkeypatch.setattr(shadow_live, "compare", fails)
    await world.look()
    monkeypatch.undo()
    await world.look()
    said = [(record[c.E_A], text) for record, text in world.said(EventKind.SHADOWED)]
    assert [code for code, _ in said] == [Skip.BUDGET, Skip.RUNS, Skip.FAILED, Skip.NO]
    assert [text for _, text in said[:3]] == [
        "2 policies and 4 jobs: not one simulation of each within 30 s",
        "the comparison before still runs",
        "ZeroDivisionError: no jobs\\nat all",
    ]
    told = shadow_report(str(tmp_path))
    assert told["comparisons"] == 1 and told["skipped"] == {"still_ran": 1, "over_budget": 1, "failed": 1}


@pytest.mark.parametrize("shadow", ["gandiva", "tiresias:variant=gittins", "mlf-h:placement=task"])
async def test_a_shadow_with_a_memo_knows_the_past(shadow: str, tmp_path: Path) -> None:
    world = GuardedWorld(tmp_path / "journal.db", make_policy("fifo"), shadow)
    await world.start()
    await crowd(world)
    await world.look()
    await world.to(60 * US)
    await world.look()
    first, then = (json.loads(text) for _, text in world.said(EventKind.SHADOWED))
    assert first["policies"][1]["policy"] == shadow and then["jobs"] == 3


async def test_a_reload_changes_the_shadows(tmp_path: Path) -> None:
    world = GuardedWorld(tmp_path / "journal.db", make_policy("fifo"), "srtf")
    await world.start()
    await crowd(world)
    await world.look()
    settings = world.controller.intake.settings
    world.controller.intake.obey(replace(settings, shadow=Shadows(policies=("sjf",), horizon_s=60.0)))
    await world.look()
    said = [json.loads(text) for _, text in world.said(EventKind.SHADOWED)]
    assert [one["policies"][1]["policy"] for one in said] == ["srtf", "sjf"] and said[1]["horizon_s"] == 60


def test_every_hour_in_virtual_time() -> None:
    """A controller whose jobs are long: a comparison an hour; one that takes over an hour makes the next be left out."""
    codes: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        keep = make_policy("fifo-backfill")
        engine = SimulatedEngine(Machine((NodeInfo("n0", 2, "gpu", 64_000, 10**12),)))
        settings = Settings(policy="fifo", shadow=Shadows(policies=("srtf",)))
        controller = Controller(
            MemoryJournal([]), engine, Brains(make_policy("fifo"), keep, keep), clock=VirtualClock(), settings=settings
        )
        heard: list[Any] = []
        controller.hearers.append(lambda batch: heard.append(batch.records[batch.records[:, c.E_KIND] == EventKind.SHADOWED]))
        await controller.start()
        tasks = [asyncio.create_task(controller.run()), asyncio.create_task(keep_compared(controller))]
        for i in range(4):
            spec = replace(job(f"j{i}", workers=2, estimate_s=5 * H), run=Script(work_s=5.0 * H, tasks=2).text())
            await controller.submit(spec)
        await asyncio.sleep(2.5 * H)
        loop.think_s = lambda: 1.2 * H / 2  # a comparison is two calls in a thread
        await asyncio.sleep(2 * H)
        codes.extend(int(record[c.E_A]) for records in heard for record in records)
        times = [int(record[c.E_T]) // (H * US) for records in heard for record in records]
        assert times == [1, 2, 4, 4]
        for task in tasks:
            task.cancel()

    run_virtual(main)
    assert codes == [Skip.NO, Skip.NO, Skip.RUNS, Skip.NO]


# -- the guard ------------------------------------------------------------------------------------------------------
async def test_a_policy_that_does_worse_loses_its_place_and_gets_it_back(tmp_path: Path) -> None:
    moody = Moody()
    world = GuardedWorld(tmp_path / "journal.db", Taught(moody, make_policy("fifo")))
    await world.start()
    moody.idle = True
    await crowd(world)
    assert not world.engine.launches
    await world.look()
    assert world.who is InCharge.TEACHER
    await world.to(10 * US)
    assert [launch.job for launch in world.engine.launches] == [1], "fifo decides now"
    await world.look()
    moody.idle = False
    await world.look()
    assert world.who is InCharge.TEACHER, "once is not enough"
    await world.look()
    assert world.who is InCharge.POLICY
    await world.to(2000 * US)
    order = [launch.job for launch in world.engine.launches]
    assert order == [1, 3, 4, 1, 2], "the shortest first again, before the one that runs"
    said = world.said(EventKind.GUARDED)
    assert [(record[c.E_A], record[c.E_ATTEMPT]) for record, _ in said] == [(1, 0), (1, 0), (1, 1), (0, 2)]
    assert "over 5% better, so fifo decides" in said[0][1] and said[3][1].endswith("moody decides again")
    first = json.loads(world.said(EventKind.SHADOWED)[0][1])
    assert [(fate["policy"], fate["role"]) for fate in first["policies"]] == [("moody", "policy"), ("fifo", "teacher")]
    assert first["policies"][0]["completed"] == 0 and first["policies"][1]["completed"] == 4
    told = shadow_report(str(tmp_path))
    assert [one["decides"] for one in told["guard"]] == ["teacher", "policy"]


async def test_the_guard_survives_a_restart(tmp_path: Path) -> None:
    moody = Moody()
    world = GuardedWorld(tmp_path / "journal.db", Taught(moody, make_policy("fifo")))
    await world.start()
    moody.idle = True
    await crowd(world)
    await world.look()
    moody.idle = False
    await world.look()
    before = standing(world.controller.state, world.controller.brains, 0)
    await world.controller.close()
    await world.start()
    assert standing(world.controller.state, world.controller.brains, 0) == before and before.who is InCharge.TEACHER
    await world.look()
    assert world.who is InCharge.POLICY, "the row of good comparisons goes on, too"


async def test_why_says_who_decides_and_explains_by_him(tmp_path: Path) -> None:
    moody = Moody()
    world = GuardedWorld(tmp_path / "journal.db", Taught(moody, make_policy("fifo")))
    await world.start()
    moody.idle = True
    await crowd(world)
    told = await why_live(world.controller, world.controller.find("j-4"))
    assert told["policy"] == "moody" and told["notes"] == []
    await world.look()
    await world.to(2 * US)
    told = await why_live(world.controller, world.controller.find("j-4"))
    assert told["policy"] == "fifo" and told["notes"][0].startswith("fifo decides for moody: in the last comparison")


async def test_a_policy_that_gives_up_is_covered_and_on_probation(tmp_path: Path) -> None:
    moody = Moody()
    world = GuardedWorld(tmp_path / "journal.db", Taught(moody, make_policy("fifo")))
    await world.start()
    moody.gives_up = True
    await crowd(world)
    assert [launch.job for launch in world.engine.launches] == [1]
    await world.to(60 * US)
    said = world.said(EventKind.REFUSED)
    assert {text for _, text in said} == {"moody gave the round up: an output is NaN"} and {r[c.E_B] for r, _ in said} == {1}
    assert world.who is InCharge.TEACHER
    assert shadow_report(str(tmp_path))["covered_rounds"] == len(said) == 3
    moody.gives_up = False
    await world.to(700 * US)
    await world.submit(replace(job("n", workers=1), estimate_s=5.0))
    assert world.who is InCharge.POLICY and len(world.said(EventKind.REFUSED)) == 3


def test_a_policy_that_is_late_is_covered_by_its_teacher() -> None:
    """It takes 5 s and more: each round is the teacher's, 5 s late at most."""
    waited: list[float] = []
    texts: list[str] = []

    class Late(Moody):
        pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        keep = make_policy("fifo-backfill")
        engine = SimulatedEngine(Machine((NodeInfo("n0", 8, "gpu", 64_000, 10**12),)))
        policy = Taught(Late(), make_policy("fifo"))
        controller = Controller(
            MemoryJournal([]), engine, Brains(policy, keep, keep), pace=Pace(meanwhile=None), clock=VirtualClock()
        )
        controller.hearers.append(lambda batch: texts.extend(
            batch.texts[i] for i, r in enumerate(batch.records) if r[c.E_KIND] == EventKind.REFUSED and r[c.E_A] == TIMED_OUT
            and r[c.E_B] == 1
        ))  # fmt: skip
        await controller.start()
        running = asyncio.create_task(controller.run())
        thinks = iter([30.0, 0.01] * 1000)  # the policy, then its teacher
        loop.think_s = lambda: next(thinks)
        for i in range(3):
            record, _ = await controller.submit(replace(job(f"j{i}", estimate_s=20.0), run=Script(work_s=20.0, tasks=1).text()))
            while record.first_started_us is None:
                await controller.changed(1.0)
            waited.append((record.first_started_us - record.submitted_us) / US)
            await asyncio.sleep(100)
        running.cancel()

    run_virtual(main)
    assert max(waited) <= 6.0 and texts and set(texts) == {"moody has not decided within 5 s"}, (waited, texts)


# -- the report -----------------------------------------------------------------------------------------------------
async def reported(folder: Path, looks: int = 6) -> GuardedWorld:
    world = GuardedWorld(folder / "journal.db", make_policy("fifo"), "srtf")
    await world.start()
    await crowd(world)
    for i in range(looks):
        await world.to((i + 1) * US)
        await world.look()
    return world


async def test_the_report_compares_hour_by_hour_and_over_all(tmp_path: Path, capsys: Captured) -> None:
    await reported(tmp_path)
    told = shadow_report(str(tmp_path))
    assert told["comparisons"] == len(told["hours"]) == 6 and told["message"] == ""
    row = told["hours"][0]
    assert row["difference"]["avg_jct_s"] == row["other"]["avg_jct_s"] - row["policy"]["avg_jct_s"] < 0
    (pair,) = told["summary"]
    assert (pair["policy"], pair["other"], pair["role"], pair["hours"]) == ("fifo", "srtf", "shadow", 6)
    jct = pair["differences"]["avg_jct_s"]
    assert jct["low"] <= jct["median"] <= jct["high"] < 0 and jct["verdict"] == "better"
    assert pair["differences"]["completed"] == {"median": 0.0, "low": 0.0, "high": 0.0, "verdict": "unclear"}
    assert run_command(["report", "--shadow", "--journal", str(tmp_path / "journal.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert run_command(["report", "--shadow", "--journal", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "fifo / srtf (shadow), 6 comparisons" in shown and "avg_jct_s" in shown and "better" in shown
    assert shown.count(" / ") >= 6 * 6


async def test_a_journal_without_comparisons_says_what_to_do(tmp_path: Path, capsys: Captured, monkeypatch: Any) -> None:
    world = GuardedWorld(tmp_path / "journal.db", make_policy("fifo"))
    await world.start()
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    assert run_command(["report", "--shadow"]) == 0
    shown = capsys.readouterr().out
    assert "no comparison in this journal yet" in shown and "headway up --shadow POLICY" in shown
    assert shadow_report(str(tmp_path))["summary"] == []


def test_differences_by_hand() -> None:
    found = difference("avg_wait_s", [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0])
    assert found == {"median": -2.5, "low": None, "high": None, "verdict": "unclear"}, "four hours are too few"
    assert difference("avg_wait_s", [1.0] * 5, [3.0] * 5) == {"median": -2.0, "low": -2.0, "high": -2.0, "verdict": "better"}
    assert difference("reward", [1.0] * 5, [3.0] * 5)["verdict"] == "worse"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shadow", "--policy", "srtf"], "expected no workload, cluster, policy or output beside it"),
        (["--journal", "x", "-w", "y", "-c", "1x1", "-p", "fifo", "-o", "z"], "--journal: expected --shadow beside it"),
        (["--shadow", "--journal", "/nonexistent/journal.db"], "no such file"),
        (["-w", "y", "-c", "1x1", "-o", "z"], "Missing option '--policy'"),
    ],
)
def test_bad_words_are_refused(words: list[str], message: str, capsys: Captured) -> None:
    assert run_command(["report", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_comparison_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    import numpy as np

    from headway.core.events import EMPTY, EventBatch

    journal = Journal(tmp_path / "journal.db")
    journal.lead()
    journal.append(EventBatch(np.array([[5 * US, EventKind.SHADOWED, 0, 0, 0, 0, 1, 0]]), EMPTY.pool, {0: '{"policies": [{}]}'}))
    journal.close()
    with pytest.raises(UserError, match="the comparison at 5 s can't be read"):
        shadow_report(str(tmp_path))


def test_oracles_are_no_shadows() -> None:
    with pytest.raises(UserError, match="for simulation only"):
        parse_shadows(["oracle-srtf"])
    assert choose("srtf").spec == "srtf"


# -- what people see, and say ---------------------------------------------------------------------------------------
async def test_who_decides_is_told_over_the_api(tmp_path: Path) -> None:
    from headway.api.jobviews import deciding_json

    moody = Moody()
    world = GuardedWorld(tmp_path / "journal.db", Taught(moody, make_policy("fifo")))
    await world.start()
    moody.idle = True
    await crowd(world)
    fine = {"policy": "moody", "decides": "moody", "in_charge": "policy", "why": "", "since": None}
    assert deciding_json(world.controller) == fine
    await world.look()
    told = deciding_json(world.controller)
    assert (told["decides"], told["in_charge"]) == ("fifo", "teacher") and told["why"].startswith("fifo decides for moody")


def test_the_settings_say_which_shadows_there_are() -> None:
    text = '[shadow]\npolicies = ["srtf", " mlf-h ", "srtf"]\nevery = "10m"\nhorizon = "2h"\n'
    found = parse_settings(text)
    assert found.shadow == Shadows(policies=("srtf", "mlf-h"), every_s=600, horizon_s=7200)
    assert found.to_json()["shadow"] == {"policies": ["srtf", "mlf-h"], "every": "10m", "horizon": "2h", "budget": "30s"}
    assert parse_settings("").shadow == Shadows()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('policies = ["srft"]', "headway.toml:2: shadow.policies: .*did you mean 'srtf'"),
        ('policies = "srtf"', "shadow.policies: expected a list of texts"),
        ('every = "0s"', "shadow.every: expected a time from 1s to 30d"),
        ('evry = "1h"', "did you mean 'every'"),
        ("policies = [" + ", ".join(f'"las:quantum={n}"' for n in range(1, 10)) + "]", "expected at most 8 policies, got 9"),
    ],
)
def test_mistakes_in_the_settings(line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_settings(f"[shadow]\n{line}\n")


def test_the_command_lines_shadows_stand_above_the_files(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text('[shadow]\npolicies = ["srtf"]\nevery = "2h"\n')
    given = Given(home=Home(tmp_path), file=file, policy="fifo")
    assert given.load().shadow == Shadows(policies=("srtf",), every_s=7200)
    assert replace(given, shadows=("mlf-h", "sjf")).load().shadow == Shadows(policies=("mlf-h", "sjf"), every_s=7200)
    with pytest.raises(UserError, match="did you mean 'mlf-h'"):
        replace(given, shadows=("mlf-hh",)).load()
