"""Published lists of machines, as clusters: those of Philly, of openb, and of Alibaba's PAI, known by their headers.

A list is a cluster: a row that is wrong is refused with its line, not dropped. Racks are not published: 16 nodes each, in the
order of the list. Nodes have the default network of `workloads.cluster`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from headway.core import units
from headway.core.columns import GPUS_PER_NODE_MAX
from headway.core.errors import UserError, shown
from headway.workloads.cluster import (
    ANY_KIND,
    CPUS_MILLI_PER_GPU,
    KINDS_MAX,
    MEMORY_BYTES_PER_GPU,
    NETWORK_BYTES_PER_S,
    NODES_MAX,
    RACK_NODES,
    Cluster,
    Node,
)
from headway.workloads.rows import read_table, refuse_columns

PHILLY = ("machineId", "number of GPUs")
OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
PAI = ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu")
CPU_KIND = "cpu"
"""The kind of nodes without a GPU."""
MIB, GB = 1 << 20, 10**9


def read_cluster_table(path: Path) -> Cluster:
    """Return the cluster that a list of machines describes; `UserError` with file, line and column for anything wrong."""
    return parse_cluster_table(read_table(path), file=str(path))


def parse_cluster_table(text: str, *, file: str = "cluster", name: str = "") -> Cluster:
    """Return the cluster of a list's text."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [cell.strip() for cell in next(reader, [])]
        known = {PHILLY: _philly, OPENB: _openb, PAI: _pai}
        columns = max(known, key=lambda names: len(set(names) & set(header)) / len(names))
        if not set(columns) & set(header):
            found = ", ".join(header[:8])
            raise UserError(f"not a list of machines that is known (Philly, openb, PAI); found {shown(found)}", file=file, line=1)
        refuse_columns(header, columns, file)
        nodes: list[Node] = []
        kinds: dict[str, int] = {}
        names: dict[str, int] = {}
        for cells in reader:
            if not cells:
                continue
            row = _Row(file, reader.line_num, dict(zip(header, cells, strict=False)))
            machine, kind, gpus, cpus_milli, memory_bytes = known[columns](row)
            if not machine:
                row.fail(columns[0], "a machine's name", "")
            if machine in names:
                row.fail(columns[0], f"a machine of its own (first on line {names[machine]})", machine)
            names[machine] = reader.line_num
            if columns is PHILLY and gpus == 0:
                continue
            if len(nodes) == NODES_MAX:
                raise UserError(f"over {NODES_MAX} nodes", file=file, line=reader.line_num)
            number = kinds.setdefault(kind, len(kinds))
            rack = len(nodes) // RACK_NODES
            nodes.append(Node(machine, rack, number, gpus, cpus_milli, memory_bytes, NETWORK_BYTES_PER_S))
    except csv.Error as error:
        raise UserError(f"not a table: {error}", file=file, line=reader.line_num) from None
    if not nodes:
        raise UserError("a header and no machines", file=file)
    if len(kinds) > KINDS_MAX:
        raise UserError(f"over {KINDS_MAX} GPU kinds", file=file)
    return Cluster(name or file, tuple(nodes), tuple(kinds))


class _Row:
    """One machine's cells."""

    def __init__(self, file: str, line: int, cells: Mapping[str, str]) -> None:
        self.file, self.line, self.cells = file, line, cells

    def fail(self, key: str, expected: str, got: str) -> NoReturn:
        raise UserError(f"expected {expected}, got {shown(got)}", file=self.file, line=self.line, key=key)

    def text(self, key: str) -> str:
        if key not in self.cells:
            self.fail(key, "a value in this row, which is cut off", "")
        return self.cells[key].strip()

    def whole(self, key: str, low: int, high: int) -> int:
        try:
            return units.parse_int(self.text(key), low, high)
        except ValueError as error:
            raise UserError(str(error), file=self.file, line=self.line, key=key) from None

    def kind(self, key: str, gpus: int) -> str:
        kind = self.text(key).lower() or (CPU_KIND if not gpus else "")
        if not units.GPU_KIND.fullmatch(kind):
            self.fail(key, "a GPU model", self.text(key))
        return kind if gpus else CPU_KIND


Machine = tuple[str, str, int, int, int]
"""Name, kind, GPUs, thousandths of cores, bytes."""


def _philly(row: _Row) -> Machine:
    """Cpus and memory are not published: the defaults. A machine without a GPU ran no job of the trace: it is left out."""
    gpus = row.whole("number of GPUs", 0, GPUS_PER_NODE_MAX)
    return row.text("machineId"), ANY_KIND, gpus, gpus * CPUS_MILLI_PER_GPU, gpus * MEMORY_BYTES_PER_GPU


def _openb(row: _Row) -> Machine:
    gpus = row.whole("gpu", 0, GPUS_PER_NODE_MAX)
    cpus, memory = row.whole("cpu_milli", 1, units.CPUS_MAX * 1000), row.whole("memory_mib", 1, units.SIZE_MAX_BYTES // MIB)
    return row.text("sn"), row.kind("model", gpus), gpus, cpus, memory * MIB


def _pai(row: _Row) -> Machine:
    gpus = row.whole("cap_gpu", 0, GPUS_PER_NODE_MAX)
    cpus, memory = row.whole("cap_cpu", 1, units.CPUS_MAX), row.whole("cap_mem", 1, units.SIZE_MAX_BYTES // GB)
    return row.text("machine"), row.kind("gpu_type", gpus), gpus, cpus * 1000, memory * GB
