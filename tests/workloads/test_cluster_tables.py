"""Published lists of machines as clusters."""

import os
from collections import Counter
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.workloads.cluster import Node, parse_cluster
from headway.workloads.cluster_tables import parse_cluster_table

TABLES = Path(os.environ.get("HEADWAY_DATASETS") or Path(__file__).resolve().parents[3] / "shared" / "data") / "clusters"
PHILLY = ",machineId,number of GPUs\n0,m0,8\n1,m9,0\n2,m1,4\n"
OPENB = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,0,\nn1,96000,2048,8,G2\nn2,64000,1024,2,T4\n"
PAI = "machine,gpu_type,cap_cpu,cap_mem,cap_gpu\na,CPU,96,512,0\nb,V100M32,96,384,8\n"


def test_philly_machines_have_defaults_and_those_without_gpus_are_left_out() -> None:
    cluster = parse_cluster_table(PHILLY)
    assert cluster.nodes == (
        Node("m0", 0, 0, 8, 64_000, 512 * 10**9, 1_250_000_000),
        Node("m1", 0, 0, 4, 32_000, 256 * 10**9, 1_250_000_000),
    )
    assert cluster.kinds == ("gpu",)


def test_openb_nodes_have_kinds_and_cpu_nodes_stay() -> None:
    cluster = parse_cluster_table(OPENB)
    assert cluster.kinds == ("cpu", "g2", "t4") and cluster.gpus == 10
    assert cluster.nodes[0] == Node("n0", 0, 0, 0, 32_000, 1 << 30, 1_250_000_000)
    assert cluster.nodes[2] == Node("n2", 0, 2, 2, 64_000, 1 << 30, 1_250_000_000)


def test_pai_machines_count_cores_and_gigabytes() -> None:
    cluster = parse_cluster_table(PAI)
    assert cluster.kinds == ("cpu", "v100m32")
    assert cluster.nodes[1] == Node("b", 0, 1, 8, 96_000, 384 * 10**9, 1_250_000_000)


def test_racks_are_of_16_nodes_in_the_lists_order() -> None:
    cluster = parse_cluster_table("machineId,number of GPUs\n" + "".join(f"m{i},4\n" for i in range(33)))
    assert [cluster.nodes[i].rack for i in (0, 15, 16, 32)] == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OPENB + "n3,1,1,9,T4,\n".replace("9", "65"), 'c.csv:5: gpu: expected a whole number from 0 to 64, got "65"'),
        (OPENB + "n3,1,1,0.5,T4\n", 'c.csv:5: gpu: expected a whole number from 0 to 64, got "0.5"'),
        (OPENB + "n3,1,1,2,\n", 'c.csv:5: model: expected a GPU model, got ""'),
        (OPENB + "n3,0,1,2,T4\n", "c.csv:5: cpu_milli: expected a whole number from 1 to "),
        (OPENB + "n1,1,1,2,T4\n", 'c.csv:5: sn: expected a machine of its own (first on line 3), got "n1"'),
        (OPENB + "n3,1,1\n", 'c.csv:5: gpu: expected a value in this row, which is cut off, got ""'),
        (OPENB + ",1,1,1,T4\n", 'c.csv:5: sn: expected a machine\'s name, got ""'),
        ("sn,cpu_milli,gpu,model\n", "c.csv:1: no column 'memory_mib'; found \"sn, cpu_milli, gpu, model\""),
        ("a,b\n1,2\n", 'c.csv:1: not a list of machines that is known (Philly, openb, PAI); found "a, b"'),
        ("machineId,number of GPUs\n", "c.csv: a header and no machines"),
        ("machineId,number of GPUs\nm0,0\n", "c.csv: a header and no machines"),
    ],
)
def test_a_list_that_is_wrong_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_cluster_table(text, file="c.csv")
    assert str(error.value).startswith(message)


def test_a_csv_file_is_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(b"\xef\xbb\xbf" + PHILLY.replace("\n", "\r\n").encode())
    assert parse_cluster(str(path)).gpus == 12 and parse_cluster(str(path)).name == str(path)
    with pytest.raises(UserError, match="No such file"):
        parse_cluster(str(tmp_path / "no.csv"))


@pytest.mark.skipif(not TABLES.is_dir(), reason="the public lists are not here: set HEADWAY_DATASETS")
def test_the_real_lists() -> None:
    # The numbers of the data's own description.
    philly = parse_cluster(str(TABLES / "philly-machines.csv"))
    preset = parse_cluster("philly")
    assert philly.gpus == 3205 and Counter(n.gpus for n in philly.nodes) == Counter(n.gpus for n in preset.nodes)
    openb = parse_cluster(str(TABLES / "openb-nodes.csv"))
    gpus: Counter[str] = Counter()
    for node in openb.nodes:
        gpus[openb.kinds[node.kind]] += node.gpus
    assert (len(openb.nodes), openb.gpus) == (1523, 6212)
    assert gpus == {"g2": 4392, "t4": 842, "g3": 312, "p100": 265, "v100m32": 204, "v100m16": 195, "a10": 2, "cpu": 0}
    pai = parse_cluster(str(TABLES / "pai-machines.csv"))
    assert (len(pai.nodes), pai.gpus, sum(n.gpus == 0 for n in pai.nodes)) == (1897, 6742, 83)
