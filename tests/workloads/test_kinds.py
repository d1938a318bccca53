"""GPU kinds of a workload on clusters that number them otherwise."""

from dataclasses import replace

import numpy as np

from headway.app.simulate import SimulateRequest, prepare, run, unserved_line
from headway.core import columns as c
from headway.workloads.cluster import Cluster, cluster_from_yaml, parse_cluster
from headway.workloads.kinds import for_cluster, without_kind
from headway.workloads.openb import parse_openb
from headway.workloads.schema import Workload, plain_spec

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
SPECS = ("", "T4", "P100|V100", "A10", "A10|V100")
JOBS = parse_openb(HEADER + "".join(f"p{i},1,1,1,1000,{spec},LS,{i},90,50\n" for i, spec in enumerate(SPECS)))


def cluster(*kinds: str) -> Cluster:
    return cluster_from_yaml("nodes:\n" + "".join(f"  - {{gpus: 4, kind: {kind}}}\n" for kind in kinds))


def test_masks_take_the_clusters_order_and_lose_what_it_lacks() -> None:
    assert JOBS.kinds == ("a10", "p100", "t4", "v100")
    on = for_cluster(JOBS, cluster("v100", "t4", "h100"))
    assert on.kinds == ("v100", "t4", "h100")
    assert on.spec[c.J_KIND_MASK].tolist() == [-1, 0b010, 0b001, 0, 0b001]
    assert on.sha256 == JOBS.sha256


def test_a_kind_that_nobody_said_serves_every_job() -> None:
    assert for_cluster(JOBS, parse_cluster("2x8")).spec[c.J_KIND_MASK].tolist() == [-1] * 5
    mixed = cluster("gpu", "t4")  # one kind is said, so the other is another one
    assert for_cluster(JOBS, mixed).spec[c.J_KIND_MASK].tolist() == [-1, 0b10, 0, 0, 0]


def test_alternatives_are_mapped_too_and_none_stays_none() -> None:
    spec = plain_spec(2)
    spec[c.J_KIND_MASK], spec[c.J_ALT_MASK], spec[c.J_ALT_GPU] = 0b01, [0, 0b10], [0, 2000]
    jobs = Workload("w", np.zeros(2, np.int64), spec, np.ones(2, np.int64), kinds=("a", "b"))
    on = for_cluster(jobs, cluster("b"))
    assert on.spec[c.J_KIND_MASK].tolist() == [0, 0] and on.spec[c.J_ALT_MASK].tolist() == [0, 1]
    assert without_kind(jobs, cluster("b")).tolist() == [True, False]
    assert for_cluster(jobs, parse_cluster("1x8")).spec[c.J_ALT_MASK].tolist() == [0, -1]


def test_masks_without_names_are_the_clusters_already() -> None:
    plain = replace(JOBS, kinds=())
    assert for_cluster(plain, cluster("v100")) is plain


def test_a_job_without_a_kind_is_rejected_and_told(tmp_path: object) -> None:
    import pathlib

    folder = pathlib.Path(str(tmp_path))
    trace, nodes = folder / "t.csv", folder / "c.yaml"
    trace.write_text(HEADER + "".join(f"p{i},1,1,1,1000,{spec},LS,{i},90,50\n" for i, spec in enumerate(SPECS)))
    nodes.write_text("nodes: [{gpus: 4, kind: v100}, {gpus: 4, kind: t4}]\n")
    request = SimulateRequest(workload=str(trace), cluster=str(nodes), policies=("fifo",))
    prepared = prepare(request)
    assert prepared.notes == (f"{trace}: 1 job asks for GPU kinds that {nodes} has none of (a10), and will be rejected",)
    (entry,) = run(request, prepared)
    assert (entry["jobs"], entry["finished"], entry["rejected"]) == (5, 4, 1)
    assert entry["workload_sha256"] == JOBS.with_costs(0, 30, 0).sha256


def test_jobs_without_gpus_miss_no_kind() -> None:
    jobs = parse_openb(HEADER + "p,1000,1,0,0,,BE,0,90,50\n")
    assert unserved_line(jobs, cluster("v100")) == "" and not without_kind(jobs, cluster("v100")).any()
