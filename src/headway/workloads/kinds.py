"""GPU kinds of a workload on a cluster: each numbers them in its own order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Bools, Ints
from headway.workloads.cluster import ANY_KIND, Cluster
from headway.workloads.schema import Workload


def for_cluster(workload: Workload, cluster: Cluster) -> Workload:
    """Return the workload with its jobs' masks of GPU kinds in the cluster's numbers.

    A kind that the cluster lacks is left out of the masks; a job that has no kind left is rejected when it is submitted. A
    cluster whose GPUs are all of the kind `gpu`, that is, whose kind nobody said, serves every job. A workload without names of
    kinds has masks in the cluster's numbers already. These are still the same jobs: the hash stays.
    """
    if not workload.kinds:
        return workload
    spec = workload.spec.copy()
    for column in (c.J_KIND_MASK, c.J_ALT_MASK):
        spec[column] = _mapped(workload.spec[column], workload.kinds, cluster)
    return replace(workload, spec=spec, kinds=cluster.kinds, frozen_sha256=workload.sha256)


def without_kind(workload: Workload, cluster: Cluster) -> Bools:
    """Which jobs of a workload want GPUs, and none of a kind that the cluster has; masks are the workload's."""
    wants = workload.gpu_milli > 0
    every = (1 << len(cluster.kinds)) - 1
    on = for_cluster(workload, cluster).spec
    served: Bools = ((on[c.J_KIND_MASK] | on[c.J_ALT_MASK]) & every) != 0
    return wants & ~served


def _mapped(masks: Ints, names: tuple[str, ...], cluster: Cluster) -> Ints:
    """Masks in the cluster's numbers; -1, any kind, stays what it is."""
    if all(cluster.kinds[node.kind] == ANY_KIND for node in cluster.nodes if node.gpus):
        return np.where(masks != 0, -1, 0)
    number = {name.lower(): i for i, name in enumerate(cluster.kinds)}
    mapped = np.zeros_like(masks)
    for bit, name in enumerate(names):
        if (to := number.get(name.lower())) is not None:
            mapped |= (masks >> bit & 1) << to
    return np.where(masks < 0, masks, mapped)
