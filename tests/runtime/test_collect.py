"""From what jobs leave in files, and say over HTTP, to events. One job of 1000 steps, which lives from second 0."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBatch
from headway.core.model import Checkpoint, JobSpec, Progress
from headway.core.state import State
from headway.engines.base import Launch
from headway.progress.told import Source, Told
from headway.runtime import collect
from headway.runtime.collect import Reporting
from headway.runtime.launch import spec_text
from headway.runtime.metricfile import BYTES_MAX, MetricFile, read_points
from headway.runtime.progress import Fault
from headway.testing import builders

US = 1_000_000
LONG_S = 1_000_000.0
"""When everything is believed."""


class Scene:
    """A state, a home, and the logs of an engine."""

    def __init__(self, root: Path, units: int = 1000, **spec: object) -> None:
        self.root, self.woken = root, 0
        self.state: State = builders.state([1], [builders.job("a", units=units)], running={"a": [(0, [0])]})
        self.state.files[0] = spec_text(JobSpec(name="a", run="true", workdir=str(root / "work"), **spec))  # type: ignore[arg-type]
        self.t = LONG_S
        (root / "home").mkdir(exist_ok=True)
        self.reporting = self.make()
        self.launch = self.reporting.launching(Launch(1, 0, "a-1", 1, ()), self.state)

    def make(self) -> Reporting:
        return Reporting(self.root / "home", self.log, self.wake, lambda: "http://127.0.0.1:1")

    def wake(self) -> None:
        self.woken += 1

    def log(self, job: int, attempt: int, rank: int) -> Path:
        return self.root / "logs" / str(job) / str(attempt) / f"{rank}.log"

    def prints(self, text: str) -> None:
        path = self.log(0, 1, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text.encode())

    def reports(self, *lines: dict[str, object] | bytes) -> None:
        with open(f"{self.launch.reports_dir}/1-0.jsonl", "ab") as file:
            file.write(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))

    def look(self) -> EventBatch:
        """One look of the thread, and one step of the loop a second later."""
        self.t += 1
        first = self.reporting.due(self.state, round(self.t * US))
        assert not len(first) or first.records[0, c.E_KIND] == EventKind.OBSERVED
        self.state.apply(first)
        self.reporting._thread.tick()
        self.t += 1
        batch = self.reporting.due(self.state, round(self.t * US))
        self.state.apply(batch)
        return batch

    def end(self) -> EventBatch:
        batch = self.reporting.ending(self.state, [(0, 1)], round(self.t * US))
        self.state.apply(batch)
        return batch


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def observed(batch: EventBatch) -> list[tuple[int, int]]:
    """Steps and nano-losses."""
    return [(int(r[c.E_A]), int(r[c.E_B])) for r in batch.records if r[c.E_KIND] == EventKind.OBSERVED]


def test_output_and_reports(scene: Scene) -> None:
    scene.prints("step=3 loss=0.5\nstep=4 loss=0.2")
    assert observed(scene.look()) == [(3, 500_000_000)]  # the second line has no end yet
    scene.prints("5\n")
    assert observed(scene.look()) == [(4, 250_000_000)] and scene.woken == 2
    scene.reports({"step": 9, "loss": 0.125})
    scene.prints("step=99 loss=9\n")
    assert observed(scene.look()) == [(9, 125_000_000)]
    assert observed(scene.look()) == []


def test_the_end_takes_in_what_is_left_without_a_line_end(scene: Scene) -> None:
    scene.prints("step=7 loss=0.5")
    assert observed(scene.end()) == [(7, 500_000_000)]
    scene.prints("\nstep=8 loss=0.25\n")
    assert observed(scene.look()) == []


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_a_torn_line_waits_for_its_rest(scene: Scene, cut: int) -> None:
    line = json.dumps({"step": 5, "loss": 0.5, "t": 1}).encode() + b"\n"
    scene.reports(line[:cut])
    first = observed(scene.look())
    scene.reports(line[cut:])
    assert first + observed(scene.look()) == [(5, 500_000_000)]


def test_the_tasks_are_told_what_they_need_and_attempts_differ(scene: Scene) -> None:
    told, tokens = scene.launch.told, scene.reporting.tokens
    assert tokens is not None
    assert told["HEADWAY_URL"] == "http://127.0.0.1:1" and told["HEADWAY_RESUME"] == "" and len(told["HEADWAY_JOB_UID"]) == 16
    assert tokens.read(told["HEADWAY_TOKEN"]) == (0, 1) and tokens.live(told["HEADWAY_TOKEN"], scene.state) == (0, 1)
    forged = told["HEADWAY_TOKEN"].replace("hwjob_0_1_", "hwjob_0_2_")
    for bad in (forged, "", "hwjob_0_1_", told["HEADWAY_TOKEN"] + "0", "hwjob_٣_1_" + "0" * 32):
        assert tokens.read(bad) is None
    assert tokens.live(tokens.make(0, 2), scene.state) is None and tokens.live(tokens.make(5, 1), scene.state) is None
    again = scene.make()
    assert again.tokens is not None and again.tokens.make(0, 1) == told["HEADWAY_TOKEN"]  # the key is kept


def test_checkpoints(scene: Scene) -> None:
    scene.reports(
        {"saved": "/x", "step": 20}, {"saved": "/x", "step": 10}, {"saved": "/best", "step": 15}, {"saved": "/y", "step": 5000}
    )
    batch = scene.look()
    assert [(int(r[c.E_KIND]), int(r[c.E_A])) for r in batch.records] == [(EventKind.SAVED, 20), (EventKind.SAVED, 15)]
    assert scene.state.J[c.J_UNITS_SAVED, 0] == 20
    faults = [finding["fault"] for finding in scene.reporting.progress_of(scene.state, 0)["findings"]]
    assert faults == [Fault.OLDER_SAVED, Fault.PAST_END]
    told = scene.reporting.launching(Launch(1, 0, "a-1", 2, ()), scene.state).told
    assert told["HEADWAY_RESUME"] == "20"


def test_the_newest_checkpoint_is_what_the_next_attempt_is_told(scene: Scene) -> None:
    scene.reports({"saved": "/x/step-00000020", "step": 20})
    scene.look()
    told = scene.make().launching(Launch(1, 0, "a-1", 2, ()), scene.state).told  # by another controller
    assert (told["HEADWAY_RESUME"], told["HEADWAY_RESUME_PATH"]) == ("20", "/x/step-00000020")
    saved = scene.reporting.progress_of(scene.state, 0)["saved"]
    assert saved["step"] == 20 and 0 <= saved["age_s"] < 60


def test_done(scene: Scene) -> None:
    assert not scene.reporting.is_done(0, 1)
    scene.reports({"done": True})
    scene.end()
    assert scene.reporting.is_done(0, 1) and not scene.reporting.is_done(0, 2)


def test_a_controller_that_starts_again_reads_again_and_counts_nothing_twice(scene: Scene) -> None:
    scene.reports(*({"step": step, "loss": 1 / step} for step in range(1, 51)), {"saved": "/x", "step": 40})
    scene.look()
    assert scene.state.J[c.J_UNITS_DONE, 0] == 50
    scene.reporting = scene.make()
    scene.reporting.start(scene.state)
    scene.reporting._thread.stop()
    assert [int(kind) for kind in scene.look().kinds()] == []
    scene.reports({"step": 60, "loss": 0.5})
    assert observed(scene.look()) == [(60, 500_000_000)]
    scene.reports({"step": 55, "loss": 0.25})  # a step that goes back, as after a resume
    assert observed(scene.look()) == [(55, 250_000_000)]


def test_what_came_while_no_controller_ran_is_not_lost(scene: Scene) -> None:
    scene.reports({"step": 10})
    scene.look()
    scene.reports({"step": 20, "loss": 0.5}, {"saved": "/x", "step": 20}, {"done": True})
    scene.reporting = scene.make()
    scene.reporting.start(scene.state)
    scene.reporting._thread.stop()
    assert [int(kind) for kind in scene.end().kinds()] == [EventKind.SAVED, EventKind.OBSERVED]
    assert scene.reporting.is_done(0, 1) and scene.state.J[c.J_UNITS_DONE, 0] == 20


def test_over_http(scene: Scene) -> None:
    now = round(LONG_S * US)
    batch, findings = scene.reporting.hear(scene.state, 0, 1, [Told(Source.SDK, 0, 5, loss=0.5)], now)
    assert observed(batch) == [(5, 500_000_000)] and findings == []
    for job, attempt, fault in ((0, 2, Fault.STALE), (3, 1, Fault.UNKNOWN)):
        batch, findings = scene.reporting.hear(scene.state, job, attempt, [Told(Source.SDK, 0, 6)], now)
        assert not len(batch) and [finding.fault for finding in findings] == [fault]


def test_a_pattern_of_the_jobs_own(tmp_path: Path) -> None:
    scene = Scene(tmp_path, progress=Progress(pattern=r"it (?P<step>\d+) err (?P<loss>\S+)"))
    scene.prints("it 12 err 0.5\n")
    assert observed(scene.look()) == [(12, 500_000_000)]
    scene.reporting.close()


def test_a_pattern_that_takes_too_long_is_a_finding(tmp_path: Path) -> None:
    scene = Scene(tmp_path, progress=Progress(pattern=r"(?P<step>(a+)+)$"))
    for step in range(1, 5):
        scene.prints("a" * 60 + f"! step={step}\n")
        assert observed(scene.look())[-1][0] == step
    assert [finding["fault"] for finding in scene.reporting.progress_of(scene.state, 0)["findings"]] == [Fault.NO_PATTERN]
    scene.reporting.close()


def test_ten_thousand_reports_a_second(scene: Scene) -> None:
    """A second's worth of raw lines, from file to events: the newest counts, and no checkpoint among them is passed over."""
    scene.state.J[c.J_UNITS_TOTAL, 0] = 0
    lines = [{"step": step, "loss": 1 / step} for step in range(1, 10_001)]
    lines.insert(100, {"saved": "/x", "step": 100})
    scene.reports(*lines)
    began, batches = time.perf_counter(), []
    while not (batches and observed(batches[-1]) and observed(batches[-1])[-1][0] == 10_000):
        batches.append(scene.look())
    assert time.perf_counter() - began < 5.0
    assert [int(r[c.E_A]) for batch in batches for r in batch.records if r[c.E_KIND] == EventKind.SAVED] == [100]
    assert sum(len(observed(batch)) for batch in batches) == len(batches)


