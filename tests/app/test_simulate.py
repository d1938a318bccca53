"""The use case behind `headway simulate`: what is read, what is refused, and what a result holds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.app import simulate as use_case
from headway.app.simulate import SimulateRequest, dropped_line, policy_list, prepare, run
from headway.core.errors import UserError

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
CONTRACT = """policy params workload workload_sha256 cluster seed jobs finished rejected avg_jct_s p50_jct_s p99_jct_s makespan_s
avg_wait_s gpu_booked_frac gpu_busy_frac deadline_ratio avg_accuracy accuracy_ratio finish_time_fairness cross_node_bytes
avg_jct_bound_s preemptions migrations rounds rounds_skipped decide_ms_p50 decide_ms_p99 wall_s cpu_s journal_sha256""".split()
CLOCKED = {"decide_ms_avg", "decide_ms_p50", "decide_ms_p99", "wall_s", "cpu_s"}


def trace(folder: Path, *rows: tuple[int, float, int]) -> str:
    """A Philly file of (second, duration, GPUs)."""
    path = folder / "t.csv"
    lines = [f"2017-10-09 00:{at // 60:02d}:{at % 60:02d},{duration},{gpus},0,vc" for at, duration, gpus in rows]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return str(path)


def asked(**changed: Any) -> SimulateRequest:
    return replace(SimulateRequest(workload="poisson:jobs=60,cluster=1x8", cluster="1x8", policies=("fifo",)), **changed)


def results(request: SimulateRequest) -> list[dict[str, Any]]:
    return list(run(request, prepare(request)))


def test_three_jobs_on_one_gpu_by_hand(tmp_path: Path) -> None:
    """Each takes 100 s; they come at 0, 10 and 20 s and end at 100, 200 and 300 s."""
    (entry,) = results(asked(workload=trace(tmp_path, (0, 100, 1), (10, 100, 1), (20, 100, 1)), cluster="1x1", round="0"))
    assert (entry["avg_jct_s"], entry["p50_jct_s"], entry["p99_jct_s"], entry["makespan_s"]) == (190, 190, 280, 300)
    assert (entry["avg_wait_s"], entry["gpu_busy_frac"], entry["gpu_booked_frac"]) == (90, 1, 1)
    assert (entry["jobs"], entry["finished"], entry["rejected"], entry["preemptions"]) == (3, 3, 0, 0)


def test_a_result_holds_the_contract_in_the_order_asked() -> None:
    entries = results(asked(policies=("tiresias:queues=3", "fifo", "las")))
    assert [entry["policy"] for entry in entries] == ["tiresias:queues=3", "fifo", "las"]
    for entry in entries:
        assert not set(CONTRACT) - set(entry)
        assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    assert entries[0]["params"]["queues"] == 3 and "factor" in entries[0]["params"]
    assert len({entry["workload_sha256"] for entry in entries}) == 1


def test_the_same_line_gives_the_same_numbers() -> None:
    one, two = (results(asked(policies=("srtf",)))[0] for _ in range(2))
    assert {k: v for k, v in one.items() if k not in CLOCKED} == {k: v for k, v in two.items() if k not in CLOCKED}


@pytest.mark.parametrize("policy", ["srtf", "las"])
def test_skipped_rounds_change_nothing(policy: str) -> None:
    one, two = (results(asked(skip=skip, policies=(policy,)))[0] for skip in (True, False))
    assert one["rounds_skipped"] > 0 == two["rounds_skipped"]
    same = [key for key in one if key.endswith("_s") and key not in CLOCKED]
    assert [one[key] for key in same] == [two[key] for key in same]


def test_an_oracle_is_told_the_true_durations(tmp_path: Path) -> None:
    rows = [(3 * i, 40 + 37 * (i % 7), 1 + i % 2) for i in range(40)]
    path = trace(tmp_path, *rows)
    request = asked(workload=path, cluster="1x2", policies=("oracle-srtf", "srtf"), restart_cost="0", round="1")
    oracle, guesses = results(request)
    (exact,) = results(replace(request, workload=f"{path}:estimates=exact", policies=("srtf",)))
    assert oracle["avg_jct_s"] == exact["avg_jct_s"] < guesses["avg_jct_s"]
    assert oracle["workload_sha256"] == guesses["workload_sha256"]


def test_a_job_larger_than_the_cluster_is_rejected_and_the_rest_runs(tmp_path: Path) -> None:
    (entry,) = results(asked(workload=trace(tmp_path, (0, 100, 16), (5, 50, 1)), cluster="1x8", round="0"))
    assert (entry["jobs"], entry["finished"], entry["rejected"]) == (2, 1, 1)
    assert (entry["avg_jct_s"], entry["unfinished"]) == (50, 0)


def test_window_filter_and_load_come_in_this_order(tmp_path: Path) -> None:
    path = trace(tmp_path, (0, 10, 1), (60, 10, 2), (120, 10, 1), (180, 10, 2), (240, 10, 2))
    prepared = prepare(asked(workload=path, cluster="1x4", window="1m..4m", filter="gpus>=2", load="0.5"))
    # Two jobs of 20 GPU·s: at load 0.5 of 4 GPUs they lie 20 s apart.
    assert prepared.workload.submitted_us.tolist() == [0, 20_000_000]


@pytest.mark.parametrize(("save", "restart", "jct_s"), [("0", "0", (110 + 10) / 2), ("5", "30", (145 + 15) / 2)])
def test_a_preemption_costs_what_was_said(tmp_path: Path, save: str, restart: str, jct_s: float) -> None:
    """A job of 100 s makes room at 10 s for one of 10 s. Saving holds the second up, saving and restoring the first."""
    path = trace(tmp_path, (0, 100, 1), (10, 10, 1)) + ":estimates=exact"
    request = asked(workload=path, cluster="1x1", policies=("srtf",), round="0", save_cost=save, restart_cost=restart)
    (entry,) = results(request)
    assert (entry["avg_jct_s"], entry["preemptions"]) == (jct_s, 1)


def test_dropped_rows_are_told_in_one_line(tmp_path: Path) -> None:
    path = trace(tmp_path, (0, 100, 1), (5, -1, 1), (6, 0, 1), (7, 5, 0))
    line = dropped_line(prepare(asked(workload=path)).workload)
    assert line == (
        f"{path}: dropped 3 rows that cannot be jobs (2 bad duration, 1 bad num_gpus); "
        f'the first: {path}:3: duration: expected seconds above 0, at most 100 years, got "-1"'
    )
    assert dropped_line(prepare(asked()).workload) == ""


def test_a_journal_takes_its_name_when_the_run_is_done(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    results(asked(journal=path))
    assert [p.name for p in tmp_path.iterdir()] == ["run.journal"] and path.stat().st_size > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), AssertionError("a bug")])
def test_a_journal_that_is_not_whole_does_not_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "run.journal"
    path.write_text("the last run")

    def breaks(*_: Any, journal: Path | None = None, **__: Any) -> None:
        if journal is not None:
            journal.write_text("half")
            raise error

    monkeypatch.setattr(use_case, "simulate", breaks)
    with pytest.raises(UserError if isinstance(error, OSError) else type(error)):
        results(asked(journal=path))
    assert [p.name for p in tmp_path.iterdir()] == ["run.journal"] and path.read_text() == "the last run"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"policies": ()}, "policy: expected at least one, got none"),
        ({"policies": ("fifi",)}, "unknown policy 'fifi' (did you mean 'fifo'?)"),
        ({"seed": -1}, "seed: expected a whole number from 0 to"),
        ({"round": "nan"}, 'round: expected a duration such as 90 (seconds), 10m or 1h30m, got "nan"'),
        ({"round": "-60"}, 'round: expected a duration such as 90 (seconds), 10m or 1h30m, got "-60"'),
        ({"load": "nan"}, 'load: expected a number from 0.001 to 1000, got "nan"'),
        ({"load": "-1"}, 'load: expected a number from 0.001 to 1000, got "-1"'),
        ({"save_cost": "-1"}, "save-cost: expected a duration"),
        ({"restart_cost": "soon"}, "restart-cost: expected a duration"),
        ({"checkpoint_every": "inf"}, "checkpoint-every: expected a duration"),
        ({"window": "5"}, 'window: expected START..END such as 0..7d, got "5"'),
        ({"filter": "queue=x"}, "filter: no job of queue \"x\"; known: default"),
        ({"cluster": "0x8"}, "cluster 0x8: expected 1 to 131072 nodes, got 0"),
        ({"workload": "poison"}, "unknown workload 'poison' (did you mean 'poisson'?)"),
        ({"journal": Path("no/such/folder/j")}, "no/such/folder/j: journal: cannot be written: no such folder"),
        ({"journal": Path("j"), "policies": ("fifo", "las")}, "journal: a journal holds one run: expected one --policy, got 2"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_runs(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        prepare(asked(**changed))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_every_policy_is_listed_with_its_defaults() -> None:
    listed = {entry["name"]: entry for entry in policy_list()}
    assert {"fifo", "fifo-backfill", "srtf", "oracle-srtf", "las", "tiresias"} <= set(listed)
    assert all(entry["description"] and "\n" not in entry["description"] for entry in listed.values())
    assert listed["tiresias"]["params"]["queues"]["default"] == 2
    assert json.loads(json.dumps(listed, allow_nan=False)) == listed
