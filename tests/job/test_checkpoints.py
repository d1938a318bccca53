"""Checkpoints: whole or not there, never overwritten by an older step, found again."""

import dataclasses
import os
from pathlib import Path

import pytest

from headway.job import checkpoints
from headway.job.checkpoints import StepRegression, checkpoint_saved, resume_from, saving
from headway.job.task import Task, read_task


class Told:
    """Takes the place of the sender."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def tell(self, line: dict[str, object]) -> None:
        self.lines.append(line)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    sender = Told()
    monkeypatch.setattr(checkpoints, "SENDER", sender)
    monkeypatch.setattr(checkpoints, "cooperates", lambda: None)
    return sender


@pytest.fixture
def ckpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> Path:
    become(monkeypatch, tmp_path / "ckpt")
    return tmp_path / "ckpt"


def become(monkeypatch: pytest.MonkeyPatch, directory: Path, **other: object) -> None:
    task = Task(in_headway=True, job="7", owner="a", attempt=1, checkpoint_dir=str(directory))
    monkeypatch.setattr(checkpoints, "TASK", dataclasses.replace(task, **other))  # type: ignore[arg-type]


def save(step: int, text: str = "x", **more: object) -> None:
    with saving(step, **more) as path:  # type: ignore[arg-type]
        path.write_text(text)


def save_folder(step: int, **more: object) -> None:
    with saving(step, **more) as path:  # type: ignore[arg-type]
        path.mkdir()
        (path / "weights").write_text("w" * step)
        (path / "sub").mkdir()
        (path / "sub" / "optimizer").write_text("o")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".headway")


def test_the_last_two_stay_and_the_newest_is_found(ckpt: Path, told: Told) -> None:
    for step in (10, 20, 120):
        save_folder(step)
    assert names(ckpt) == ["step-00000020", "step-00000120"]
    assert resume_from() == (120, ckpt / "step-00000120")
    assert [(line["step"], line["saved"]) for line in told.lines][-1] == (120, str(ckpt / "step-00000120"))


def test_an_older_step_is_refused_before_anything_is_written(ckpt: Path) -> None:
    save(20)
    with pytest.raises(StepRegression, match="step 20: step 10 is older"):
        save(10)
    assert names(ckpt) == ["step-00000020"]


def test_the_same_step_again_keeps_the_durable_one(ckpt: Path, told: Told) -> None:
    save(20, "first")
    save(20, "second")
    assert (ckpt / "step-00000020").read_text() == "first" and len(told.lines) == 2


def test_a_block_that_raises_leaves_nothing(ckpt: Path, told: Told) -> None:
    with pytest.raises(ZeroDivisionError), saving(5) as path:
        path.write_text("half")
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), saving(5):
        pass
    assert names(ckpt) == [] and resume_from() is None and told.lines == []


@pytest.mark.parametrize("left", range(0, 120, 7))
def test_a_torn_checkpoint_falls_back_to_the_one_before_and_can_be_saved_again(ckpt: Path, left: int) -> None:
    save(10, "o" * 100)
    save(20, "n" * 120)
    os.truncate(ckpt / "step-00000020", left)
    assert resume_from() == (10, ckpt / "step-00000010")
    save(15)
    assert resume_from() == (15, ckpt / "step-00000015")
    save(20, "again")
    assert resume_from() == (20, ckpt / "step-00000020") and (ckpt / "step-00000020").read_text() == "again"


@pytest.mark.parametrize("make", [save, save_folder])
def test_killed_between_the_rename_and_the_marker(ckpt: Path, monkeypatch: pytest.MonkeyPatch, make: object) -> None:
    """kill -9 leaves a checkpoint without a marker: the one before counts, and the step can be saved again."""

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    make(10)  # type: ignore[operator]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_mark", kill)
        with pytest.raises(Killed):
            make(20)  # type: ignore[operator]
    assert (ckpt / "step-00000020").exists()
    assert resume_from() == (10, ckpt / "step-00000010")
    make(20)  # type: ignore[operator]
    assert resume_from() == (20, ckpt / "step-00000020")


@pytest.mark.parametrize("cut", range(0, 90, 5))
def test_a_torn_marker_is_no_marker(ckpt: Path, cut: int) -> None:
    save(10)
    save(20)
    marker = ckpt / ".headway" / "step-00000020.json"
    marker.write_bytes(marker.read_bytes()[:cut])
    assert resume_from() == (10, ckpt / "step-00000010")


def test_a_path_of_the_scripts_own(ckpt: Path, told: Told, tmp_path: Path) -> None:
    ckpt.mkdir()
    latest, best = ckpt / "latest.pt", tmp_path / "elsewhere" / "best.pt"
    latest.write_text("20")
    checkpoint_saved(20, latest)
    best.parent.mkdir()
    best.write_text("best")
    checkpoint_saved(30, best)
    assert resume_from() == (30, best)
    with pytest.raises(StepRegression, match="holds step 20: it must not be replaced by step 3"):
        checkpoint_saved(3, latest)
    with pytest.raises(FileNotFoundError):
        checkpoint_saved(40, ckpt / "nothing")
    checkpoint_saved(50, "s3://bucket/model")
    assert resume_from() is not None and resume_from().step == 50  # type: ignore[union-attr]
    assert [line["step"] for line in told.lines] == [20, 30, 50]


def test_after_a_torn_one_was_seen_an_older_step_is_no_regression(ckpt: Path) -> None:
    ckpt.mkdir()
    latest = ckpt / "latest.pt"
    latest.write_text("twenty")
    checkpoint_saved(20, latest)
    latest.write_text("tw")  # killed while it was written anew
    assert resume_from() is None
    latest.write_text("three")
    checkpoint_saved(3, latest)
    assert resume_from() == (3, latest)


def test_other_jobs_checkpoints_in_the_same_directory(ckpt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(10, "theirs")
    save(3000, "theirs")
    become(monkeypatch, ckpt, owner="b")
    assert resume_from() is None
    save(10, "ours")
    assert resume_from() is not None and resume_from().path.read_text() == "ours"  # type: ignore[union-attr]
    assert (ckpt / "step-00000010").read_text() == "theirs" and len(names(ckpt)) == 3


def test_parts_of_several_ranks(ckpt: Path, told: Told) -> None:
    for step in (10, 20):
        for part in (0, 1):
            save(step, f"{step}/{part}", part=part, parts=2)
    save(30, part=0, parts=2)  # rank 1 was killed before it had saved
    assert [line["step"] for line in told.lines] == [10, 20]
    for part in (0, 1):
        found = resume_from(part=part, parts=2)
        assert found is not None and found.step == 20 and found.path.read_text() == f"20/{part}"


def test_what_dead_attempts_left_half_written_is_swept(ckpt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with saving(5) as path:
        path.write_text("x")
        dead = path
    dead.write_text("half")  # as if killed
    become(monkeypatch, ckpt, attempt=2)
    save(6)
    assert names(ckpt) == ["step-00000005", "step-00000006"]


def test_what_the_controller_knows_is_used_where_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    saved = tmp_path / "own.pt"
    saved.write_text("x")
    env = {"HEADWAY_JOB": "7", "HEADWAY_RESUME": "40", "HEADWAY_RESUME_PATH": str(saved)}
    monkeypatch.setattr(checkpoints, "TASK", read_task(env))
    assert resume_from() == (40, saved)
    saved.unlink()
    assert resume_from() is None
    monkeypatch.setattr(checkpoints, "TASK", read_task({"HEADWAY_JOB": "7", "HEADWAY_RESUME": "", "HEADWAY_RESUME_PATH": ""}))
    assert resume_from() is None


def test_a_directory_of_ones_own_outside_headway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setattr(checkpoints, "TASK", Task())
    save(5, directory=tmp_path)
    assert resume_from(directory=tmp_path) == (5, tmp_path / "step-00000005") and told.lines == []


@pytest.mark.parametrize("step", [-1, None, "x", float("nan")])
def test_no_step(ckpt: Path, step: object) -> None:
    with pytest.raises(ValueError, match="expected a number of steps"):
        save(step)  # type: ignore[arg-type]
