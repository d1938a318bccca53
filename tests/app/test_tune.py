"""`headway tune`: the space, the search, what is kept and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.app import tune
from headway.app.tune import TuneRequest, parse_objective, prepare, score, search
from headway.app.tune_space import Dimension, Space, find_space
from headway.cli import run_command
from headway.core.errors import UserError
from headway.core.specstring import parse_spec

pytest.importorskip("optuna")
Captured = pytest.CaptureFixture[str]
SMALL = "poisson:jobs=30,load=1.2,cluster=1x8"


def request(out: Path, **changed: Any) -> TuneRequest:
    asked = TuneRequest(
        policy="las", out=out, workloads=(SMALL,), cluster="1x8", trials=6, seeds="1,2", held_out="50", wave=3, workers=1,
        space=("quantum=60..100000:log",),
    )  # fmt: skip
    return replace(asked, **changed)


def made(asked: TuneRequest) -> dict[str, Any]:
    return tune.run(asked, prepare(asked))


# -- the space ------------------------------------------------------------------------------------------------------
def test_a_space_is_the_parameters_with_finite_ranges_that_are_not_set() -> None:
    space = find_space("mlf-h:sharing=true,h_r=0.8", [])
    found = {d.name: d for d in space.dimensions}
    assert (found["alpha"].low, found["alpha"].high, found["alpha"].default) == (0, 1, "0.3")
    assert found["dag_mode"].choices == ("unique", "literal", "mean") and found["normalize"].choices == ("false", "true")
    assert "sharing" not in found and "h_r" not in found
    assert {"gamma_d", "gamma_r", "gamma_w", "cool_down"} <= set(space.left_out)
    assert space.spec({"alpha": 0.123456, "dag_mode": "unique"}) == "mlf-h:sharing=true,h_r=0.8,alpha=0.1235"
    assert find_space("las", ["quantum=60..100000"]).spec({"quantum": 1e5}) == "las:quantum=100000"
    assert space.spec({}) == "mlf-h:sharing=true,h_r=0.8"


def test_ranges_of_a_person() -> None:
    space = find_space("mlf-h", ["gamma_r=0.1..10:log", "dag-mode=mean|unique", "cool_down=0..600"])
    found = {d.name: d for d in space.dimensions}
    assert (found["gamma_r"].low, found["gamma_r"].high, found["gamma_r"].log) == (0.1, 10, True)
    assert found["dag_mode"].choices == ("mean", "unique") and not found["cool_down"].log
    (queues,) = (d for d in find_space("tiresias", ["queues=2..5"]).dimensions if d.name == "queues")
    assert queues.whole and queues.written(3) == "3"


@pytest.mark.parametrize(
    ("policy", "text", "told"),
    [
        ("mlf-h", "gama_r=1..2", "did you mean 'gamma_r'?"),
        ("mlf-h", "gamma_r", "expected key=low..high"),
        ("mlf-h", "gamma_r=2..1", "low below high"),
        ("mlf-h", "gamma_r=0..1:log", "above 0 for :log"),
        ("mlf-h", "gamma_r=0..nan", "expected low..high"),
        ("mlf-h", "gamma_r=1..2:cube", "expected low..high"),
        ("mlf-h", "dag_mode=1..2", "expected low..high"),
        ("mlf-h", "alpha=0..2", "from 0 to 1"),
        ("mlf-h", "dag_mode=mean|medain", "expected one of"),
        ("mlf-h:alpha=1", "alpha=0..1", "set by the policy itself"),
        ("tiresias", "queues=2..3.5", "whole numbers"),
        ("srtf:placement=topology,sharing=true,gpus=0", "", "has nothing to tune"),
        ("srtff", "", "did you mean"),
    ],
)
def test_a_space_that_is_none(policy: str, text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        find_space(policy, [text] if text else [])
    assert told in str(error.value)


# -- the search -----------------------------------------------------------------------------------------------------
PARABOLA = Space(parse_spec("las"), (Dimension("x", "4", low=-5, high=5), Dimension("kind", "b", choices=("a", "b"))), ())


def parabola(trials: int, wave: int = 4, seed: int = 0) -> list[tuple[float, str, float]]:
    """What is tried where (x − 1)² + 1 for b is the objective, whose least is at x = 1, a."""
    tried: list[tuple[float, str, float]] = []

    def judge(points: Any) -> list[float | None]:
        values = [(p["x"] - 1) ** 2 + (p["kind"] == "b") for p in points]
        tried.extend((p["x"], p["kind"], v) for p, v in zip(points, values, strict=True))
        return list(values)

    search(PARABOLA, judge, trials=trials, wave=wave, seed=seed)
    return tried


def test_the_search_begins_with_the_defaults_and_finds_the_minimum() -> None:
    tried = parabola(40)
    assert tried[0][:2] == (4.0, "b") and len(tried) == 40
    best = min(tried, key=lambda of: of[2])
    assert best[1] == "a" and abs(best[0] - 1) < 1
    assert parabola(10, seed=1)[1:] != tried[1:10]


def test_the_same_seed_gives_the_same_search_and_a_longer_one_begins_with_it() -> None:
    assert parabola(16) == parabola(16) == parabola(20)[:16]


def test_points_without_a_value_are_passed_over() -> None:
    calls = []
    search(PARABOLA, lambda points: calls.append(len(points)) or [None] * len(points), trials=10, wave=4, seed=0)  # type: ignore[func-returns-value]
    assert calls == [4, 4, 2]


def test_the_score_is_how_the_defaults_are_bettered() -> None:
    base = [{"avg_jct_s": 100.0, "deadline_ratio": 0.5}, {"avg_jct_s": 200.0, "deadline_ratio": 0.5}]
    ours = [{"avg_jct_s": 80.0, "deadline_ratio": 0.6}, {"avg_jct_s": 200.0, "deadline_ratio": 0.5}]
    assert score({"avg_jct_s": 1.0}, base, base) == 1.0
    assert score({"avg_jct_s": 1.0}, ours, base) == pytest.approx(0.9)  # 20 % and 0 % less
    assert score({"deadline_ratio": 1.0}, ours, base) == pytest.approx(0.9)  # 20 % and 0 % more
    assert score({"avg_jct_s": 3.0, "deadline_ratio": 1.0}, ours, base) == pytest.approx(0.9)
    assert score({"avg_jct_s": 1.0}, [None, ours[1]], base) is None
    assert score({"avg_jct_s": 1.0}, [{"avg_jct_s": None}], base[:1]) is None


# -- the whole ------------------------------------------------------------------------------------------------------
def test_a_tuned_policy_is_checked_on_held_out_seeds(tmp_path: Path) -> None:
    result = made(request(tmp_path / "t"))
    assert result["trials"] == 6 and result["score"] <= 1 and result["defaults"] == "las" and result["failed"] == 0
    assert result["best"].startswith("las") and set(result["tuned_on"]) >= {"avg_jct_s"}
    assert result["checked_on"]["avg_jct_s"]["pairs"] == 1
    assert json.loads((tmp_path / "t" / "best.json").read_text()) == result


def test_a_stopped_search_goes_on_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(request(tmp_path / "whole"))
    real, ran = tune.simulate_one, 0

    def stops(of: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran > 5:
            raise KeyboardInterrupt
        return real(of)

    monkeypatch.setattr(tune, "simulate_one", stops)
    with pytest.raises(KeyboardInterrupt):
        made(request(tmp_path / "stopped"))
    log = tmp_path / "stopped" / "trials.jsonl"
    assert len(log.read_text().splitlines()) == 5
    monkeypatch.setattr(tune, "simulate_one", real)
    assert made(request(tmp_path / "stopped")) == whole
    lines = len((tmp_path / "whole" / "trials.jsonl").read_text().splitlines())
    assert len(log.read_text().splitlines()) == lines


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seeds": "99..100"}, "seeds: expected development seeds, 0 to 99; those above are for judging, got 100"),
        ({"held_out": "100"}, "held-out: expected development seeds"),
        ({"held_out": "2..4"}, "held-out: seed 2 is tuned on as well"),
        ({"seeds": "x"}, "seeds: expected seeds such as"),
        ({"objective": "avg_jct"}, "objective: unknown figure \"avg_jct\" (did you mean 'avg_jct_s'?)"),
        ({"objective": "avg_jct_s=-1"}, "weights above 0"),
        ({"trials": 0}, "trials: expected a whole number from 1"),
        ({"workers": 0}, "workers: expected at least 1"),
        ({"workloads": ("mlfs-papper",)}, "did you mean"),
        ({"cluster": "0x"}, "cluster"),
    ],
)
def test_bad_input_writes_nothing(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        prepare(request(tmp_path / "t", **changed))
    assert told in str(error.value)
    assert not (tmp_path / "t").exists()


def test_an_objective() -> None:
    assert parse_objective("avg_jct_s") == {"avg_jct_s": 1.0}
    assert parse_objective("avg_jct_s=2, deadline_ratio=0.5") == {"avg_jct_s": 2.0, "deadline_ratio": 0.5}


def test_without_optuna_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    assert run_command(["tune", "las", "--out", str(tmp_path / "t")]) == 2
    assert capsys.readouterr().err == "headway: tune: needs Optuna: pip install 'headway[tune]'\n"


def test_the_command(tmp_path: Path, capsys: Captured) -> None:
    words = ["tune", "las", "-w", SMALL, "-c", "1x8", "--trials", "2", "--seeds", "1", "--held-out", "50", "--workers", "1"]
    words += ["--out", str(tmp_path / "t")]
    assert run_command([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trials"] == 2 and err == ""
    assert run_command(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("best of 2: las") and "held-out" in out and "quantum" in err
