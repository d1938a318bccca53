"""Real training curves as the commands `headway.perf.fit` and `headway.perf.evaluate` read them from the public tables.

Only these two commands read tables; nothing that schedules does.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.arrays import Floats
from headway.perf.observed import rolling_median

POINTS_MIN = 12
PER_FAMILY_MAX = 160
"""Runs of one family that are used: the tables hold thousands of near-repeats of some."""
SMOOTH = 3
REACHED = 0.98
"""Where no target is published, it is this share of the run's whole improvement."""
METRICS = {
    "criteo1tb": ("validation/loss", False),
    "fastmri": ("validation/ssim", True),
    "imagenet_resnet": ("validation/accuracy", True),
    "imagenet_vit": ("validation/accuracy", True),
    "librispeech_conformer": ("validation/wer", False),
    "librispeech_deepspeech": ("validation/wer", False),
    "ogbg": ("validation/mean_average_precision", True),
    "wmt": ("validation/bleu", True),
}
FALLING = frozenset({"rnnt", "gpt3", "llama2_70b_lora", "llama31_405b", "llama31_8b", "flux1"})
POLLUX_FALLING = frozenset({"deepspeech2", "yolov3"})


@dataclass(frozen=True, slots=True)
class Series:
    """One run: `y` at `k` (increasing; steps, samples or epochs), whether it rises, and the `target` that it reaches at
    `k_target`.

    `family` names what repeats (same model and data set); runs of one `group` are near-repeats and stay in one split.
    """

    table: str
    family: str
    group: str
    k: Floats
    y: Floats
    rising: bool
    target: float
    k_target: float

    @property
    def held_out(self) -> bool:
        """Whether the run is reported on rather than fitted to: half of the groups, by a checksum of the name."""
        return zlib.crc32(self.group.encode()) % 2 == 1

    @property
    def fold(self) -> int:
        """Which half of its half the run belongs to, by the same checksum."""
        return zlib.crc32(self.group.encode()) // 2 % 2


def make_series(table: str, family: str, group: str, k: Any, y: Any, rising: bool, target: float | None = None) -> Series | None:
    """A run with its target, or None if it is too short, doesn't improve, or doesn't reach a target that is given."""
    k, y = np.asarray(k, np.float64), np.asarray(y, np.float64)
    keep = np.isfinite(k) & np.isfinite(y) & (k > 0)
    k, y = k[keep], y[keep]
    k, first = np.unique(k, return_index=True)
    y = y[first]
    if len(k) < POINTS_MIN:
        return None
    gain = y if rising else -y
    if target is None:
        smooth = rolling_median(gain, SMOOTH)
        start, best = float(smooth[:2].min()), float(smooth.max())
        if best - start <= 0.05 * max(abs(float(best)), 1e-12):
            return None
        goal = start + REACHED * (best - start)
        reached = np.flatnonzero(smooth >= goal)
    else:
        goal = target if rising else -target
        reached = np.flatnonzero(gain >= goal)
    if len(reached) == 0 or reached[0] < POINTS_MIN - 2:
        return None
    return Series(table, family, group, k, y, rising, goal if rising else -goal, float(k[reached[0]]))


def _spread(series: list[Series], most: int) -> list[Series]:
    """At most `most` of them, in an order that depends on names alone."""
    ranked = sorted(series, key=lambda s: (zlib.crc32(f"{s.group}|{s.k_target}|{s.y[0]}".encode()), s.group))
    return ranked[:most]


def _limited(series: list[Series]) -> list[Series]:
    families: dict[str, list[Series]] = defaultdict(list)
    for s in series:
        families[s.family].append(s)
    return [s for name in sorted(families) for s in _spread(families[name], PER_FAMILY_MAX)]


def _columns(path: Path, names: list[str]) -> dict[str, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=names)
    return {name: table[name].to_numpy(zero_copy_only=False) for name in names}


def _runs(keys: Any) -> list[tuple[Any, Any]]:
    """(key, row numbers) of each distinct key, in order of first appearance."""
    rows: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return [(key, np.array(found)) for key, found in rows.items()]


