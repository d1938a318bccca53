"""`python -m headway.perf.fit --data DIR -o CATALOGUE`: fit the catalogue of models to public tables of measurements and curves.

The same tables give the same file. One row in four is held out: errors are those of the held-out rows. No raw row is written.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.arrays import Floats
from headway.core.errors import UserError
from headway.perf.catalogue import VERSION
from headway.perf.document import replace_section, table
from headway.perf.measured import SOURCES, Row, gavel, mpt, pipedream, pollux, zeus
from headway.perf.nnls import nnls
from headway.perf.observed import rolling_median
from headway.perf.series import Series, read_series
from headway.perf.speed import fit_pollux, step_s

SECTION = "fits"
SHARES = np.arange(1, 11) / 10
SHAPE_RATES = np.geomspace(0.03, 3000, 41)
SHAPE_POWERS = (-0.6, -0.3, 0.01, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 6.0)
BYTES_PER_PARAMETER = 4
BATCH_UNIT = "10^12 floating-point operations of one GPU in a step, recomputation included"
CURVES = {
    "mlperf/resnet": "resnet50-imagenet",
    "algoperf/imagenet_resnet.metric": "resnet50-imagenet",
    "pollux/imagenet": "resnet50-imagenet",
    "pollux/cifar10": "resnet18-cifar10",
    "pollux/deepspeech2": "deepspeech2",
    "pollux/yolov3": "yolov3-voc",
    "algoperf/librispeech_deepspeech.metric": "deepspeech2",
    "algoperf/librispeech_conformer.metric": "conformer-librispeech",
    "algoperf/imagenet_vit.metric": "vit-imagenet",
    "algoperf/wmt.metric": "transformer-translation",
    "algoperf/wmt.loss": "transformer-translation",
    "algoperf/ogbg.metric": "gnn-ogbg",
    "algoperf/fastmri.metric": "unet-fastmri",
    "algoperf/criteo1tb.metric": "dlrm-criteo",
    "mlperf/dlrm": "dlrm-criteo",
    "mlperf/dlrm_dcnv2": "dlrm-dcnv2",
    "mlperf/bert": "bert-large",
    "mlperf/maskrcnn": "maskrcnn-coco",
    "mlperf/ssd": "ssd-coco",
    "mlperf/rnnt": "rnnt-librispeech",
    "mlperf/unet3d": "unet3d-kits19",
    "mlperf/minigo": "minigo",
    "mlperf/rgat": "rgat-igbh",
    "mlperf/gnn": "rgat-igbh",
    "mlperf/gpt3": "gpt3-175b",
    "mlperf/llama31_8b": "llama31-8b",
    "mlperf/llama2_70b_lora": "llama2-70b-lora",
    "mlperf/flux1": "flux1",
    "nanogpt/track_1_short": "nanogpt-124m",
    "nanogpt/track_3_optimization": "nanogpt-124m",
    "nanogpt/track_2_medium": "nanogpt-350m",
}
RUNS_MIN = 4


def rounded(value: float, digits: int = 6) -> float:
    """So many significant digits: what the catalogue keeps."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def errors(predicted: Floats, rows: list[Row]) -> Floats:
    """Relative errors of predicted times."""
    result: Floats = np.abs(predicted / np.array([r.time_s for r in rows]) - 1)
    return result


def predict(params: Floats, rows: list[Row]) -> Floats:
    """Step times that a SPEED vector gives for measured configurations."""
    return step_s(params, *(np.array(column, np.float64) for column in _columns(rows)))


def _columns(rows: list[Row]) -> tuple[list[float], list[float], list[float], list[float]]:
    return [r.workers for r in rows], [0.0] * len(rows), [r.nodes for r in rows], [r.batch for r in rows]


def _quality(error: Floats) -> dict[str, float | None]:
    if len(error) == 0:
        return {"median": None, "p90": None}
    return {"median": rounded(float(np.median(error)), 3), "p90": rounded(float(np.quantile(error, 0.9)), 3)}


def _about(rows: list[Row], held: list[Row], error: Floats) -> dict[str, Any]:
    batches = [r.batch for r in rows + held]
    return {
        "source": rows[0].source,
        "rows": len(rows),
        "held_out": len(held),
        "batch_min": rounded(min(batches)),
        "batch_max": rounded(max(batches)),
        "workers_max": max(r.workers for r in rows + held),
        "error": _quality(error),
    }


