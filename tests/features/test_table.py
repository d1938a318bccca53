"""The feature table by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.view import ClusterView
from headway.features import table as f
from headway.policies.mlfs.observe import rank_features
from headway.testing.builders import cluster, job, state

US = 1_000_000


def features(**changed: int) -> dict[str, float]:
    """The columns RANK of a waiting job of 4 GPUs and 100 s, seen 60 s after its submission, with some columns of its row set."""
    made = state(cluster([4, 4]), [job("a", 4, 100)])
    row = int(made.live_rows()[0])
    for name, value in changed.items():
        made.J[getattr(c, f"J_{name.upper()}"), row] = value
    found = rank_features(ClusterView(made, 60 * US, 0), np.array([row]), sharing=False)
    return dict(zip(f.RANK, found[0].tolist(), strict=True))


def test_the_names_and_the_places_of_columns_agree() -> None:
    assert f.RANK.index("is_alexnet") == f.R_MODEL
    assert f.RANK.index("sharing") == f.R_GLOBAL
    assert f.RANK.index("pause") == f.R_PAUSE
    assert f.SERVER.index("sharing") == 20
    assert f.MOVE.index("sharing") == 13
    for names in (f.RANK, f.SERVER, f.MOVE):
        assert len(set(names)) == len(names)
    assert set(f.ML_COLUMNS) <= set(f.RANK)


def test_a_job_that_waits() -> None:
    seen = features()
    assert seen["placed"] == 0.0
    assert seen["left_told"] == pytest.approx(math.log(100 / 30) / math.log(5760), rel=1e-5)
    assert seen["left"] == seen["left_told"]
    assert seen["gpus"] == pytest.approx(1 / 3, rel=1e-6)  # log 4 / log 64
    assert seen["waited"] == pytest.approx(math.log1p(1) / math.log1p(2880), rel=1e-5)  # one minute
    assert (seen["has_deadline"], seen["slack"], seen["late"]) == (0.0, 1.0, 0.0)
    assert seen["first"] == 1.0
    assert seen["queued_demand"] == pytest.approx(math.log1p(4 / 8) / math.log1p(50), rel=1e-5)
    assert seen["free_frac"] == 1.0
    assert seen["sharing"] == 0.0


def test_what_it_has_done() -> None:
    """20 of 80 units in 40 s: 60 more take 120 s, whatever its owner said."""
    seen = features(units_total=80, units_done=20, run=40 * US, loss_drops=1000, loss_drop_last=250)
    assert seen["left"] == pytest.approx(math.log(120 / 30) / math.log(5760), rel=1e-5)
    assert seen["left_told"] == pytest.approx(math.log(60 / 30) / math.log(5760), rel=1e-5)
    assert seen["progress"] == 0.25
    assert seen["loss_ratio"] == 0.25
    assert seen["first"] == pytest.approx(1 / 21, rel=1e-6)


def test_a_deadline() -> None:
    assert features(deadline=60 * US + 6 * 3600 * US)["slack"] == pytest.approx(0.25, rel=1e-6)
    assert features(deadline=30 * US)["late"] == 1.0


def test_a_fitted_curve_says_where_a_job_will_stop() -> None:
    """y = 0.9 − 0.4/(1 + 0.1 (k − 20)) from level 0.5 at k = 20 on: it is at 0.885, which is near enough to 0.9, where
    1 + 0.1 x = 0.4/0.015, x = 256.67 units later: 2 s each."""
    made = state(cluster([4, 4]), [job("a", 4, 100)])
    row = int(made.live_rows()[0])
    J = made.J
    J[c.J_UNITS_TOTAL, row], J[c.J_UNITS_DONE, row], J[c.J_RUN, row] = 1000, 20, 40 * US
    J[c.J_ACCURACY, row], J[c.J_RULE_IN_FORCE, row] = 500_000, 1
    made.F[8:16, row] = [20, 0.5, 0.04, 0.1, 1.0, 0.9, 0.01, 0.1]
    found = rank_features(ClusterView(made, 60 * US, 0), np.array([row]), sharing=True)[0]
    seen = dict(zip(f.RANK, found.tolist(), strict=True))
    assert seen["left"] == pytest.approx(math.log(2 * 256.6667 / 30) / math.log(5760), rel=1e-4)
    assert (seen["has_curve"], seen["stops_early"], seen["plateau"]) == (1.0, 1.0, pytest.approx(0.9))
    J[c.J_RULE_IN_FORCE, row] = 0
    found = rank_features(ClusterView(made, 60 * US, 0), np.array([row]), sharing=True)[0]
    assert found[f.R_LEFT] == pytest.approx(math.log(2 * 980 / 30) / math.log(5760), rel=1e-4)


def test_models_are_told_apart_by_name() -> None:
    assert features(model=2)["is_resnet"] == 1.0
    assert sum(features(model=2)[f"is_{name}"] for name in f.MODELS) == 1.0
    assert sum(features(model=-1)[f"is_{name}"] for name in f.MODELS) == 0.0


def test_all_is_about_one() -> None:
    made = state(cluster([4, 4]), [job(f"j{i}", 1 + i % 4, 10.0 ** (i % 6)) for i in range(30)])
    found = rank_features(ClusterView(made, 10**12, 0), made.live_rows())
    assert found.min() >= -1.0
    assert found.max() <= 4.0
    assert np.isfinite(found).all()