def algoperf(folder: Path) -> list[Series]:
    """Validation metric and training loss of AlgoPerf v0.5."""
    metrics = sorted({metric for metric, _ in METRICS.values()} | {"train/loss"})
    names = ["submission", "study", "workload", "trial", "global_step", *metrics]
    t = _columns(folder / "algoperf-v05.parquet", names)
    found = []
    for (submission, study, workload, trial), rows in _runs(zip(*(t[n] for n in names[:4]), strict=True)):
        base = next((name for name in METRICS if workload and workload.startswith(name)), None)
        if base is None:
            continue
        metric, rising = METRICS[base]
        k = t["global_step"][rows]
        order = np.argsort(k, kind="stable")
        group = f"{submission}/{workload}/{study}/{trial}".rsplit("/", 2)[0]
        for kind, column, up in (("metric", metric, rising), ("loss", "train/loss", False)):
            y = t[column][rows][order]
            found.append(make_series("algoperf", f"{base}.{kind}", group, k[order], y, up))
    return _limited([s for s in found if s])


def nanogpt(folder: Path) -> list[Series]:
    """Validation loss of the modded-nanogpt records."""
    t = _columns(folder / "nanogpt.parquet", ["log", "step", "val_loss"])
    found = []
    for log, rows in _runs(t["log"]):
        track, record = log.split("/")[:2]
        found.append(make_series("nanogpt", track, record, t["step"][rows], t["val_loss"][rows], False))
    return _limited([s for s in found if s])


def mlperf(folder: Path) -> list[Series]:
    """Quality of successful MLPerf runs: the target is what (nearly) all runs of the same round end with."""
    runs = _columns(
        folder / "mlperf-runs.parquet", ["run_id", "round", "submitter", "system", "benchmark", "run_status", "division"]
    )
    about = {
        run: (rnd, f"{rnd}/{submitter}/{system}/{bench}", bench)
        for run, rnd, submitter, system, bench, status, division in zip(*runs.values(), strict=True)
        if status == "success" and division == "closed"
    }
    t = _columns(folder / "mlperf-evals.parquet", ["run_id", "metric", "t_s", "value", "epoch_num", "samples_count"])
    curves: dict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for run, rows in _runs(t["run_id"]):
        if run not in about or len(rows) < POINTS_MIN:
            continue
        rnd, group, bench = about[run]
        metric = t["metric"][rows]
        rows = rows[metric == sorted(set(metric))[0]]
        rising = bench not in FALLING
        value = t["value"][rows]
        if metric[0] == "eval_accuracy/FID" or "FID" in set(metric):
            continue
        k = t["epoch_num"][rows]
        if not np.all(np.diff(k) > 0):
            k = t["t_s"][rows]
        if len(rows) >= POINTS_MIN and np.all(np.isfinite(value)):
            curves[rnd, bench].append((group, k, value, rising))
    found = []
    for (_, bench), members in curves.items():
        rising = members[0][3]
        last = np.array([value[-1] for _, _, value, _ in members])
        target = float(np.quantile(last, 0.02 if rising else 0.98))
        found += [make_series("mlperf", bench, group, k, value, up, target) for group, k, value, up in members]
    return _limited([s for s in found if s])


def pollux(folder: Path) -> list[Series]:
    """Validation metric of the six Pollux models at several batch sizes."""
    with gzip.open(folder / "pollux-validation.csv.gz", "rt") as stream:
        rows = list(csv.DictReader(stream))
    found = []
    for (model, batch), picked in _runs((row["model"], row["batch_size"]) for row in rows):
        k = [float(rows[i]["progress"]) for i in picked]
        y = [float(rows[i]["metric"]) for i in picked]
        found.append(make_series("pollux", model, f"{model}/{batch}", k, y, model not in POLLUX_FALLING))
    return [s for s in found if s]


def read_series(data: Path) -> list[Series]:
    """All runs that can be evaluated on, under `data/curves`."""
    folder = data / "curves"
    return algoperf(folder) + mlperf(folder) + nanogpt(folder) + pollux(folder)
