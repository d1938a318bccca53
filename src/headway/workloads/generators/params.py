"""Parameters that generators share, and how their jobs are hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from headway.core import units
from headway.core.arrays import Ints
from headway.core.errors import UserError
from headway.core.specstring import Part, read_params
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.schema import JOBS_MAX, LOAD_MAX, LOAD_MIN


def count_reader(most: int = JOBS_MAX) -> Callable[[str], int]:
    """A reader of how many jobs (or groups) there are."""
    return lambda text: units.parse_int(text, 1, most)


def load_reader(text: str) -> Fraction:
    """A reader of an offered load."""
    try:
        load = Fraction(text) if text.replace(".", "", 1).isdecimal() else Fraction(-1)
    except ValueError:
        load = Fraction(-1)
    if not LOAD_MIN <= load <= LOAD_MAX:
        raise units.refusal(f"a number from {float(LOAD_MIN)} to {float(LOAD_MAX):.0f}", text)
    return load


def read(
    part: Part, seed: int, cluster: str, defaults: Mapping[str, Any], readers: Mapping[str, Callable[[str], Any]]
) -> tuple[dict[str, Any], Cluster]:
    """The parameters in force, and the cluster that the workload is made for (`cluster`, unless another is given).

    Raises:
        UserError: an unknown parameter, or a value that is none.
    """
    params = {"cluster": cluster, **defaults, **read_params(part, {**readers, "cluster": str}, "workload")}
    found = parse_cluster(str(params["cluster"]), seed=seed)
    if found.gpus < 1:
        raise UserError("a cluster without GPUs cannot be loaded", key=f"workload {part.name}: cluster")
    return params, found


def list_column(lengths: Ints, values: Ints) -> Ints:
    """Lists as one column: each preceded by its length. `values` are all lists, one behind the other."""
    heads = np.cumsum(lengths) - lengths + np.arange(len(lengths))
    column = np.empty(len(values) + len(lengths), np.int64)
    kept = np.ones(len(column), np.bool_)
    kept[heads] = False
    column[heads], column[kept] = lengths, values
    return column


def drawn_sha256(cluster: Cluster, columns: Iterable[Ints]) -> str:
    """SHA-256 over int64, little-endian: the cluster (its number of nodes, then the GPUs of each), then each column whole."""
    gpus = [node.gpus for node in cluster.nodes]
    digest = hashlib.sha256(np.array([len(gpus), *gpus], "<i8").data)
    for column in columns:
        digest.update(np.ascontiguousarray(column, "<i8").data)
    return digest.hexdigest()
