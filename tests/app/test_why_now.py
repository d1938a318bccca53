"""`headway why` of a running controller: jobs that wait, run, and have ended; what is learned from forecasts; the words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake import US, World, job

from headway.app import live, why_live
from headway.app.calibration import SCORES_MIN, Range
from headway.app.why_text import span, text
from headway.cli import run_command
from headway.core.errors import UserError

Json = dict[str, Any]


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path / "journal.db", "fifo")
    await made.start()
    return made


async def ask(world: World, public_id: str) -> Json:
    told = await why_live.why_live(world.controller, world.controller.find(public_id))
    assert json.loads(json.dumps(told, allow_nan=False)) == told, "it is plain JSON"
    return told


def forget(world: World) -> None:
    """The forecast that is kept for a second."""
    why_live.forecaster_of(world.controller)._newest = None


async def test_a_job_that_waits_is_told_when_it_starts(world: World) -> None:
    world.engine.work_us = {1: 100 * US, 2: 50 * US}
    await world.submit(replace(job("a", workers=4), estimate_s=100.0), "first")
    await world.to(20 * US)
    await world.submit(replace(job("b", workers=4), estimate_s=50.0, deadline_s=1e6), "second")
    told = await ask(world, "second")
    assert (told["job"], told["number"], told["phase"], told["policy"]) == ("second", 2, "queued", "fifo")
    assert told["reason"]["needs_gpus"] == 4 and told["rank"]["waiting_rank"] == 1 and told["terms"]
    found = told["forecast"]
    assert found["samples"] == 16 and not found["calibrated"] and found["deadline_probability"] == 1.0
    start, end = found["start_s"], found["finish_s"]
    assert 0 < start["p10"] < start["p50"] < start["p90"] < end["p90"]
    assert start["p50"] == pytest.approx(80, rel=0.7), "80 s are left by the first one's word, give or take"
    shown = text(told)
    assert f"starts  probably in {span(start['p50'])} (" in shown and "16 simulations)" in shown and "helps" in shown
    assert "its deadline is met in 100% of them" in shown
    same = await ask(world, "second")
    assert same["forecast"] == found, "kept for a second"


async def test_a_job_that_runs_is_told_why_and_until_when(world: World) -> None:
    world.engine.work_us = {1: 100 * US}
    await world.submit(replace(job("a", workers=2), estimate_s=100.0, time_limit_s=500.0), "first")
    await world.to(30 * US)
    told = await ask(world, "first")
    assert told["phase"] == "running" and told["reason"]["word"] == "running"
    found = told["forecast"]
    assert found["start_s"] is None and found["stop_probability"] == 0.0
    assert found["finish_s"]["p90"] <= 470, "never beyond the time limit"
    assert [threat["what"] for threat in told["threats"]] == ["time-limit"]
    shown = text(told)
    assert "ends    probably in" in shown and "loses   its place to its time limit, in 8 min" in shown


async def test_one_that_would_be_stopped_for_another_is_warned(tmp_path: Path) -> None:
    world = World(tmp_path / "journal.db", "srtf")
    await world.start()
    world.engine.work_us = {1: 10_000 * US, 2: 10 * US}
    world.engine.save_us = 60 * US
    await world.submit(replace(job("a", workers=4), estimate_s=10_000.0), "long")
    await world.to(10 * US)
    await world.submit(replace(job("b", workers=4), estimate_s=10.0), "short")
    told = await ask(world, "short")
    assert told["phase"] == "queued" and told["reason"]["word"] == "waits-for-stop"
    assert told["forecast"]["start_s"]["p50"] < 120
    long = await ask(world, "long")
    assert long["phase"] == "stopping" and text(long)


async def test_an_ended_job_is_told_how_it_ended(world: World) -> None:
    world.engine.work_us, world.engine.exit_codes = {1: 10 * US, 2: 10 * US}, {2: [3] * 9}
    await world.submit(job("a"), "good")
    await world.submit(replace(job("b"), retry_max=0), "bad")
    await world.to(60 * US)
    good, bad = await ask(world, "good"), await ask(world, "bad")
    assert (good["phase"], good["ended_s"], good["run_s"], good["waiting_s"]) == ("completed", 10.0, 10.0, 0.0)
    assert text(good).startswith("job good (a) completed 50 s ago: it is done.")
    assert bad["reason"]["words"] == "it failed with exit code 3" and "forecast" not in bad


async def test_forecasts_are_held_against_what_happens(world: World) -> None:
    forecaster = why_live.forecaster_of(world.controller)
    assert why_live.forecaster_of(world.controller) is forecaster
    world.engine.work_us = {n: 10 * US for n in range(1, 40)}
    for n in range(1, 31):
        await world.submit(replace(job(f"j{n}", workers=4), estimate_s=40.0), f"j{n}")
    await ask(world, "j30")
    assert set(forecaster.starts.open) == set(range(2, 31)) and set(forecaster.ends.open) == set(range(1, 31))
    await world.to(260 * US)
    forget(world)
    told = await ask(world, "j30")
    assert forecaster.starts.count == 26 >= SCORES_MIN, "27 have started, the first one before it was asked about"
    said = forecaster._newest
    assert said is not None and told["forecast"]["calibrated"]
    raw = said[2].start(said[2].column(30) or 0)
    moved = told["forecast"]["start_s"]
    assert raw.p50 is not None and moved["p90"] < raw.p90, "all were four times too long: it comes earlier than was said"
    assert any("the last 26 forecasts" in note for note in told["forecast"]["notes"])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89, "89 s"), (240, "4 min"), (5000, "83 min"), (5500, "1.5 h"), (80_000, "22 h"), (200_000, "2.3 days")],
)
def test_lengths_of_time_in_words(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_the_command_needs_a_journal_for_another_time_or_policy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    monkeypatch.delenv("HEADWAY_URL", raising=False)
    assert run_command(["why", "a", "--at", "3"]) == 2
    assert "needs --journal FILE" in capsys.readouterr().err
    assert run_command(["why", "a"]) != 0
    assert "no controller runs" in capsys.readouterr().err
    asked: list[tuple[str, str]] = []

    class Client(live.Client):
        def ask(self, method: str, path: str, **more: Any) -> Json:
            asked.append((method, path))
            return {}

    assert live.why(Client("http://x", "t"), "a b") == {} and asked == [("GET", "/v1/jobs/a%20b/why")]
    with pytest.raises(UserError):
        live.why(Client("http://x", "t"), "..")


def test_a_range_without_an_end() -> None:
    assert Range(1.0, None, None).to_json() == {"p10": 1.0, "p50": None, "p90": None}
