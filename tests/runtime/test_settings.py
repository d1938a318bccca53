"""`headway.toml`: what it says, and the one line that names file, line and key where it is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.runtime.drains import Trust
from headway.runtime.settings import EngineSettings, Limits, Settings, UserSettings, parse_settings, read_settings
from headway.runtime.tomlmarks import lines_of
from headway.workloads.cluster import Queue

FULL = """\
# a lab
[cluster]
nodes = "2x4"
journal = "postgresql://ann@db/headway"
lease = "5s"
port = 8080
round = 0.5

[engine]
silent = "20s"
cpus = 16
memory = "64GB"

[policy]
name = "tiresias"
queues = 3
threshold = 7200

[queues.research]
quota = 8
[queues.vision]
quota = 4
limit = 6
weight = 2
parent = "research"

[users.ann]
queues = ["vision", "default"]
urgency_budget = 12
account = "ann-lab"
[users.root]
admin = true
[users."*"]
queued = 5
gpus = 2

[limits]
body = "2MB"
queued = 100

[quarantine]
troubles = 2
window = "10m"
quiet = 600
"""


def test_all_of_a_file() -> None:
    found = parse_settings(FULL)
    assert (found.cluster.nodes, found.cluster.port, found.cluster.lease, found.cluster.round) == ("2x4", 8080, "5s", "0.5")
    assert found.cluster.journal == "postgresql://ann@db/headway" and found.cluster.slots is None
    assert found.engine == EngineSettings(silent_s=20.0, cpus_milli=16_000, memory_bytes=64 * 10**9)
    assert found.policy == "tiresias:queues=3,threshold=7200"
    assert found.queues == {"research": Queue("research", 8), "vision": Queue("vision", 4, 6, 2, "research")}
    assert found.users["ann"] == UserSettings(account="ann-lab", queues=("vision", "default"), urgency_budget=12)
    assert found.limits == Limits(body_bytes=2_000_000, queued_max=100)
    assert found.trust == Trust(2, 600_000_000, 600_000_000)


def test_who_is_not_named_is_everybody_and_own_limits_come_first() -> None:
    found = parse_settings(FULL)
    assert found.user("bob") == UserSettings(account="bob", queued_max=5, gpus_max=2)
    assert found.user("ann").queued_max == 100, "that of all, since she has none of her own"
    assert (found.account("ann"), found.account("bob")) == ("ann-lab", "bob")


def test_an_empty_file_changes_nothing() -> None:
    assert parse_settings("", "f") == Settings(file="f")


def test_what_is_in_force_names_no_address() -> None:
    assert "postgresql" not in str(parse_settings(FULL).to_json())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no\.toml: cannot be read: No such file"):
        read_settings(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cluster]\nnodes = 4", "f:2: cluster.nodes: expected a text, got 4"),
        ('[cluster]\nnodes = "0x4"', 'f:2: cluster.nodes: expected 1 to 1024 nodes of 1 to 64 slots, got "0x4"'),
        ('[cluster]\nslots = 2\nnodes = "2x4"', 'f:2: cluster.slots: "2x4" has 4 slots a node, --slots says 2'),
        ("[cluster]\n\nprot = 80", "f:3: cluster.prot: unknown key (did you mean 'port'?)"),
        ("[cluster]\nport = 65536", "f:2: cluster.port: expected a whole number from 0 to 65535, got 65536"),
        ("[cluster]\nport = true", "f:2: cluster.port: expected a whole number from 0 to 65535, got true"),
        ("[cluster]\nport = -1", "f:2: cluster.port: expected a whole number from 0 to 65535, got -1"),
        ("[cluster]\nport = nan", "f:2: cluster.port: expected a whole number from 0 to 65535, got nan"),
        ('[cluster]\nlease = "1ms"', 'f:2: cluster.lease: expected a time from 200ms to 10m, got "1ms"'),
        ("[cluster]\nround = 0", 'f:2: cluster.round: expected an interval from 10ms to 1h, got "0"'),
        ('[cluster]\njournal = "mysql://x"', 'f:2: cluster.journal: expected postgresql://USER@HOST/DATABASE, got "mysql"://…'),
        ("cluster = 3", "f:1: cluster: expected a table [cluster], got 3"),
        ("[clutser]", "f:1: clutser: unknown table (did you mean 'cluster'?)"),
        ("x = 1", "f:1: x: unknown key; known: [cluster], [engine], [policy], [queues], [users], [limits], [quarantine]"),
        ("[policy]\nqueues = 3", "f:1: policy.name: expected the name of a policy, got nothing"),
        ('[policy]\nname = "tiresais"', "f:2: policy.name: unknown policy 'tiresais' (did you mean 'tiresias'?)"),
        ('[policy]\nname = "oracle-srtf"', "f:2: policy.name: knows the true durations of jobs: it is for simulation only"),
        (
            '[policy]\nname = "tiresias"\n\nquues = 3',
            "f:4: policy.quues: unknown parameter \"quues\" of policy tiresias (did you mean 'queues'?)",
        ),
        ('[policy]\nname = "tiresias"\nqueues = "many"', "f:3: policy.queues: tiresias: queues: expected a whole number"),
        ('[policy]\nname = "tiresias"\nqueues = [3]', "f:3: policy.queues: expected a number, a text, true or false, got a list"),
        (
            '[policy]\nname = "fifo+mlf-c"\nplacement = "best-fit"',
            'f:2: policy.name: expected a bare name beside other keys, got "fifo',
        ),
        ("[queues.a]\nquota = 4\nlimit = 3", "f:3: queues.a.limit: expected a limit of at least the quota 4, got 3"),
        ("[queues.a]\nquota = 1.5", "f:2: queues.a.quota: expected a whole number of 0 or more, got 1.5"),
        ('[queues.a]\nparent = "b"', 'f:2: queues.a.parent: expected a queue of this file, got "b"'),
        ('[queues.ab]\nparent = "ab"', "f:2: queues.ab.parent: expected at most 16 levels of queues, and none above itself"),
        ("[queues]\na = 3", "f:2: queues.a: expected a table [queues.NAME], got 3"),
        ('[queues."../a"]', "f:1: queues.\"../a\": expected a name without '..' and path separators"),
        ("[queues]\na = {quota = 1, qota = 2}", "f:2: queues.a.qota: unknown key (did you mean 'quota'?)"),
        (
            '[queues.vision]\n[users.ann]\nqueues = ["visoin"]',
            'f:3: users.ann.queues: expected queues of this file, got "visoin" (did',
        ),
        ("[users.ann]\nqueues = 1", "f:2: users.ann.queues: expected a list of texts, got 1"),
        ("[users.ann]\nadmin = 1", "f:2: users.ann.admin: expected true or false, got 1"),
        ("[users.ann]\nurgency_budget = -1", "f:2: users.ann.urgency_budget: expected a whole number of 0 or more, got -1"),
        ('[users."*"]\nadmin = true', "f:2: users.*.admin: not for everybody: expected under the name of one user"),
        ('[limits]\nbody = "1B"', 'f:2: limits.body: expected a size from 1KB to 100MB, got "1B"'),
        ("[limits]\nbody = {}", "f:2: limits.body: expected one value, got a table"),
        ("[quarantine]\nquiet = 0", "f:2: quarantine.quiet: expected a time from 1s to 30d, got 0"),
        ("[engine]\nmemory = 0", "f:2: engine.memory: expected a size above 0, got 0"),
        ("[cluster]\nport = ", "f:2: not valid TOML: Invalid value"),
        ("[cluster]\nport = 1\nport = 2", "f:3: not valid TOML: Cannot overwrite a value"),
        ("a = " + "[" * 100_000, "f: not valid TOML: a number too long, or nested too deep"),
        ("a = " + "1" * 10_000, "f: not valid TOML: a number too long, or nested too deep"),
    ],
)
def test_a_mistake_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_settings(text, "f")
    assert str(caught.value).startswith(message), str(caught.value)
    assert "\n" not in str(caught.value)


# Lines


def test_lines_of_keys_wherever_they_stand() -> None:
    text = '''\
a = """
b = 1
"""   # c = 2
d = [
  "]", # e = 3
  {f = 1}, {g = [2]},
]
[h."i.j"]
k.l = {m = 1, n = {o = \'p = "\'}}
\'q r\' = 1979-05-27 07:32:00
[[s]]
t = 1
'''
    assert lines_of(text) == {
        ("a",): 1, ("d",): 4, ("h",): 8, ("h", "i.j"): 8, ("h", "i.j", "k"): 9, ("h", "i.j", "k", "l"): 9,
        ("h", "i.j", "k", "l", "m"): 9, ("h", "i.j", "k", "l", "n"): 9, ("h", "i.j", "k", "l", "n", "o"): 9,
        ("h", "i.j", "q r"): 10, ("s",): 11, ("s", "t"): 12,
    }  # fmt: skip


NAMES = st.sampled_from(["a", "b-1", '"c d"', "'e.f'", '"g\\"h"'])
VALUES = st.sampled_from(
    ["1", "-2.5e3", "true", '"x # ]"', "'y }'", '"""\nk = 1\n\\""""', "'''\n[z]\n'''", "[1, 2]", '[\n"]", # ]\n[[3]],\n]', "{}",
     "07:32:00", "{u = {v = '='}}"],
)  # fmt: skip


@given(
    st.lists(st.tuples(NAMES, st.lists(st.tuples(NAMES, VALUES), max_size=4, unique_by=lambda p: p[0])), unique_by=lambda p: p[0])
)
def test_the_scanner_finds_what_tomllib_finds(tables: list[tuple[str, list[tuple[str, str]]]]) -> None:
    text, expected = "", {}
    for table, pairs in tables:
        name = next(iter(tomllib.loads(f"{table}=0")))
        expected[(name,)] = text.count("\n") + 1
        text += f"[ {table} ] # [x]\n"
        for key, value in pairs:
            expected[name, next(iter(tomllib.loads(f"{key}=0")))] = text.count("\n") + 1
            text += f"{key} = {value} # y = 1\n"
    found = lines_of(text)
    assert {path: line for path, line in found.items() if path in expected} == expected
    assert set(found) == set(paths(tomllib.loads(text)))


def paths(value: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return []
    return [path for name, inner in value.items() for path in [(*above, name), *paths(inner, (*above, name))]]


@given(st.text(max_size=60) | st.lists(st.sampled_from(FULL.splitlines())).map("\n".join))
def test_any_text_is_settings_or_one_line(text: str) -> None:
    try:
        assert parse_settings(text, "f").file == "f"
    except UserError as error:
        assert str(error).startswith("f") and "\n" not in str(error)
