"""`python -m headway.perf.evaluate --data DIR`: how good the curve forecasts are on real training runs, and the factors of their
intervals.

Half of the runs (whole groups of near-repeats) set the factors, the other half is reported on. A run is looked at when 10, 20
… 80 % of its training, up to the k at which it reaches its target, have been observed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.arrays import Bools, Floats
from headway.core.errors import UserError
from headway.perf import forecast
from headway.perf.calibrate import NAIVE, Calibration, as_json, measure, shipped
from headway.perf.curve import CurveFits, fit_curves
from headway.perf.document import replace_section, table
from headway.perf.observed import rolling_median
from headway.perf.optimus import fit_inverse
from headway.perf.params import C_K_LAST, C_PLATEAU, C_PLATEAU_SPREAD, C_SLOPE, C_TIME_SPREAD
from headway.perf.series import Series, read_series

SHARES = np.arange(1, 9) / 10
SEEN_MIN = 2
CAP = 20.0
"""A forecast of k beyond so many times k_last counts as that many (no forecast of `never` is worth more than one of `late`)."""
SECTION = "curves"
LATE = 0.5
GROUPS_MIN = 3


@dataclass(frozen=True, slots=True)
class Cases:
    """Runs as seen at some share of their training."""

    runs: list[Series]
    share: Floats
    seen: list[tuple[Floats, Floats]]
    rising: Bools
    target: Floats
    k_target: Floats
    k_last: Floats
    final: Floats

    def of(self, name: str) -> Bools:
        """Which cases come from a table."""
        return np.array([run.table == name for run in self.runs])


def cases(series: list[Series]) -> Cases:
    """Every run at every share at which it has two observations or more."""
    picked = [(s, f) for s in series for f in SHARES if np.count_nonzero(s.k <= f * s.k_target) >= SEEN_MIN]
    runs = [s for s, _ in picked]
    seen = [(s.k[s.k <= f * s.k_target], s.y[s.k <= f * s.k_target]) for s, f in picked]

    def final(s: Series) -> float:
        smooth = rolling_median(s.y, 3)
        return float(smooth.max() if s.rising else smooth.min())

    finals = {id(s): final(s) for s in series}
    return Cases(
        runs,
        np.array([f for _, f in picked]),
        seen,
        np.array([s.rising for s in runs]),
        np.array([s.target for s in runs]),
        np.array([s.k_target for s in runs]),
        np.array([k[-1] for k, _ in seen]),
        np.array([finals[id(s)] for s in runs]),
    )


def family_ends(series: list[Series]) -> dict[str, tuple[float, float]]:
    """Where runs of a family reach their targets: the median over groups, and the robust standard deviation of its logarithm.

    Near-repeats count once; a family of fewer than GROUPS_MIN groups says little of the next one.
    """
    members: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for s in series:
        members[f"{s.table}/{s.family}"][s.group].append(math.log(s.k_target))
    ends = {}
    for name, groups in members.items():
        logs = np.array([np.median(group) for group in groups.values()])
        middle = float(np.median(logs))
        spread = 1.3 * 1.4826 * float(np.median(np.abs(logs - middle))) + 0.05
        ends[name] = (math.exp(middle), min(max(spread, 0.1 if len(logs) >= GROUPS_MIN else 0.5), 3.0))
    return ends


def known_ends(c: Cases, ends: dict[str, tuple[float, float]] | None) -> Floats:
    """(cases × 2) the end of the family and its spread; NaN where it isn't known."""
    none = (np.nan, 1.0)
    return np.array([ends.get(f"{s.table}/{s.family}", none) if ends else none for s in c.runs])


def fits(c: Cases, ends: dict[str, tuple[float, float]] | None, calibration: Calibration) -> CurveFits:
    """Fit all cases; with `ends`, as a scheduler does that has seen finished jobs of the families."""
    end = known_ends(c, ends)
    return fit_curves(c.seen, c.rising, target=c.target, k_end=end[:, 0], k_end_log_sd=end[:, 1], calibration=calibration)


def median_k(c: Cases, params: Floats) -> Floats:
    """The forecast of k at the target, capped; k_last where there is no estimate or the target seems reached."""
    k = np.asarray(forecast.k_at(params, c.target, given=True))
    return np.clip(np.where(np.isnan(k), c.k_last, k), c.k_last, CAP * c.k_last)


