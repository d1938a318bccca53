"""Measured step times as `headway.perf.fit` reads them from the public tables under `data/perf`."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = {
    "gavel": ("perf/gavel-throughputs.json.gz", "stanford-futuredata/gavel", "MIT"),
    "pollux": ("perf/pollux-placements.csv.gz, perf/pollux-scalability.csv.gz", "petuum/adaptdl", "Apache-2.0"),
    "mpt": ("perf/llm-foundry-mpt.csv", "mosaicml/llm-foundry", "Apache-2.0"),
    "zeus": ("perf/zeus-power.csv.gz", "ml-energy/zeus", "Apache-2.0"),
    "pipedream": ("perf/pipedream-layers.parquet", "msr-fiddle/pipedream", "MIT"),
    "algoperf": ("curves/algoperf-v05.parquet", "mlcommons/submissions_algorithms", "Apache-2.0"),
    "mlperf": ("curves/mlperf-evals.parquet", "mlcommons/training_results_*", "Apache-2.0"),
    "nanogpt": ("curves/nanogpt.parquet", "KellerJordan/modded-nanogpt", "MIT"),
    "pollux-validation": ("curves/pollux-validation.csv.gz", "petuum/adaptdl", "Apache-2.0"),
}
GAVEL_MODELS = {
    "ResNet-18": "resnet18-cifar10",
    "ResNet-50": "resnet50-imagenet",
    "Transformer": "transformer-translation",
    "LM": "lstm-wikitext2",
    "Recommendation": "autoencoder-movielens",
    "A3C": "a3c-pong",
    "CycleGAN": "cyclegan",
}
POLLUX_MODELS = {
    "bert": "bert-squad",
    "cifar10": "resnet18-cifar10",
    "deepspeech2": "deepspeech2",
    "imagenet": "resnet50-imagenet",
    "ncf": "ncf-movielens",
    "yolov3": "yolov3-voc",
}
ZEUS_MODELS = {
    "cifar100": "shufflenetv2-cifar100",
    "imagenet": "resnet50-imagenet",
    "librispeech": "deepspeech2",
    "movielens-1m": "ncf-movielens",
    "sentiment140": "bert-sentiment140",
    "squad": "bert-squad",
}
POLLUX_KIND = "t4"
NODE_GPUS = 8
HELD_OUT = 4
"""One row in so many is held out."""
PARTS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: seconds per step (or per epoch), GPUs, nodes, batch of one GPU."""

    source: str
    model: str
    kind: str
    time_s: float
    workers: int
    nodes: int
    batch: float

    @property
    def held_out(self) -> bool:
        """Whether the row is reported on rather than fitted to, by a checksum of what was measured."""
        key = f"{self.source}|{self.model}|{self.kind}|{self.workers}|{self.nodes}|{self.batch:g}"
        return zlib.crc32(key.encode()) % HELD_OUT == 0


@dataclass(frozen=True, slots=True)
class Network:
    """What a profile of layers says of a model: sizes and times, and how time and parameters split into a chain of equal
    parts."""

    model: str
    layers: int
    gradient_bytes: int
    forward_ms: float
    backward_ms: float
    shares_ppm: dict[str, list[int]]


def gavel(path: Path) -> list[Row]:
    """Isolated throughput. The figures count the mini-batches of all workers, so a step takes workers / throughput."""
    with gzip.open(path, "rt") as stream:
        content: dict[str, dict[str, dict[str, Any]]] = json.load(stream)
    rows = []
    for gpu, jobs in content.items():
        kind, spread = gpu.removesuffix("_unconsolidated"), gpu.endswith("_unconsolidated")
        for key, speeds in jobs.items():
            job, workers = ast.literal_eval(key)
            rate = speeds["null"]
            if not rate or (spread and workers == 1):
                continue
            match = re.fullmatch(r"(.+?)(?: \(batch size (\d+)\))?", job)
            assert match
            model = GAVEL_MODELS[match[1]]
            rows.append(Row("gavel", model, kind, workers / rate, workers, workers if spread else 1, float(match[2] or 1)))
    return rows


