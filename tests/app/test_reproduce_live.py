"""`headway reproduce mlfs --live`: the fit by hand, the foretelling of a made-up world, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.app.test_replay import Book

from headway.app import reproduce_live as live
from headway.app.live_jobs import EPOCHS, LiveJob, draw_jobs, spec_of
from headway.app.live_profile import distribution, fit, foretell
from headway.app.replay_facts import gather
from headway.app.reproduce_live import LiveRequest
from headway.core import columns as c
from headway.core.columns import EventKind, Name, Reason
from headway.core.errors import UserError
from headway.core.events import EventBatch
from headway.core.model import Model, Progress, validate
from headway.runtime.journal import Journal

WARM_S, AGAIN_S, START_S, SAVE_S = 3.0, 4.0, 0.5, 1.0
PACE_S = {"svm": 0.01, "mlp": 0.02}


def fitting_run() -> Book:
    """Three jobs of two models on one slot, one after the other; the second is stopped once, after 5 s."""
    book = Book()
    t = 0.0
    for number, (model, steps) in enumerate((("svm", 100), ("mlp", 200), ("svm", 500)), start=1):
        book.job(number, t, model=Model(name=model), progress=Progress(total=steps))
        work = steps * PACE_S[model]
        book.start(t, number, 1, up=t + START_S)
        if number == 2:
            book.say(t + START_S + 5, EventKind.STOP_REQUESTED, number, 1, a=Reason.PREEMPTED)
            book.say(t + START_S + 5 + SAVE_S, EventKind.STOPPED, number, 1, a=Reason.PREEMPTED, b=-1)
            t += START_S + 5 + SAVE_S
            book.start(t, number, 2, up=t + START_S)
            t += START_S + AGAIN_S + work - (5 - WARM_S)
            book.say(t, EventKind.COMPLETED, number, 2)
        else:
            t += START_S + WARM_S + work
            book.say(t, EventKind.COMPLETED, number, 1)
    return book


def test_the_profile_is_the_world_that_made_the_run() -> None:
    facts = gather(fitting_run().recorded(), "fit")
    profile = fit([facts], facts)
    assert profile.warm_us / 1e6 == pytest.approx(WARM_S, rel=1e-6)
    assert profile.kinds["svm"].pace_us / 1e6 == pytest.approx(PACE_S["svm"], rel=1e-6)
    # One preempted job of the other model: its pace and what going on costs can't be told apart, but for their sum.
    told = 200 * profile.kinds["mlp"].pace_us + profile.again_us
    assert told / 1e6 == pytest.approx(200 * PACE_S["mlp"] + AGAIN_S, rel=1e-6)
    assert (profile.start_us, profile.save_us) == (START_S * 1e6, SAVE_S * 1e6)


def test_work_is_learnt_where_nobody_is_stopped_and_stopping_where_many_are() -> None:
    """By hand: 100 and 500 steps in 1 + 2 and 5 + 2 s, so 10 ms a step and 2 s before the first; a second attempt and saving are
    those of the other run."""
    steady = Book()
    for number, steps in enumerate((100, 500), start=1):
        steady.job(number, 0, model=Model(name="svm"), progress=Progress(total=steps))
    steady.start(0, 1, 1, up=0.25)
    steady.say(3.25, EventKind.COMPLETED, 1, 1)
    steady.start(3.25, 2, 1, up=3.5)
    steady.say(10.5, EventKind.COMPLETED, 2, 1)
    stopped = gather(fitting_run().recorded(), "stopped")
    profile = fit([gather(steady.recorded(), "steady")], stopped)
    assert {name: kind.pace_us for name, kind in profile.kinds.items()} == {"svm": pytest.approx(10_000, rel=1e-6)}
    assert profile.warm_us == pytest.approx(2e6, rel=1e-6) and profile.start_us == 250_000
    assert (profile.again_us, profile.save_us) == (fit([stopped], stopped).again_us, SAVE_S * 1e6)


def test_jobs_are_foretold_from_other_runs_alone() -> None:
    """Two jobs of 300 and 200 steps at once on one slot, under fifo: 0.5 + 3 + 3 s; then 0.5 + 3 + 2 s. The second really took a
    second longer than that: 12 s from its submission are foretold, and 13 s have passed."""
    facts = gather(fitting_run().recorded(), "fit")
    profile = fit([facts], facts)
    book = Book()
    book.job(1, 0, model=Model(name="svm"), progress=Progress(total=300))
    book.job(2, 0, model=Model(name="svm"), progress=Progress(total=200))
    book.start(0, 1, 1, up=0.5)
    book.say(6.5, EventKind.COMPLETED, 1, 1)
    book.start(6.5, 2, 1, up=7)
    book.say(13, EventKind.COMPLETED, 2, 1)
    facts = gather(book.recorded(), "judged")
    judged, notes = foretell(facts, profile, "fifo", 1, 0.2)
    assert [one.sim_jct_s for one in judged] == pytest.approx([6.5, 12.0], abs=0.001)
    assert [one.error_frac for one in judged] == pytest.approx([0, 1 / 13], abs=0.001)
    assert not notes and [one.kind for one in judged] == ["svm", "svm"]


def test_errors_by_hand() -> None:
    assert distribution([0.3, 0.1, 0.2]) == {"jobs": 3, "median": 0.2, "p90": pytest.approx(0.28), "max": 0.3}
    assert distribution([])["median"] is None
    good = {"jobs": 60, "median": 0.08, "p90": 0.2, "max": 0.5}
    assert "not reached" not in live.verdict(good) and "reached" in live.verdict(good)
    assert "not reached" in live.verdict(good | {"p90": 0.3}) and "50 are wanted" in live.verdict(good | {"jobs": 8})


def test_a_seed_stands_for_the_same_jobs_of_all_types(tmp_path: Path) -> None:
    jobs = draw_jobs(3, 20)
    assert jobs == draw_jobs(3, 20) and jobs != draw_jobs(4, 20)
    assert {job.model for job in jobs} == set(EPOCHS) and [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert all(validate(spec_of(job, tmp_path, tmp_path)) == [] for job in jobs)
    assert len({spec_of(job, tmp_path, tmp_path).checkpoint.dir for job in jobs}) == 20


def test_policies_with_parameters_are_parted() -> None:
    assert live.split_policies("mlf-h+mlf-c, tiresias:threshold=20,queues=3,fifo") == [
        "mlf-h+mlf-c", "tiresias:threshold=20,queues=3", "fifo",
    ]  # fmt: skip


def test_runs_are_kept_and_go_on(tmp_path: Path) -> None:
    """Each run writes a journal made by hand; the second time nothing runs, and a lost journal is run again."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("")
    ran: list[str] = []

    def run_one(policy: str, jobs: Sequence[LiveJob], *, scripts: Path, home: Path, slots: int) -> Path:
        ran.append(f"{policy} {len(jobs)}")
        home.mkdir(exist_ok=True)
        journal = Journal(home / "journal.db")
        journal.lead()
        journal.append(_batch())
        journal.close()
        return home / "journal.db"

    request = LiveRequest(out=tmp_path / "out", jobs=3, policies="fifo,srtf", seeds=1, slots=1, scripts=tmp_path / "scripts")
    told: list[tuple[int, int]] = []
    for _ in range(2):
        ready = live.prepare(request)
        report, numbers, files = live.run(request, ready, tell=lambda *at: told.append(at), run_one=run_one)
    assert ran == [*(f"{policy} 3" for policy in live.FIT_POLICIES), "fifo 3", "srtf 3"]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)] * 2
    assert all(path.is_file() for path in files) and report.errors["jobs"] == 6
    json.dumps(numbers, allow_nan=False)
    page = (tmp_path / "out" / live.HTML).read_text()
    assert (page.count("<circle") == 6 + 2 and "not reached" not in page.split("<pre>")[0]) or "50 are wanted" in page
    (tmp_path / "out" / "fifo-1" / "journal.db").unlink()
    live.run(request, live.prepare(request), run_one=run_one)
    assert ran[4:] == ["fifo 3"]