def calibrate(series: list[Series]) -> Calibration:
    """The factors from naive fits. A run's family is told from the runs of the other fold: never from itself."""
    folds = [[s for s in series if s.fold == fold] for fold in (0, 1)]
    parts = []
    for own, other in (folds, folds[::-1]):
        c = cases(own)
        for ends in (None, family_ends(other)):
            fit, known = fits(c, ends, NAIVE), np.isfinite(known_ends(c, ends)[:, 0])
            k = np.asarray(forecast.k_at(fit.params, c.target, given=True))
            live = np.isfinite(k) & (k > c.k_last * 1.001) & (fit.params[:, C_SLOPE] != 0)
            points = np.array([len(k) for k, _ in c.seen])
            left = np.log((c.k_target - c.k_last)[live] / (k - c.k_last)[live])
            stratum = Calibration.stratum(k[live] / c.k_last[live], points[live], known[live])
            params = fit.params[live]
            error = c.final[live] - params[:, C_PLATEAU]
            parts.append((left, params[:, C_TIME_SPREAD], error, params[:, C_PLATEAU_SPREAD], stratum))
    left, sd, error, spread, stratum = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return measure(left, sd, error, np.maximum(spread, 1e-12), stratum)


def percent(value: float) -> str:
    """A share as people read it."""
    return f"{100 * value:.0f} %" if np.isfinite(value) else "–"


def _median(c: Cases, values: Floats) -> list[str]:
    return _by_share(c, lambda r: float(np.median(values[r])), percent)


def _share(c: Cases, values: Bools, of: Bools | None = None) -> list[str]:
    return _by_share(c, lambda r: float(np.mean(values[r])), percent, of)


def _width(c: Cases, log_width: Floats) -> list[str]:
    return _by_share(c, lambda r: float(np.exp(np.median(log_width[r]))), lambda v: f"{v:.2f}")


def _by_share(c: Cases, of: Callable[[Bools], float], show: Callable[[float], str], only: Bools | None = None) -> list[str]:
    rows = np.ones(len(c.share), np.bool_) if only is None else only
    late = rows & (c.share >= LATE)
    return [show(of(rows & (c.share == f))) for f in SHARES] + [show(of(late)), show(of(rows))]


@dataclass(frozen=True, slots=True)
class Judged:
    """Forecasts of one method: relative error, whether the interval covers, and its width as a log ratio."""

    error: Floats
    covers: Bools
    width: Floats


def judge(c: Cases, k: Floats, low: Floats, high: Floats) -> Judged:
    """Compare forecasts of k at the target with what happened. A forecast counts as k_last at least, CAP · k_last at most."""
    low, high = np.maximum(low, c.k_last), np.maximum(high, c.k_last)
    covers = (low <= c.k_target) & (c.k_target <= high)
    width = np.log(np.minimum(high, CAP * c.k_last) / np.minimum(low, CAP * c.k_last))
    return Judged(np.abs(np.clip(k, c.k_last, CAP * c.k_last) / c.k_target - 1), covers, width)


def ours(c: Cases, fit: CurveFits) -> Judged:
    """Judge fitted curves; where there is no estimate the forecast is k_last and the interval everything."""
    none = np.isnan(fit.params[:, C_K_LAST]) | (fit.params[:, C_SLOPE] == 0)
    low, high = (np.asarray(forecast.k_at(fit.params, c.target, q, given=True)) for q in (0.05, 0.95))
    reached = low == c.k_last
    return judge(c, median_k(c, fit.params), np.where(none, c.k_last, low), np.where(none | reached, np.inf, high))


def without_factors(c: Cases, fit: CurveFits) -> Judged:
    """Judge curves that were fitted with `NAIVE` factors by the spread of their mixture alone, symmetric in the log."""
    k, sd = median_k(c, fit.params), forecast.Z90 * np.nan_to_num(fit.params[:, C_TIME_SPREAD])
    left = k - c.k_last
    return judge(c, k, c.k_last + left * np.exp(-sd), c.k_last + left * np.exp(sd))


def optimus(c: Cases) -> Judged:
    """Judge Optimus' curve with the interval of its covariance."""
    with np.errstate(all="ignore"):
        k, sd = fit_inverse(c.seen, c.rising).k_at(c.target)
        k = np.where(np.isnan(k), np.inf, k)
        low, high = k - forecast.Z90 * sd, k + forecast.Z90 * sd
    return judge(c, k, np.where(np.isnan(low), k, low), np.where(np.isnan(high), k, high))


