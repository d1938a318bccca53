"""Step time as a function of workers, servers, nodes and batch, learned from a job's own measured step times.

Two forms, both with non-negative coefficients in eight numbers (`headway.perf.params`, SPEED); m is the batch of one worker:

- OPTIMUS (Peng et al., EuroSys'18, synchronous): `T = c0·m + c1 + c2·w/p + c3·w + c4·p + c5·[nodes > 1]`, w workers, p
  servers (without servers `c2·(w − 1)/w` and `c3·(w − 1)`: a ring). Linear: NNLS on relative errors.
- POLLUX (Qiao et al., OSDI'21): `T = (Tg^γ + Ts^γ)^(1/γ)`, `Tg = αc + βc·m`, Ts = 0 for one worker, `αr + βr·(w − 2)` on one
  node and `αn + βn·(w − 2)` on several; γ in 1…10 says how far communication hides behind compute. Levenberg–Marquardt on log
  errors.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Floats
from headway.perf.nnls import nnls
from headway.perf.params import S_FORM, WIDTH, Status, no_estimate


class Form(IntEnum):
    """The form of a SPEED vector, its first number."""

    OPTIMUS = 1
    POLLUX = 2


OPTIMUS_COLUMNS = 6
POLLUX_COLUMNS = 7
GAMMA_MAX = 10.0
STEPS = 60
STARTS = (1.2, 3.0)
ROWS_MAX = 4096


def _numbers(*columns: ArrayLike) -> list[Floats]:
    return [np.asarray(c, np.float64) for c in np.broadcast_arrays(*columns)]


def _regressors(workers: Floats, servers: Floats, nodes: Floats, batch: Floats) -> Floats:
    ring = servers <= 0
    by_servers = np.where(ring, (workers - 1) / workers, workers / np.where(ring, 1.0, servers))
    by_workers = np.where(ring, workers - 1, workers)
    many = (nodes > 1).astype(np.float64)
    return np.stack([batch, np.ones_like(workers), by_servers, by_workers, np.maximum(servers, 0.0), many], axis=-1)


def _pollux_s(log_c: Floats, workers: Floats, nodes: Floats, batch: Floats) -> Floats:
    """Step time from the logarithms of αc βc αr βr αn βn and of γ − 1 (one row of coefficients or many)."""
    c = np.exp(np.clip(log_c, -40.0, 40.0))
    compute = c[..., 0:1] + c[..., 1:2] * batch
    beyond = np.maximum(workers - 2, 0.0)
    local, remote = c[..., 2:3] + c[..., 3:4] * beyond, c[..., 4:5] + c[..., 5:6] * beyond
    sync = np.where(workers > 1, np.where(nodes > 1, remote, local), 0.0)
    return _norm(compute, sync, np.minimum(1 + c[..., 6:7], GAMMA_MAX))


def _norm(compute: Floats, sync: Floats, gamma: Floats) -> Floats:
    longer, shorter = np.maximum(compute, sync), np.minimum(compute, sync)
    share = shorter / np.maximum(longer, 1e-300)
    result: Floats = longer * (1 + share**gamma) ** (1 / gamma)
    return result


def step_s(params: Floats, workers: ArrayLike, servers: ArrayLike = 0, nodes: ArrayLike = 1, batch: ArrayLike = 1.0) -> Floats:
    """Seconds per step that a SPEED vector predicts; NaN without an estimate. `batch` is that of one worker."""
    w, p, n, m = _numbers(workers, servers, nodes, batch)
    form = params[S_FORM]
    if form == Form.OPTIMUS:
        result: Floats = _regressors(w, p, n, m) @ params[1 : 1 + OPTIMUS_COLUMNS]
        return result
    if form == Form.POLLUX:
        c = params[1 : 1 + POLLUX_COLUMNS]
        beyond = np.maximum(w - 2, 0.0)
        sync = np.where(w > 1, np.where(n > 1, c[4] + c[5] * beyond, c[2] + c[3] * beyond), 0.0)
        return _norm(c[0] + c[1] * m, sync, c[6])
    return np.full(w.shape, np.nan)


def _usable(*columns: ArrayLike) -> list[Floats]:
    """The rows whose numbers are all finite, with a positive step time (first column) and at least one worker (second)."""
    rows = [c[:ROWS_MAX] for c in _numbers(*(np.atleast_1d(np.asarray(c, np.float64)) for c in columns))]
    keep = np.all(np.isfinite(rows), axis=0) & (rows[0] > 0) & (rows[0] < 1e15) & (rows[1] >= 1)
    keep &= np.all(np.abs(rows) < 1e15, axis=0)
    return [c[keep] for c in rows]


def fit_optimus(
    step: ArrayLike, workers: ArrayLike, servers: ArrayLike = 0, nodes: ArrayLike = 1, batch: ArrayLike = 1.0
) -> Floats:
    """The OPTIMUS vector of measured step times (s); rows that can't be used are left out. Any number of rows will do."""
    t, w, p, n, m = _usable(step, workers, servers, nodes, batch)
    if len(t) == 0:
        return no_estimate(Status.NO_DATA)
    a = _regressors(w, p, n, m) / t[:, None]
    params = np.zeros(WIDTH)
    params[S_FORM] = Form.OPTIMUS
    params[1 : 1 + OPTIMUS_COLUMNS] = nnls(a[None], np.ones((1, len(t))))[0]
    return params