def _batch() -> EventBatch:
    recorded = fitting_run().recorded()
    assert recorded.batch.records[0, c.E_KIND] == EventKind.CLUSTER_SET and Name.JOB
    return recorded.batch


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"jobs": 0}, "jobs: expected a whole number from 1"),
        ({"seeds": 0}, "seeds"),
        ({"policies": "fifo,fifo"}, "stands twice"),
        ({"policies": "fifoo"}, "unknown policy"),
        ({"scripts": Path("nowhere")}, r"has no train\.py"),
        ({"slots": 0}, "slots"),
    ],
)
def test_mistakes(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UserError, match=word):
        live.prepare(LiveRequest(**{"out": tmp_path / "out", "scripts": tmp_path, **change}))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.live
def test_real_processes_are_foretold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that work for a known time, on real engines: the whole of it, with a policy that stops jobs to fit on."""
    from headway.app import live_jobs

    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "train.py").write_text(Path(__file__).with_name("stand_in_train.py").read_text())
    monkeypatch.setattr(live_jobs, "GAP_S", 0.4)
    monkeypatch.setattr(live, "FIT_POLICIES", ("fifo", "tiresias:threshold=1,queues=2"))
    request = LiveRequest(out=tmp_path / "out", jobs=6, policies="fifo", seeds=1, slots=2, scripts=scripts)
    report, _, _ = live.run(request, live.prepare(request))
    assert report.errors["jobs"] == 6 and report.figures["fifo"][0]["finished"] == 6
    assert report.errors["median"] < 1.0, "how near it comes is measured on a quiet machine, not here"
    assert report.profile["warm_up_s"] > 0.1 and report.profile["start_s"] > 0