def report(held_out: Cases, calibration: Calibration, ends: dict[str, tuple[float, float]]) -> str:
    """The text of the section."""
    c = held_out
    cold, warm = fits(c, None, calibration), fits(c, ends, calibration)
    methods = {
        "Headway, curve alone": ours(c, cold),
        "Headway, family known": ours(c, warm),
        "Optimus' curve": optimus(c),
        "always 1.6 × what is done": judge(c, 1.6 * c.k_last, c.k_last, 2.6 * c.k_last),
    }
    intervals = {
        **dict(list(methods.items())[:2]),
        "curve alone, naive interval": without_factors(c, fits(c, None, NAIVE)),
        "Optimus' curve, its covariance": methods["Optimus' curve"],
    }
    head = ["", *(f"{100 * f:.0f} %" for f in SHARES), "≥ 50 %", "all"]
    rows = [["cases", *_by_share(c, np.count_nonzero, lambda v: f"{v:,.0f}")]]
    lines = [
        f"{len({id(s) for s in c.runs}):,} runs that the intervals were not set on, in {len(c.share):,} cases.",
        "",
        "Median error |k̂ − k| / k of the predicted k at the target, by the share of training that was seen:",
        "",
        table(head, rows + [[name, *_median(c, j.error)] for name, j in methods.items()]),
        "",
        "Coverage of the 90 % interval of k:",
        "",
        table(head, [[name, *_share(c, j.covers)] for name, j in intervals.items()]),
        "",
        f"Median width of that interval, upper / lower end (both at most {CAP:.0f} × what is done: `never` has no width):",
        "",
        table(head, [[name, *_width(c, j.width)] for name, j in intervals.items()]),
        "",
        "By table (curve alone): median error, and coverage over all shares:",
        "",
        _by_table(c, ours(c, cold), ours(c, warm)),
        "",
        "The value at the end of training: coverage of its 90 % interval, and median |error| / (improvement from first to best):",
        "",
        table(
            head, [row for name, fit in (("curve alone", cold), ("family known", warm)) for row in _plateau_rows(c, name, fit)]
        ),
    ]
    return "\n".join(lines)


def _by_table(c: Cases, cold: Judged, warm: Judged) -> str:
    rows = []
    for name in sorted({s.table for s in c.runs}):
        of = c.of(name)

        def error(j: Judged, low: float, high: float, of: Bools = of) -> str:
            return percent(float(np.median(j.error[of & (c.share >= low) & (c.share <= high)])))

        cover = percent(float(np.mean(cold.covers[of])))
        runs = len({id(s) for s, yes in zip(c.runs, of, strict=True) if yes})
        rows.append([name, f"{runs:,}", error(cold, 0, 0.45), error(cold, 0.45, 1), error(warm, 0.45, 1), cover])
    return table(["table", "runs", "before half-way", "after", "after, family known", "coverage"], rows)


def _plateau_rows(c: Cases, name: str, fit: CurveFits) -> list[list[str]]:
    low, middle, high = (np.asarray(forecast.plateau(fit.params, q)) for q in (0.05, 0.5, 0.95))
    first = np.array([y[0] for _, y in c.seen])
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(middle - c.final) / np.abs(c.final - first)
    covers = (low <= c.final) & (c.final <= high)
    known = np.isfinite(error)
    return [
        [f"{name}: coverage", *_by_share(c, lambda r: float(np.mean(covers[r & known])), percent)],
        [f"{name}: error", *_by_share(c, lambda r: float(np.median(error[r & known])), percent)],
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure, write the factors, and put the tables into the page."""
    parser = argparse.ArgumentParser(
        prog="python -m headway.perf.evaluate", description=__doc__.split("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds curves/")
    parser.add_argument("--page", type=Path, help="Markdown page whose section is replaced (default: standard output)")
    parser.add_argument("--calibration", type=Path, help="write the factors there (default: use the shipped ones)")
    given = parser.parse_args(argv)
    try:
        if not (given.data / "curves").is_dir():
            raise UserError("expected a folder that holds curves/", file=str(given.data))
        series = read_series(given.data)
        fitted = [s for s in series if not s.held_out]
        ends = family_ends(fitted)
        calibration = shipped()
        if given.calibration:
            calibration = calibrate(fitted)
            given.calibration.write_text(as_json(calibration), "utf-8")
        text = report(cases([s for s in series if s.held_out]), calibration, ends)
        if given.page:
            given.page.write_text(replace_section(given.page.read_text("utf-8"), SECTION, text), "utf-8")
        else:
            sys.stdout.write(text + "\n")
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