def _split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Rows to fit and rows held out; where too few would be left, all are fitted and none is held out."""
    fitted, held = [r for r in rows if not r.held_out], [r for r in rows if r.held_out]
    return (fitted, held) if len(fitted) >= 3 else (rows, [])


def fit_steps(rows: list[Row]) -> tuple[dict[str, Any], Floats]:
    """The step-time entry of one model on one GPU kind, and the errors of its held-out rows."""
    fitted, held = _split(rows)
    params = fit_pollux(*(np.array(c, np.float64) for c in _step_columns(fitted)))
    error = errors(predict(params, held), held) if held else np.empty(0)
    names = ("compute_s", "compute_s_per_sample", "local_s", "local_s_per_worker", "remote_s", "remote_s_per_worker", "overlap")
    content = {name: rounded(float(v)) for name, v in zip(names, params[1:8], strict=True)}
    return content | _about(fitted, held, error), error


def _step_columns(rows: list[Row]) -> tuple[list[float], list[float], list[float], list[float]]:
    workers, _, nodes, batch = _columns(rows)
    return [r.time_s for r in rows], workers, nodes, batch


def fit_epochs(rows: list[Row]) -> tuple[dict[str, Any], Floats]:
    """Seconds per epoch on one GPU: a constant and a share for each step, `epoch_s + step_s / batch`."""
    fitted, held = _split(rows)
    time_s = np.array([r.time_s for r in fitted])
    a = np.stack([np.ones_like(time_s), 1 / np.array([r.batch for r in fitted])], axis=1) / time_s[:, None]
    constant, steps = nnls(a[None], np.ones((1, len(time_s))))[0]
    error = errors(constant + steps / np.array([r.batch for r in held]), held) if held else np.empty(0)
    return {"epoch_s": rounded(constant), "step_s": rounded(steps)} | _about(fitted, held, error), error


def progress(s: Series) -> Floats:
    """The share of its way from its first value to its target that a run has made at 10, 20 … 100 % of its k_target."""
    smooth = rolling_median(s.y, 3)
    way = s.target - s.y[0]
    result: Floats = np.interp(SHARES * s.k_target, s.k, (smooth - s.y[0]) / way)
    return result


def fit_shape(runs: list[Series]) -> tuple[dict[str, Any], Floats]:
    """A family's curve, `start + (end − start)·(1 − (1 + rate·x)^−power) / (1 − (1 + rate)^−power)` with x = k / k_end."""
    fitted, held = [s for s in runs if not s.held_out], [s for s in runs if s.held_out]
    if len(fitted) < RUNS_MIN:
        fitted, held = runs, []
    way = np.median([progress(s) for s in fitted], axis=0)
    rate, power = np.meshgrid(SHAPE_RATES, SHAPE_POWERS, indexing="ij")
    curves = -np.expm1(-power[..., None] * np.log1p(rate[..., None] * SHARES)) / -np.expm1(
        -power[..., None] * np.log1p(rate[..., None])
    )
    best = np.unravel_index(np.argmin(((curves - way) ** 2).sum(-1)), rate.shape)
    shape = curves[best]
    error = np.abs(np.array([progress(s) for s in held]) - shape).ravel() if held else np.empty(0)
    ends = np.log([s.k_target for s in fitted])
    middle = float(np.median(ends))
    content = {
        "rising": fitted[0].rising,
        "start": rounded(float(np.median([s.y[0] for s in fitted])), 4),
        "end": rounded(float(np.median([s.target for s in fitted])), 4),
        "k_end": rounded(float(np.exp(middle)), 4),
        "k_end_log_sd": rounded(float(np.clip(1.3 * 1.4826 * np.median(np.abs(ends - middle)) + 0.05, 0.1, 3.0)), 3),
        "rate": rounded(float(rate[best]), 4),
        "power": float(power[best]),
        "runs": len(fitted),
        "held_out": len(held),
        "error": _quality(error),
    }
    return content, error