def pollux(placements: Path, scalability: Path) -> list[Row]:
    """Step times by placement, up to 64 GPUs."""
    rows = []
    with gzip.open(placements, "rt") as stream:
        for r in csv.DictReader(stream):
            gpus = [int(digit) for digit in r["placement"]]
            batch, time_s = float(r["local_bsz"]), float(r["step_time"])
            rows.append(Row("pollux", POLLUX_MODELS[r["model"]], POLLUX_KIND, time_s, sum(gpus), len(gpus), batch))
    with gzip.open(scalability, "rt") as stream:
        for r in csv.DictReader(stream):
            workers, nodes, batch = int(r["num_replicas"]), int(r["num_nodes"]), float(r["local_bsz"])
            rows.append(Row("pollux", POLLUX_MODELS[r["model"]], POLLUX_KIND, float(r["step_time"]), workers, nodes, batch))
    return rows


def mpt(path: Path) -> tuple[list[Row], dict[str, int]]:
    """Steps of MPT models, with the FLOPs that a GPU computes in one (in 10¹²) as its batch; and the models' parameters.

    The work of a token depends on the sequence length: it is the published ratio of FLOPs to tokens, and a third more where the
    forward pass is computed again (activation checkpointing).
    """
    rows, parameters = [], {}
    with path.open() as stream:
        for r in csv.DictReader(stream):
            model = f"mpt-{r['Model'].lower()}"
            parameters[model] = int(r["NumParams"])
            kind = r["GPU"].replace("_", "-") + ("-fp8" if "FP8" in r["section"] else "")
            gpus, rate = int(r["# GPUs"]), float(r["Throughput (T/s)"])
            per_gpu = float(r["Throughput (T/s/GPU)"])
            if rate <= 0 or gpus <= 0 or per_gpu <= 0:
                continue
            tokens = int(r["GlobalBatchSize"]) * int(r["SeqLen (T)"])
            again = 4 / 3 if r["Activation Checkpointing"] == "True" else 1.0
            work = float(r["Model TFLOP"]) / per_gpu * again * tokens / gpus
            rows.append(Row("mpt", model, kind, tokens / rate, gpus, -(-gpus // NODE_GPUS), work))
    return rows, parameters


def zeus(path: Path) -> list[Row]:
    """Seconds per epoch on one GPU at its highest power limit, the mean over optimisers."""
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    with gzip.open(path, "rt") as stream:
        for r in csv.DictReader(stream):
            if r["time_per_epoch"] and float(r["time_per_epoch"]) > 0:
                key = ZEUS_MODELS[r["dataset"]], r["gpu"], int(r["batch_size"])
                found[key].append((float(r["power_limit"]), float(r["time_per_epoch"])))
    rows = []
    for (model, kind, batch), times in found.items():
        top = max(limit for limit, _ in times)
        at_top = [time_s for limit, time_s in times if limit == top]
        rows.append(Row("zeus", model, kind, sum(at_top) / len(at_top), 1, 1, float(batch)))
    return rows


def pipedream(path: Path) -> list[Network]:
    """Profiles by layer. The files give no GPU and no batch size: the times show proportions only."""
    import pyarrow.parquet as pq

    models: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for layer in pq.read_table(path).to_pylist():
        models[layer["model"]].append(layer)
    networks = []
    for name in sorted(models):
        layers = sorted(models[name], key=lambda r: int(re.sub(r"\D", "", r["node"]) or 0))
        times = [r["forward_ms"] + r["backward_ms"] for r in layers]
        sizes = [r["parameter_bytes"] for r in layers]
        shares = {str(parts): chain_shares(times, sizes, parts) for parts in PARTS}
        forward, backward = sum(r["forward_ms"] for r in layers), sum(r["backward_ms"] for r in layers)
        networks.append(Network(name.replace("_", "-"), len(layers), round(sum(sizes)), forward, backward, shares))
    return networks


def chain_shares(times: list[float], sizes: list[float], parts: int) -> list[int]:
    """Cut a chain of layers where its time reaches 1/parts, 2/parts …: the share of the parameters in each part, in ppm."""
    total, whole = sum(times), sum(sizes)
    shares, spent = [0.0] * parts, 0.0
    for time_ms, size in zip(times, sizes, strict=True):
        # A layer belongs to the part in which its middle lies.
        shares[min(int((spent + time_ms / 2) / total * parts), parts - 1)] += size
        spent += time_ms
    ppm = [int(share / whole * 1_000_000) for share in shares]
    ppm[max(range(parts), key=lambda i: (ppm[i], -i))] += 1_000_000 - sum(ppm)
    return ppm