def fit_pollux(step: ArrayLike, workers: ArrayLike, nodes: ArrayLike = 1, batch: ArrayLike = 1.0) -> Floats:
    """The POLLUX vector of measured step times (s). What was never measured (several nodes, say) costs as little as it can:
    nothing on one node, what one node costs on several."""
    t, w, n, m = _usable(step, workers, nodes, batch)
    if len(t) == 0:
        return no_estimate(Status.NO_DATA)
    log_t, low = np.log(t), float(t.min())
    start = np.array([low / 2, low / 2 / max(float(m.mean()), 1e-9), low / 4, low / 100, low / 2, low / 50, 1.0])
    fits = []
    for gamma in STARTS:
        begin = np.log(np.maximum(start, 1e-12))
        begin[6] = np.log(gamma - 1)
        fits.append(_descend(begin, log_t, w, n, m))
    _, best = min(fits, key=lambda fit: fit[0])
    c = np.exp(np.clip(best, -40.0, 40.0))
    c[6] = min(1 + c[6], GAMMA_MAX)
    local, remote = (w > 1) & (n <= 1), (w > 1) & (n > 1)
    for of, at in ((local, 2), (remote, 4)):
        if not of.any():
            c[at : at + 2] = 0.0
        elif not (of & (w > 2)).any():
            c[at + 1] = 0.0
    if not remote.any():
        c[4:6] = c[2:4]
    return np.concatenate([[float(Form.POLLUX)], c])


def _descend(x: Floats, log_t: Floats, w: Floats, n: Floats, m: Floats) -> tuple[float, Floats]:
    """Levenberg–Marquardt with differences for derivatives: (loss, coefficients)."""
    prior = x.copy()

    def residual(x: Floats) -> Floats:
        predicted = np.log(np.maximum(_pollux_s(x, w, n, m), 1e-300))
        pull = 0.003 * np.sqrt(len(log_t)) * (x - prior)
        return np.concatenate([np.atleast_2d(predicted - log_t), np.atleast_2d(pull)], axis=1)

    rest = residual(x)[0]
    loss, damping = float(rest @ rest), 1e-2
    for _ in range(STEPS):
        moved = x + 1e-4 * np.eye(len(x))
        jacobian = (residual(moved) - rest).T / 1e-4
        inner, right = jacobian.T @ jacobian, jacobian.T @ rest
        for _ in range(8):
            step = np.linalg.solve(inner + damping * np.diag(np.diag(inner) + 1e-6), right)
            tried = np.clip(x - step, -40.0, 20.0)
            rest_tried = residual(tried)[0]
            loss_tried = float(rest_tried @ rest_tried)
            if loss_tried < loss:
                break
            damping *= 4
        else:
            break
        done = loss - loss_tried < 1e-9 * loss
        x, rest, loss, damping = tried, rest_tried, loss_tried, max(damping / 5, 1e-9)
        if done:
            break
    return loss, x
