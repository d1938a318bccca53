"""Clusters by size, by preset and by file."""

from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, Name
from headway.core.errors import UserError
from headway.core.state import State
from headway.workloads.cluster import Cluster, Node, Queue, cluster_from_yaml, parse_cluster

FILE = """\
nodes:
  - {count: 6, gpus: 8, kind: a100, cpus: 64, memory: 512GB, rack: 4, network: 100Gb}
  - {gpus: 2, kind: V100}
  - {count: 2, gpus: 0, cpus: 16}
queues:
  vision: {quota: 16, limit: 32, weight: 2}
  other:
share_limit: 0.9
"""
NODES = "nodes: [{gpus: 8}]"


def test_a_size_is_equal_nodes_in_racks_of_16() -> None:
    cluster = parse_cluster("33x8")
    assert (cluster.name, len(cluster.nodes), cluster.gpus, cluster.gpus_max, cluster.kinds) == ("33x8", 33, 264, 8, ("gpu",))
    assert cluster.nodes[0] == Node("n0", 0, 0, 8, 64_000, 512 * 10**9, 1_250_000_000)
    assert [cluster.nodes[i].rack for i in (15, 16, 32)] == [0, 1, 2]


def test_the_philly_preset_is_the_published_list_of_machines() -> None:
    cluster = parse_cluster("philly")
    sizes = [node.gpus for node in cluster.nodes]
    assert {size: sizes.count(size) for size in sizes} == {4: 271, 8: 264, 2: 3, 3: 1}
    assert (len(sizes), cluster.gpus) == (539, 3205)


def test_a_file_describes_groups_of_nodes_and_queues(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    cluster = parse_cluster(str(path))
    assert cluster.name == str(path)
    assert cluster.kinds == ("a100", "v100", "gpu")
    assert cluster.share_limit_milli == 900
    assert cluster.queues == (Queue("vision", 16, 32, 2), Queue("other"))
    assert [node.rack for node in cluster.nodes] == [0, 0, 0, 0, 1, 1, 2, 3, 3]
    assert cluster.nodes[0] == Node("n0", 0, 0, 8, 64_000, 512 * 10**9, 12_500_000_000)
    assert cluster.nodes[6] == Node("n6", 2, 1, 2, 16_000, 128 * 10**9, 1_250_000_000)
    assert cluster.nodes[8] == Node("n8", 3, 2, 0, 16_000, 64 * 10**9, 1_250_000_000)
    assert (cluster.gpus, cluster.gpus_max) == (50, 8)


def test_a_queue_may_have_a_parent() -> None:
    cluster = cluster_from_yaml(NODES + "\nqueues: {a: {parent: b, weight: 2}, b: {}}")
    assert cluster.queues == (Queue("a", weight=2, parent="b"), Queue("b"))
    state = State()
    state.apply(cluster.events(0, queues=("z", "b")))
    assert state.Q[c.Q_PARENT].tolist() == [-1, -1, 1], "z, b and a, whose parent is b"


def test_the_events_build_the_state() -> None:
    cluster = cluster_from_yaml(FILE)
    state = State()
    state.apply(cluster.events(5, users=("ann",), queues=("speech", "vision")))
    assert [int(state.C[i]) for i in (c.C_NODES, c.C_GPUS, c.C_KINDS, c.C_GPUS_MAX, c.C_GPUS_UP, c.C_SHARE_LIMIT)] == [
        9,
        50,
        3,
        8,
        50,
        900,
    ]
    assert state.N[c.N_GPU0].tolist() == [0, 8, 16, 24, 32, 40, 48, 50, 50]
    assert state.N[c.N_KIND].tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 2]
    assert [state.name(Name.QUEUE, i) for i in range(3)] == ["speech", "vision", "other"]
    assert state.Q[c.Q_QUOTA].tolist() == [-1, 16_000, -1]
    assert state.Q[c.Q_LIMIT].tolist() == [-1, 32_000, -1]
    assert state.Q[c.Q_WEIGHT].tolist() == [1, 2, 1]
    assert [state.name(Name.USER, 0), state.name(Name.NODE, 8), state.name(Name.KIND, 1)] == ["ann", "n8", "v100"]


