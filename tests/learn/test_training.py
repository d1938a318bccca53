"""A whole training in miniature: what is kept, that it goes on where it was stopped, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.app import train as use_case
from headway.app.pool import each
from headway.app.train import TrainRequest, betas_of, objective_of, prepare
from headway.core.errors import UserError
from headway.learn import judge as judging
from headway.learn.beta import best_of, equal_score, search_betas
from headway.learn.judge import Verdict, switch
from headway.learn.recorded import STARTS, decisions_of
from headway.learn.rollout import Episode, Explorer, Noise, Played, Sample, Setting, goals_of, play
from headway.learn.train import Training
from headway.metrics.fold import MetricsFold
from headway.policies.mlfs.artefact import load_model
from headway.policies.mlfs.net import Net
from headway.policies.mlfs.rl import Decision
from headway.sim.run import simulate

SMALL = "mlfs-paper:jobs=24,protocol=overload,cluster=2x4"


def request(out: Path, **changed: Any) -> TrainRequest:
    asked = TrainRequest(
        kind="mlf-rl", out=out, workloads=(SMALL,), cluster="2x4", seeds="1,2", held_out="50,51", minutes=1e6, iterations=2,
        pairs=2, rollouts=2, workers=1,
    )  # fmt: skip
    return replace(asked, **changed)


def run(work: Any, items: Any) -> Any:
    return each(work, items, workers=1)


def forever() -> float:
    return 1e9


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("train") / "model"
    asked = request(out)
    return out, use_case.run(asked, prepare(asked))


def test_what_comes_of_a_training(trained: tuple[Path, dict[str, Any]]) -> None:
    out, manifest = trained
    model = load_model(out, "mlf-rl")
    assert model.manifest["seeds"] == [1, 2] and model.manifest["held_out"] == [50, 51]
    assert manifest["switch"]["evaluations"] == 3 and manifest["iterations"] >= 4
    assert {"converged", "beats_teacher", "passed"} <= set(manifest["switch"])
    assert np.isfinite(manifest["scores"]["score"]) and manifest["scores"]["gains"]["avg_jct_s"] is not None
    curve = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    assert curve[0]["phase"] == "start" and {"imitate", "pgpe"} <= {entry["phase"] for entry in curve}
    assert any(entry.get("agreement") is not None for entry in curve)
    assert (out / "curve.svg").read_text().startswith("<svg") and "# mlf-rl" in (out / "card.md").read_text()
    assert all(len(ranges) == len(names) for ranges, names in
               zip(manifest["ranges"].values(), manifest["features"].values(), strict=True))  # fmt: skip
    assert max(high for _, high in manifest["ranges"]["rank"]) > 0


@pytest.mark.parametrize("phases", ["imitate,pgpe", "pgpe", "reinforce"])
def test_one_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, phases: str) -> None:
    """Stopped after the checkpoint of its first iteration, as a killed process is."""
    spec = prepare(request(tmp_path / "any", phases=phases, judge_every=1)).spec
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole, parts = Training(spec, tmp_path / "whole", run), Training(spec, tmp_path / "parts", run)
    whole.go(forever, iterations=2)

    def stop(facts: dict[str, Any]) -> None:
        if facts["iteration"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parts.go(forever, iterations=2, tell=stop)
    again = Training(spec, tmp_path / "parts", run)
    assert again.at["iteration"] == 1
    again.go(forever, iterations=2)
    for name, array in whole.best.to_arrays().items():
        assert np.array_equal(array, again.best.to_arrays()[name]), name
    assert whole.verdict == again.verdict and whole.curve == again.curve


def test_every_phase_and_the_other_kind_run(tmp_path: Path) -> None:
    asked = request(tmp_path / "g", phases="reinforce,ppo", iterations=1)
    assert use_case.run(asked, prepare(asked))["kind"] == "mlf-rl"
    asked = request(tmp_path / "p", kind="rl-placement", phases="pgpe", iterations=1)
    manifest = use_case.run(asked, prepare(asked))
    assert manifest["betas"] == [1.0, 0.0, 0.0, 0.0, 0.0] and asked.kind == "rl-placement"
    assert json.loads((tmp_path / "p" / "manifest.json").read_text())["params"]["objective"] == [["avg_jct_s", 1.0]]
    model = load_model(tmp_path / "p", "rl-placement")
    hidden = model.manifest["features"]["rank"].index("plateau")
    assert model.net.rank.skip[hidden] == 0 and not model.net.rank.w1[hidden].any()


def test_another_training_in_the_same_folder_is_refused(trained: tuple[Path, dict[str, Any]]) -> None:
    out, _ = trained
    asked = request(out, sigma=0.7)
    with pytest.raises(UserError, match="other settings"):
        use_case.run(asked, prepare(asked))


def test_a_checkpoint_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    asked = request(tmp_path / "m", phases="pgpe", iterations=1)
    use_case.run(asked, prepare(asked))
    arrays = tmp_path / "m" / "checkpoint" / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-5])
    with pytest.raises(UserError, match="no whole checkpoint"):
        use_case.run(asked, prepare(asked))


# -- what a person may ask for --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seeds": "1,100"}, "seeds: expected development seeds, 0 to 99"),
        ({"held_out": "101"}, "held-out: expected development seeds"),
        ({"held_out": "2"}, "held-out: seed 2 is trained on as well"),
        ({"kind": "mlf-lr"}, "did you mean 'mlf-rl'?"),
        ({"phases": "imitate,pgep"}, "did you mean 'pgpe'?"),
        ({"teacher": "srtf"}, "teacher: expected mlf-h"),
        ({"teacher": "mlf-h:aplha=1"}, "did you mean 'alpha'?"),
        ({"workloads": ()}, "workload: expected at least one"),
        ({"workloads": (SMALL, SMALL)}, "the same is given twice"),
        ({"policies": ("srtf",)}, "expected mlf-rl[:sharing"),
        ({"policies": ("mlf-rl+mlf-d",)}, "did you mean 'mlf-c'?"),
        ({"policies": ("mlf-rl:sharing=maybe",)}, "expected true or false"),
        ({"betas": "1,2"}, "betas: expected five numbers"),
        ({"betas": "0,0,0,0,0"}, "betas: expected five numbers"),
        ({"objective": "avg_jct"}, "unknown figure"),
        ({"scope": "all"}, "scope: expected skip"),
        ({"minutes": float("nan")}, "minutes: expected a number above 0"),
        ({"pairs": 0}, "pairs: expected a whole number"),
        ({"start": Path("none")}, "cannot be read"),
        ({"journal": "none"}, "none"),
        ({"cluster": "0x0"}, ""),
    ],
)
def test_what_is_refused(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        prepare(request(tmp_path / "out", **changed))
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_settings_objectives_and_betas(tmp_path: Path) -> None:
    ways = ("mlf-rl:sharing=false+mlf-c:downgrade=false", "mlf-rl")
    settings = prepare(request(tmp_path / "o", policies=ways)).spec.settings
    assert [(s.sharing, s.beside) for s in settings] == [(False, "mlf-c:downgrade=false"), (True, "")]
    assert settings[0].teacher("mlf-h:tuned=true") == "mlf-h:sharing=false,tuned=true"
    assert objective_of(request(tmp_path, objective="reward=2,deadline_ratio=0.5")) == (("reward", 2.0), ("deadline_ratio", 0.5))
    assert betas_of("1,0,0,0,0.5") == (1.0, 0.0, 0.0, 0.0, 0.5)


# -- rollouts -------------------------------------------------------------------------------------------------------
def test_the_goals_of_a_run_by_hand() -> None:
    setting = Setting("poisson:jobs=2,load=0.5,cluster=1x4", "1x4")
    played = play(Episode(setting, 1))
    assert played.figures is not None and played.figures["finished"] == 2
    assert np.isfinite(played.goals).all() and (played.goals >= 0).all() and (played.goals <= 1).all()
    assert len(goals_of(MetricsFold())) == 0


def test_a_job_keeps_its_noise_for_a_while() -> None:
    explorer = Explorer(Noise(1, rank=1.0, hold_s=600.0), None)
    jobs = np.array([3, 9])
    first = explorer.noise(jobs, 0)
    assert np.array_equal(first, explorer.noise(jobs, 599_000_000)) and np.array_equal(first[:1], explorer.noise(jobs[:1], 0))
    assert not np.array_equal(first, explorer.noise(jobs, 600_000_000))
    assert first[1] == explorer.noise(np.array([9, 5000]), 0)[0]
    assert not Explorer(Noise(1), None).noise(jobs, 0).any()


def test_a_sample_is_bounded_and_even() -> None:
    counts = np.zeros(40)
    for seed in range(200):
        sample = Sample(10, seed)
        for k in range(40):
            sample.offer(Decision("rank", k, np.full((2, 3), float(k), np.float32), np.array([0])))
        sample.offer(Decision("rank", 99, np.zeros((0, 3), np.float32), np.zeros(0, np.int64)))
        assert len(sample.kept["rank"]) == 10 and sample.ranges["rank"].tolist() == [[0.0, 39.0]] * 3
        counts[[kept.now_us for kept in sample.kept["rank"]]] += 1
    assert counts.min() > 25 and counts.max() < 75  # 50 each, on average


def test_episodes_are_the_same_again() -> None:
    setting = Setting(SMALL, "2x4")
    episode = Episode(setting, 1, arrays=Net.plain(1).to_arrays(), noise=Noise(5, 1.0, 1.0), keep=20)
    one, two = play(episode), play(episode)
    assert one.figures == two.figures and np.array_equal(one.goals, two.goals)
    assert len(one.kept["rank"]) == len(two.kept["rank"]) > 0
    watched = play(Episode(setting, 1, keep=20, watch=True))
    plain = play(Episode(setting, 1))
    assert watched.figures == plain.figures  # who watches changes nothing
    compared = play(Episode(setting, 1, arrays=Net.plain(1).to_arrays(), compare=True))
    assert compared.figures == plain.figures and compared.agreement is not None and compared.agreement.taken["who"] > 0


def test_a_journal_is_what_its_policy_decided() -> None:
    from headway.learn.rollout import world_of
    from headway.policies.registry import make_policy

    workload, cluster = world_of(Setting(SMALL, "2x4"), 1)
    outcome = simulate(workload, cluster, make_policy("srtf"), seed=1, keep_journal=True)
    assert outcome.journal is not None
    sample = decisions_of(outcome.journal, keep=500, sharing=False)
    kept = sample.kept["rank"]
    started = sum(int((k.utilities == STARTS).sum()) for k in kept if k.utilities is not None)
    finished = outcome.metrics.summary(cluster.gpus).finished
    assert started >= finished > 15  # each job that fits was given a place at least once
    assert all(len(k.order) == (k.utilities > 0).sum() for k in kept if k.utilities is not None)


# -- the switch and β -----------------------------------------------------------------------------------------------
def test_the_switch_test() -> None:
    good = Verdict(0.1, 1.0, 0.9, (1.0,), {})
    rising, flat = [[0.1 * k] for k in range(1, 8)], [[1.0, 1.001]] * 7
    assert switch(flat, good)["passed"] and not switch(rising, good)["converged"]
    assert not switch(flat[:5], good)["converged"]  # four changes are not enough
    worse = switch(flat, Verdict(-0.1, 0.8, 0.9, (0.8,), {}))
    assert worse["converged"] and not worse["beats_teacher"] and not worse["passed"]
    assert judging.WINDOW == 20


def test_the_search_for_beta_finds_the_best_and_survives_failures() -> None:
    pytest.importorskip("optuna")

    def worth(betas: tuple[float, ...]) -> float | None:
        return None if betas[4] > 0.8 else -abs(betas[0] - 0.8)

    found = search_betas(worth, seed=1)
    best = best_of(found)
    assert len(found) == 15 and found[0].how == "paper" and found[0].betas == pytest.approx((0.5, 0.55, 0.25, 0.15, 0.15))
    assert best is not None and best.score is not None and best.score >= -0.3 and [c.how for c in found].count("variation") == 5
    assert best_of([]) is None
    assert equal_score([Played({}, np.full((3, 5), 0.4)), Played({}, np.full((1, 5), 0.6))]) == pytest.approx(0.5)
    assert equal_score([Played(None, np.zeros((0, 5)))]) is None