def test_output_faster_than_it_can_be_read_is_read_at_its_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "TICK_BYTES", 1 << 13)
    scene.prints("noise\n" * 200_000 + "step=12 loss=0.5\n")
    assert observed(scene.look()) == [(12, 500_000_000)]


def test_two_hundred_silent_jobs_cost_little(tmp_path: Path) -> None:
    scene = Scene(tmp_path, checkpoint=Checkpoint(dir="ckpt"))
    found = next(iter(scene.reporting._attempts.values()))
    for number in range(2, 201):
        scene.reporting._attempts[0, number] = scene.reporting._attempts[0, 1]
    found.up = True
    scene.reporting._thread.tick()
    began = time.process_time()
    for _ in range(10):
        scene.reporting._thread.tick()
    assert (time.process_time() - began) / 10 / collect.TICK_S < 0.1  # 1 % on a machine with nothing else to do


def test_the_metrics_file_is_bounded(tmp_path: Path) -> None:
    metrics = MetricFile(tmp_path, 3)
    other = tuple((f"metric-{n}", 0.5) for n in range(60))
    for step in range(120):
        metrics.write([Told(Source.SDK, 0, step, other=other)] * 50, [], 1, 1.0)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2 and max(sizes) < BYTES_MAX + (1 << 20)


def test_the_curve_for_people(scene: Scene) -> None:
    scene.reports({"step": 1, "loss": float("nan"), "other": {"lr": 0.1}}, {"step": 2, "loss": 0.5, "accuracy": 0.75})
    scene.look()
    points = scene.reporting.progress_of(scene.state, 0)["points"]
    assert [(each["step"], each["loss"], each["accuracy"]) for each in points] == [(1, None, None), (2, 0.5, 0.75)]
    assert read_points(scene.root / "nowhere.jsonl") == ([], {})


def test_without_a_home_nothing_is_collected(tmp_path: Path) -> None:
    reporting = Reporting(None, lambda *_: tmp_path, lambda: None)
    scene = Scene(tmp_path)
    launch = reporting.launching(Launch(1, 0, "a-1", 1, ()), scene.state)
    assert launch.reports_dir == "" and "HEADWAY_TOKEN" not in launch.told
    batch, _ = reporting.hear(scene.state, 0, 1, [Told(Source.SDK, 0, 5)], round(LONG_S * US))
    assert observed(batch) == [(5, c.NOTHING)]