def test_events_come_in_the_order_that_the_state_needs() -> None:
    kinds = parse_cluster("2x4").events(0, queues=("a",)).kinds()
    assert kinds[0] == EventKind.CLUSTER_SET and kinds[-1] == EventKind.QUEUE_SET
    assert np.count_nonzero(np.array(kinds) == EventKind.NODE_ADDED) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0x8", "cluster 0x8: expected 1 to 131072 nodes, got 0"),
        ("8x0", "cluster 8x0: expected 1 to 64 GPUs a node, got 0"),
        ("8x65", "cluster 8x65: expected 1 to 64 GPUs a node, got 65"),
        ("-1x8", 'cluster: expected NODESxGPUS such as 16x8, got "-1x8"'),
        ("4x", 'cluster: expected NODESxGPUS such as 16x8, got "4x"'),
        ("4xnan", 'cluster: expected NODESxGPUS such as 16x8, got "4xnan"'),
        ("philyl", "unknown cluster 'philyl' (did you mean 'philly'?)"),
        (
            "",
            "unknown cluster ''; known: 20x4, mlfs-paper-large, philly, production-mixed, "
            "NODESxGPUS such as 16x8, or a YAML file",
        ),
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory"),
    ],
)
def test_no_cluster_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_cluster(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml: expected a cluster, got an empty file"),
        ("- a", "c.yaml:1: expected keys and values, got a list"),
        ("queues: {}", "c.yaml:1: nodes: expected at least one node, got none"),
        ("nodes: []", "c.yaml:1: nodes: expected at least one node, got none"),
        ("nodes:\n  - {count: 0, gpus: 8}", 'c.yaml:2: nodes[0].count: expected a whole number from 1 to 131072, got "0"'),
        ("nodes:\n  - {count: -2, gpus: 8}", 'c.yaml:2: nodes[0].count: expected a whole number from 1 to 131072, got "-2"'),
        ("nodes:\n  - {gpus: .nan}", 'c.yaml:2: nodes[0].gpus: expected a whole number from 0 to 64, got ".nan"'),
        ("nodes:\n  - {gpus: 65}", 'c.yaml:2: nodes[0].gpus: expected a whole number from 0 to 64, got "65"'),
        ("nodes:\n  - {gpu: 8}", "c.yaml:2: nodes[0].gpu: unknown key (did you mean 'gpus'?)"),
        ("nodes:\n  - {count: 2}", "c.yaml:2: nodes[0].gpus: expected the GPUs of a node, got nothing"),
        ("nodes: [{gpus: 8, memory: lots}]", 'c.yaml:1: nodes[0].memory: expected a size such as 512MB, 4GB or 1.5GiB, got'),
        ("nodes:\n  - {gpus: 8, memory: 0}", 'c.yaml:2: nodes[0].memory: expected a size above 0, got "0"'),
        ("nodes: [{gpus: 8, network: fast}]", 'c.yaml:1: nodes[0].network: expected a speed such as 100Gb or 12.5GB/s'),
        ("nodes:\n  - {gpus: 8, kind: '8!'}", 'c.yaml:2: nodes[0].kind: expected a GPU kind such as a100, got "8!"'),
        (NODES + "\nshare_limit: 1.5", 'c.yaml:2: share_limit: expected a share from 0 to 1, or from 0% to 100%, got "1.5"'),
        (NODES + "\nshare_limit: 0", "c.yaml:2: share_limit: expected a share above 0 and at most 1, in steps of 0.001"),
        (NODES + "\nqueus: {}", "c.yaml:2: queus: unknown key (did you mean 'queues'?)"),
        (NODES + "\nqueues: {a: {quota: -1}}", 'c.yaml:2: queues.a.quota: expected a whole number of 0 or more, got "-1"'),
        (NODES + "\nqueues: {a: {quota: 9, limit: 3}}", "c.yaml:2: queues.a.limit: expected a limit of at least the quota 9"),
        (NODES + "\nqueues: {a: {parent: b}}", "c.yaml:2: queues.a.parent: expected a queue of this file, got"),
        (NODES + "\nqueues: {a: {parent: b}, b: {parent: a}}", "c.yaml:2: queues.a.parent: expected at most 16 levels of queues"),
        (NODES + "\nqueues: {a: {}, a: {}}", "c.yaml:2: queues.a: given twice (first on line 2)"),
        (NODES + "\nnodes: []", "c.yaml:2: nodes: given twice (first on line 1)"),
        ("nodes: &x [{gpus: 8}]", "c.yaml:1: not valid YAML: anchors (&) and aliases (*) are not allowed"),
        ("nodes: !!python/none []", 'c.yaml:1: the YAML tag "tag:yaml.org,2002:python/none" is not allowed'),
        ("nodes: [{gpus: 8}", "c.yaml:1: not valid YAML: while parsing a flow sequence"),
        ("nodes: \x07", "c.yaml:1: not text: a character U+0007"),
    ],
)  # fmt: skip
def test_a_bad_file_names_line_and_key(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        cluster_from_yaml(text, file="c.yaml")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"nodes:\n\xff\xfe")
    with pytest.raises(UserError, match=r"c\.yaml:2: not text in UTF-8"):
        parse_cluster(str(path))
    path.write_bytes(b" " * 1_000_001)
    with pytest.raises(UserError, match="over 1000000 bytes"):
        parse_cluster(str(path))


def test_a_queue_that_the_workload_does_not_know_follows_its_own() -> None:
    cluster = Cluster("c", parse_cluster("1x1").nodes, queues=(Queue("b", 1), Queue("a", 2)))
    state = State()
    state.apply(cluster.events(queues=("a", "z")))
    assert [state.name(Name.QUEUE, i) for i in range(3)] == ["a", "z", "b"]
    assert state.Q[c.Q_QUOTA].tolist() == [2000, -1, 1000]


def test_speed_background_and_oversubscription() -> None:
    text = "nodes: [{gpus: 4, kind: p100, speed: 0.55, background: 20%}, {gpus: 4}]\noversubscription: 4"
    cluster = cluster_from_yaml(text)
    assert [(node.speed_ppm, node.background_ppm) for node in cluster.nodes] == [(550_000, 200_000), (1_000_000, 0)]
    assert cluster.oversubscription == 4 and parse_cluster("2x4").oversubscription == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{gpus: 4, speed: 0}", 'expected a share of the fastest GPU\'s speed, above 0 and at most 1, got "0"'),
        ("{gpus: 4, speed: 1.5}", 'expected a share from 0 to 1, or from 0% to 100%, got "1.5"'),
        ("{gpus: 4, speed: nan}", 'expected a share from 0 to 1, or from 0% to 100%, got "nan"'),
        ("{gpus: 4, background: 100%}", 'expected a share of at least 0 and below 1, got "100%"'),
        ("{gpus: 4, background: -1%}", 'expected a share from 0 to 1, or from 0% to 100%, got "-1%"'),
    ],
)
def test_speeds_that_are_none_are_one_line(line: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        cluster_from_yaml(f"nodes: [{line}]")
    assert message in str(error.value)


def test_oversubscription_is_a_whole_number() -> None:
    with pytest.raises(UserError, match='oversubscription: expected a whole number from 1 to 1000, got "0"'):
        cluster_from_yaml(f"{NODES}\noversubscription: 0")
