"""`headway reproduce mlfs`: what runs, what is kept, what is written, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.app import reproduce
from headway.app.pool import run_log
from headway.app.reproduce import ReproduceRequest, command_line, prepare, resolve, run
from headway.app.reproduce_runs import Run, overloaded, run_one
from headway.cli import run_command
from headway.core.errors import UserError
from headway.core.state import State
from headway.workloads.cluster import parse_cluster

Captured = pytest.CaptureFixture[str]
CLOCKED = {"decide_ms_avg", "decide_ms_p50", "decide_ms_p99", "wall_s", "cpu_s"}


def request(out: Path, **changed: Any) -> ReproduceRequest:
    asked = ReproduceRequest(out=out, loads="12,20", methods="mlf-h,tiresias,fifo", parts="paper", seeds=2, workers=1)
    return replace(asked, **changed)


def made(asked: ReproduceRequest) -> dict[str, Any]:
    return run(asked, prepare(asked))[1]


def timeless(numbers: dict[str, Any]) -> list[Any]:
    """The runs of all blocks, without what a clock measured."""
    return [{k: v for k, v in of.items() if k not in CLOCKED} for block in numbers["blocks"] for of in block["runs"]]


def test_a_run_has_the_figures_of_the_paper() -> None:
    plain = run_one(Run("testbed", "stress", 20, "mlf-h", 100))
    counted = run_one(Run("testbed", "stress", 20, "mlf-h", 100, counted=True))
    assert plain["jobs"] == plain["finished"] == 20 and plain["seed"] == 100
    quantiles = plain["jct_quantiles_s"]
    assert len(quantiles) == 101 and quantiles == sorted(quantiles) and quantiles[50] == plain["p50_jct_s"]
    assert plain["jct_under_100min_frac"] == sum(q < 6000 for q in quantiles[1:]) / 100  # 20 jobs: each is 5 %
    assert plain["overloads"] is None and counted["overloads"] >= 0
    assert counted["journal_sha256"] == plain["journal_sha256"]  # holding every round, and counting, changes nothing


def test_overloaded_servers_are_those_above_nine_tenths() -> None:
    from headway.core import columns as c

    state = State()
    state.apply(parse_cluster("3x2").events(0, (), ()))
    assert overloaded(state) == 0
    state.N[c.N_CPU_MAX, :3], state.N[c.N_USE_CPU, :3] = 1000, [900, 901, 0]
    assert overloaded(state) == 1
    on_last = state.G[c.G_NODE] == 2
    state.G[c.G_USED, on_last] = 950
    state.G[c.G_TASKS, on_last] = 1
    assert overloaded(state) == 1  # a task alone on its GPU overloads nothing
    state.G[c.G_TASKS, on_last] = 2
    assert overloaded(state) == 2


def test_what_is_done_is_not_run_again_and_a_stopped_reproduction_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(request(tmp_path / "whole"))
    asked = request(tmp_path / "stopped")
    real, left = run_one, 5

    def stops(of: Run) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(of)

    monkeypatch.setattr(reproduce, "run_one", stops)
    with pytest.raises(KeyboardInterrupt):
        made(asked)
    log = tmp_path / "stopped" / "runs.jsonl"
    assert len(log.read_text().splitlines()) == 5 and not (tmp_path / "stopped" / "reproduction.html").exists()
    with log.open("a") as stream:
        stream.write('{"run": "cut o')  # the machine went down while a line was written
    ran: list[Run] = []

    def noted(of: Run) -> Any:
        ran.append(of)
        return real(of)

    monkeypatch.setattr(reproduce, "run_one", noted)
    assert timeless(made(asked)) == timeless(whole)
    assert len(ran) == len(timeless(whole)) - 5 == 7
    ran.clear()
    made(asked)
    assert ran == []


def test_the_cores_change_nothing(tmp_path: Path) -> None:
    asked = request(tmp_path / "two", loads="12", methods="mlf-h,fifo", seeds=1, workers=2)
    assert timeless(made(asked)) == timeless(made(replace(asked, out=tmp_path / "one", workers=1)))


def test_the_report_and_its_numbers(tmp_path: Path) -> None:
    asked = request(tmp_path / "r", parts="paper,equal,studies,split", seeds=1, protocols="stress,literal")
    numbers = made(asked)
    page = (tmp_path / "r" / "reproduction.html").read_text()
    text = (tmp_path / "r" / "reproduction.md").read_text()
    assert "<script" not in page and not re.search(r'(?:src|href)="http', page)
    assert page.count("<svg") == page.count("</svg>") > 20
    for told in ("Stress", "Literal", "Paper says, we measured", "Fig. 4(b)", "Fig. 8(a)", "lower bound"):
        assert told in page
    assert "## Stress" in text and "| lower bound |" in text and "MLF-H < Tiresias" in text
    stress, literal = numbers["blocks"]
    assert (stress["protocol"], literal["protocol"]) == ("stress", "literal")
    found = {(of["table"], of["method"], of["jobs"]): of for of in stress["results"]}
    assert found["paper", "mlf-h", 20]["policy"] == "mlf-h" and found["paper", "mlf-h", 20]["avg_jct_s"] > 0
    assert all(claim["verdict"] == "can't" for claim in stress["claims"] if claim["kind"] != "x")  # one seed tells nothing
    assert stress["split"][-1]["policy"] == "mlf-h+mlf-c:queue=always", "the queue trick is told"
    assert 0 < stress["avg_jct_bound_s"]["20"] <= found["paper", "fifo", 20]["avg_jct_s"]
    json.dumps(numbers, allow_nan=False)


def test_the_large_scale_stands_beside_the_testbed(tmp_path: Path) -> None:
    asked = request(tmp_path / "r", loads="12", seeds=4, large=True, large_loads=(30,))
    testbed, large = prepare(asked).blocks
    assert (testbed.scale, testbed.seeds) == ("testbed", (100, 101, 102, 103))
    assert (large.scale, large.loads, large.seeds, list(large.methods["paper"])) == (
        "large", (30,), (100, 101, 102), ["mlf-h", "tiresias"],
    )  # fmt: skip
    of_large = [of for of in prepare(asked).runs if of.scale == "large"]
    assert len(of_large) == 6 and of_large[0].workload == "mlfs-paper-large:jobs=30,protocol=stress"
    entry = run_one(of_large[0])
    assert entry["cluster"] == "mlfs-paper-large" and entry["finished"] == 30


def test_methods_are_run_as_in_the_paper_and_with_the_same_rules_for_all() -> None:
    specs, missing = resolve(("mlfs", "mlf-rl", "mlf-h", "tiresias", "rl-placement", "fifo", "metis"))
    assert specs["paper"] == {
        "mlfs": "mlfs", "mlf-rl": "mlf-rl", "mlf-h": "mlf-h", "tiresias": "tiresias", "rl-placement": "rl-placement",
        "fifo": "fifo",
    }  # fmt: skip
    assert missing["paper"] == {"metis": "there is no such policy yet"}
    assert specs["equal"]["mlf-rl"] == "mlf-rl+mlf-c" and "mlfs" not in specs["equal"]
    assert specs["equal"]["rl-placement"].startswith("rl-placement:sharing=true+")
    assert specs["equal"]["mlf-h"].startswith("mlf-h") and specs["equal"]["fifo"].startswith("fifo:sharing=true")


def test_a_policy_that_gets_stuck_is_told_and_is_in_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = run_one

    def stuck(of: Run) -> Any:
        return {"stuck": "policy fifo: 3 jobs wait"} if of.policy == "fifo" else real(of)

    monkeypatch.setattr(reproduce, "run_one", stuck)
    numbers = made(request(tmp_path / "r", loads="12", seeds=1))
    assert any("policy fifo: 3 jobs wait. The run is in no figure." in note for note in numbers["notes"])
    assert {of["policy"] for of in numbers["blocks"][0]["runs"]} == {"mlf-h", "tiresias"}


def test_the_command_line_makes_it_again(tmp_path: Path) -> None:
    assert command_line(ReproduceRequest(out=Path("d"))) == "headway reproduce mlfs --out d"
    asked = request(Path("d"), protocols="literal", large=True)
    assert command_line(asked) == (
        "headway reproduce mlfs --protocol literal --loads 12,20 --methods mlf-h,tiresias,fifo --parts paper --seeds 2 --large"
        " --out d"
    )


def test_the_contract(tmp_path: Path, capsys: Captured) -> None:
    words = "reproduce mlfs --protocol stress --loads 12,15 --methods mlf-h,tiresias --seeds 1 --workers 1 --json --out".split()
    assert run_command([*words, str(tmp_path / "r")]) == 0
    numbers = json.loads(capsys.readouterr().out)
    (block,) = numbers["blocks"]
    assert (block["loads"], block["seeds"]) == ([12, 15], [100])
    assert [Path(path).name for path in numbers["files"]] == ["reproduction.html", "reproduction.md", "runs.jsonl"]
    assert {of["seed"] for of in block["runs"]} == {100}


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--methods", "mlf-h,tiresas", "did you mean 'tiresias'?"),
        ("--methods", "mlf-h,mlf-h", "stands twice"),
        ("--methods", "metis", "unknown method"),
        ("--protocol", "stresss", "did you mean 'stress'?"),
        ("--parts", "tables", "unknown part"),
        ("--loads", "155,x", "loads: expected numbers of jobs"),
        ("--loads", "0", "loads: expected numbers of jobs"),
        ("--loads", "10,10", "stands twice"),
        ("--seeds", "0", "seeds: expected a whole number from 1"),
        ("--workers", "-1", "workers: expected a whole number from 1"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    option: str, value: str, told: str, tmp_path: Path, capsys: Captured
) -> None:
    assert run_command(["reproduce", "mlfs", option, value, "--out", str(tmp_path / "r")]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    assert run_command(["reproduce", "mlfs", "--out", str(tmp_path)]) == 2
    assert "holds other things" in capsys.readouterr().err
    assert run_command(["reproduce", "mlfs", "--out", str(tmp_path / "letters.txt")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert run_command(["reproduce", "mlfs", "--out", str(tmp_path / "a" / "b")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


def test_a_log_that_is_damaged_is_told_by_its_line(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    log.write_text('{"run": 1}\nnonsense\n')
    with pytest.raises(UserError, match=r"runs\.jsonl:2: expected a JSON object"), run_log(log):
        pass