def fit_catalogue(data: Path) -> tuple[dict[str, Any], dict[str, list[Floats]]]:
    """The catalogue as JSON content, and the errors of held-out rows by table."""
    folder = data / "perf"
    models: dict[str, dict[str, Any]] = defaultdict(dict)
    by_table: dict[str, list[Floats]] = defaultdict(list)
    mpt_rows, parameters = mpt(folder / "llm-foundry-mpt.csv")
    rows = gavel(folder / "gavel-throughputs.json.gz")
    rows += pollux(folder / "pollux-placements.csv.gz", folder / "pollux-scalability.csv.gz")
    for part, fit, rows_of in (("steps", fit_steps, rows + mpt_rows), ("epochs", fit_epochs, zeus(folder / "zeus-power.csv.gz"))):
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in rows_of:
            groups[row.model, row.kind].append(row)
        for (model, kind), members in sorted(groups.items()):
            content, error = fit(members)
            models[model].setdefault(part, {})[kind] = content
            by_table[members[0].source].append(error)
    for model, count in parameters.items():
        models[model]["parameters"] = count
        models[model]["batch_unit"] = BATCH_UNIT
    profiles = {n.model: n for n in pipedream(folder / "pipedream-layers.parquet")}
    for name, n in profiles.items():
        entry = models[name]
        entry["parameters"] = n.gradient_bytes // BYTES_PER_PARAMETER
        entry["profile"] = {
            "source": "pipedream", "layers": n.layers, "forward_share": rounded(n.forward_ms / (n.forward_ms + n.backward_ms), 4),
            "chain_shares_ppm": n.shares_ppm,
        }  # fmt: skip
    for name in ("resnet18", "resnet50"):
        for model in models:
            if model.startswith(f"{name}-"):
                models[model]["parameters"] = profiles[name].gradient_bytes // BYTES_PER_PARAMETER
    families: dict[str, list[Series]] = defaultdict(list)
    for s in read_series(data):
        families[f"{s.table}/{s.family}"].append(s)
    for family, model in CURVES.items():
        if len(families[family]) >= RUNS_MIN:
            content, error = fit_shape(families[family])
            source = "pollux-validation" if family.startswith("pollux/") else family.split("/")[0]
            models[model].setdefault("curves", {})[family] = {"source": source} | content
            by_table[source].append(error)
    for entry in models.values():
        entry["gradient_bytes"] = entry["parameters"] * BYTES_PER_PARAMETER if "parameters" in entry else None
        entry.setdefault("parameters", None)
    sources = {name: dict(zip(("table", "from", "licence"), about, strict=True)) for name, about in SOURCES.items()}
    return {"version": VERSION, "sources": sources, "models": {name: models[name] for name in sorted(models)}}, by_table


def as_json(content: dict[str, Any]) -> str:
    """The text of the catalogue: one model a line, so that a new fit shows as a readable difference."""
    lines = [f"  {json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in content["models"].items()]
    sources = [f"  {json.dumps(name)}: {json.dumps(about)}" for name, about in content["sources"].items()]
    return (
        f'{{\n"version": {content["version"]},\n"sources": {{\n'
        + ",\n".join(sources)
        + '\n},\n"models": {\n'
        + ",\n".join(lines)
        + "\n}\n}\n"
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def report(content: dict[str, Any], by_table: dict[str, list[Floats]]) -> str:
    """The text of the section of the page."""
    tables = []
    for name, parts in by_table.items():
        error = np.concatenate(parts)
        unit = (
            "share of the way to the target"
            if name in ("algoperf", "mlperf", "nanogpt", "pollux-validation")
            else "relative time"
        )
        quality = _quality(error)
        about = content["sources"][name]
        tables.append(
            [
                name,
                about["table"],
                about["from"],
                about["licence"],
                f"{len(error):,}",
                unit,
                _percent(quality["median"]),
                _percent(quality["p90"]),
            ]
        )
    rows = []
    for name, entry in content["models"].items():
        fits = [(kind, f) for part in ("steps", "epochs") for kind, f in entry.get(part, {}).items()]
        fits += [(family, f) for family, f in entry.get("curves", {}).items()]
        size = f"{entry['parameters']:,}" if entry["parameters"] else "–"
        if "profile" in entry:
            rows.append([name, size, "profile", "pipedream", "–", "–", "–"])
        for what, f in fits:
            rows.append(
                [name, size, what, f["source"], f"{f['held_out']:,}", _percent(f["error"]["median"]), _percent(f["error"]["p90"])]
            )
    head = ["source", "table", "published by", "licence", "held-out values", "error of", "median", "p90"]
    return "\n".join(
        [
            f"{len(content['models'])} models. Errors on held-out rows, by table:",
            "",
            table(head, tables),
            "",
            "By model and GPU kind (step time), or family of runs (curve):",
            "",
            table(["model", "parameters", "what", "source", "held out", "median", "p90"], rows),
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Fit, write the catalogue, and put the tables of errors into the page."""
    parser = argparse.ArgumentParser(prog="python -m headway.perf.fit", description="Fit the catalogue of models.")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds perf/ and curves/")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the catalogue to write")
    parser.add_argument("--page", type=Path, help="Markdown page whose section is replaced")
    given = parser.parse_args(argv)
    try:
        for name in ("perf", "curves"):
            if not (given.data / name).is_dir():
                raise UserError(f"expected a folder that holds {name}/", file=str(given.data))
        content, by_table = fit_catalogue(given.data)
        given.output.write_text(as_json(content), "utf-8")
        if given.page:
            given.page.write_text(replace_section(given.page.read_text("utf-8"), SECTION, report(content, by_table)), "utf-8")
        sys.stdout.write(f"{len(content['models'])} models written to {given.output}\n")
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
