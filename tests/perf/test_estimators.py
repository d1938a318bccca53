"""The one way in: batches of jobs, odd ones among them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from headway.core.columns import ESTIMATE_PARAMS_MAX, Estimator
from headway.perf import forecast
from headway.perf.estimators import JobHistory, answer, reports_accuracy
from headway.perf.params import R_MEDIAN, Status
from headway.perf.speed import Form, step_s

K = np.arange(1.0, 41)
LOSS = 2 / (1 + 0.2 * K) + 0.3


@pytest.mark.parametrize("kind", list(Estimator))
def test_every_kind_answers_for_every_job(kind: Estimator) -> None:
    odd = JobHistory(
        k=np.array([np.nan, 1]), loss=np.array([1.0]), accuracy=np.array([np.inf] * 3), step_s=np.array([np.nan]), workers=K,
        run_s=np.nan, units_done=-1, units_total=0,
    )  # fmt: skip
    found = answer(kind, [JobHistory(), odd])
    assert found.params.shape == (2, ESTIMATE_PARAMS_MAX)
    assert all(status >= Status.NO_DATA for status in found.status)
    assert answer(kind, []).params.shape == (0, ESTIMATE_PARAMS_MAX)


def test_curves_of_accuracy_where_there_is_one_else_of_loss() -> None:
    rising = 0.9 - 0.8 / (1 + 0.2 * K)
    jobs = [
        JobHistory(k=K, loss=LOSS),
        JobHistory(k=K, loss=LOSS, accuracy=rising),
        JobHistory(k=K, accuracy=LOSS, mode_max=False),
    ]
    params = answer(Estimator.CURVE, jobs).params
    assert forecast.plateau(params) == pytest.approx([0.3, 0.9, 0.3], abs=0.25)
    assert list(np.sign(params[:, 2])) == [-1, 1, -1]
    by_loss = answer(Estimator.CURVE, jobs[1:2], of_accuracy=False).params
    assert by_loss.tobytes() == params[0].tobytes()
    assert not reports_accuracy(JobHistory(k=K, accuracy=np.full(40, np.nan)))


def test_policies_defined_by_optimus_curve_get_it() -> None:
    params = answer(Estimator.INVERSE, [JobHistory(k=K, loss=LOSS)]).params[0]
    # 2/(1 + 0.2 k) + 0.3: b0 = 0.1, b1 = 0.5, b2 = 0.3
    assert forecast.inverse_of(params) == pytest.approx([0.1, 0.5, 0.3], rel=0.05)


def test_a_declared_total_and_a_required_accuracy_are_used() -> None:
    rising = 0.9 - 0.8 / (1 + 0.2 * K)
    free, given = answer(
        Estimator.CURVE,
        [JobHistory(k=K, accuracy=rising), JobHistory(k=K, accuracy=rising, units_total=60, accuracy_required=0.84)],
    ).params
    # 0.84 = 0.9 − 0.8/(1 + 0.2 k): k = 61.7
    assert float(forecast.k_at(given, 0.84, given=True)) == pytest.approx(61.7, rel=0.1)
    spread = [float(forecast.plateau(p, 0.95) - forecast.plateau(p, 0.05)) for p in (free, given)]
    assert spread[0] != spread[1]


def test_speeds_of_both_forms() -> None:
    w = np.array([1.0, 2, 4, 8])
    job = JobHistory(step_s=0.5 / w + 0.1, workers=w, batch=32 / w)
    for form in Form:
        params = answer(Estimator.SPEED, [job], form=form).params[0]
        assert params[0] == form
        assert float(step_s(params, 4, 0, 1, 8.0)) == pytest.approx(0.225, rel=0.1)


def test_remaining_of_progress_and_history() -> None:
    job = JobHistory(k=K, run_s=100, units_done=50, units_total=100, like_s=[190.0, 200.0, 210.0])
    assert float(answer(Estimator.REMAINING, [job]).params[0, R_MEDIAN]) == pytest.approx(100, rel=0.02)


def test_importing_compiles_nothing() -> None:
    program = "import sys, headway.perf.estimators; sys.exit(any(m in sys.modules for m in ('numba', 'pyarrow', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
