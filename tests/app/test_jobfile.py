"""The job file: every key, one clear line for what is wrong, and the examples that the docs show."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headway.app.jobfile import FILE_BYTES_MAX, job_from_command, load_job, parse_job
from headway.core.errors import UserError
from headway.core.model import (
    Checkpoint,
    GpuDemand,
    JobSpec,
    Model,
    Parallelism,
    Profiling,
    Progress,
    Resources,
    StopRule,
    validate,
)

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "jobfile.md"

FULL = """\
name: resnet-cifar
queue: vision
priority: 60
urgency: 6
setup: pip install -r requirements.txt
run: python train.py --epochs 30
workdir: src
env: {SEED: "1", DEBUG: no, EMPTY: }
resources: {gpu: {any_of: [a100:1, v100:2]}, cpus: 2, memory: 4GB, network: 100MB/s}
server_resources: {cpus: 1}
share_gpu: true
parallelism: {data: 1..8, pipeline: 2, tensor: 1, cut: layered, width: 2, sync: parameter-server, servers: 2}
model: {name: org/resnet50, parameters: 25.6M, partitions: [0.4, 60%], edge_bytes: 1MB, sync_bytes: 10MB}
progress: {loss: train/loss, accuracy: val_acc, mode: max, total: 3000, unit: step, pattern: 'l=(?P<loss>.*)'}
goal: {accuracy: 93%}
stop: {rule: optstop, allow: [accuracy]}
deadline: 6h
time_limit: 12h
estimate: 90m
checkpoint: {dir: ckpt, grace: 60s, every: 10m, save: 5s, restore: 250ms}
retry: {max: 2}
profiling: {trials: 7, budget: 20%}
group: lr-sweep
"""
SPEC = JobSpec(
    name="resnet-cifar",
    queue="vision",
    priority=60,
    urgency=6,
    setup="pip install -r requirements.txt",
    run="python train.py --epochs 30",
    workdir="src",
    env=(("SEED", "1"), ("DEBUG", "no"), ("EMPTY", "")),
    resources=Resources((GpuDemand("a100", 1000), GpuDemand("v100", 2000)), 2000, 4 * 10**9, 10**8),
    server_resources=Resources((GpuDemand("", 0),), 1000, 4 * 10**9, 10**8),
    share_gpu=True,
    parallelism=Parallelism(
        data=1, data_min=1, data_max=8, pipeline=2, cut="layered", width=2, sync="parameter-server", servers=2
    ),
    model=Model("org/resnet50", 25_600_000, (400_000, 600_000), 10**6, 10**7),
    progress=Progress("train/loss", "val_acc", "max", 3000, "step", "l=(?P<loss>.*)"),
    goal_accuracy=0.93,
    stop=StopRule("optstop", ("accuracy",)),
    deadline_s=21_600.0,
    time_limit_s=43_200.0,
    estimate_s=5400.0,
    checkpoint=Checkpoint("ckpt", 60.0, 600.0, 5.0, 0.25),
    retry_max=2,
    profiling=Profiling(7, 0.2),
    group="lr-sweep",
)


def line_of(text):
    """The one line that refuses a job file called job.yaml."""
    with pytest.raises(UserError) as error:
        parse_job(text, file="job.yaml")
    line = str(error.value)
    assert line.isprintable()
    assert error.value.file == "job.yaml"
    return line


def test_every_key_of_a_job_file():
    assert parse_job(FULL) == SPEC


def test_a_job_file_needs_a_command_alone():
    assert parse_job("run: x", name="n") == JobSpec(name="n", run="x")


def test_numbers_may_be_quoted():
    quoted = re.sub(r"(?<=: )([0-9][0-9.%a-zA-Z/]*)(?=[,}\n])", r'"\1"', FULL)
    assert quoted.count('"') > FULL.count('"') + 30
    assert parse_job(quoted) == SPEC


def test_a_key_without_a_value_is_not_given():
    assert parse_job("run: x\nname:\ndeadline: null\ncheckpoint:\nresources: {gpu: ~}\n") == JobSpec(name="job", run="x")


def test_words_that_yaml_reads_as_something_else_stay_words():
    spec = parse_job("name: no\nqueue: 010\nrun: 'true'\ngroup: 2026-11-01\nenv: {A: 0x10, B: 1:30, C: 1_000, D: =}")
    assert (spec.name, spec.queue, spec.run, spec.group) == ("no", "010", "true", "2026-11-01")
    assert spec.env == (("A", "0x10"), ("B", "1:30"), ("C", "1_000"), ("D", "="))


def test_json_is_a_job_file_too():
    assert parse_job('{"run": "x", "resources": {"gpu": 0.5}}').resources.gpu_alternatives == (GpuDemand("", 500),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{data: 4}", Parallelism(data=4)),
        ("{data: 2..4}", Parallelism(data=2, data_min=2, data_max=4)),
        ("{data: {range: 1..8, start: 4}}", Parallelism(data=4, data_min=1, data_max=8)),
        ("{servers: 2}", Parallelism(servers=2, sync="parameter-server")),
        ("{sync: parameter-server}", Parallelism(servers=1, sync="parameter-server")),
        ("{servers: {range: 1..4, start: 3}}", Parallelism(servers=3, servers_min=1, servers_max=4, sync="parameter-server")),
        ("{tensor: 3, cut: layered}", Parallelism(tensor=3, cut="layered", width=3)),
    ],
)
def test_parallelism(text, expected):
    assert parse_job(f"run: x\nparallelism: {text}").parallelism == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'name: a\n\n\nrun: x\nresources:\n  cpus: 1\n  gpu: "NaN"',
            'job.yaml:7: resources.gpu: expected a positive number or KIND:N, got "NaN"',
        ),
        (
            "run: x\nresources:\n  gpu:\n    any_of:\n    - a100:1\n    - v100:-1",
            'job.yaml:6: resources.gpu.any_of: expected a positive number or KIND:N, got "v100:-1"',
        ),
        ("run: x\nprioritty: 1", "job.yaml:2: prioritty: unknown key (did you mean 'priority'?)"),
        ("run: x\nretry: {mx: 1}", "job.yaml:2: retry.mx: unknown key (did you mean 'max'?)"),
        ("run: x\nretry: {zzz: 1}", "job.yaml:2: retry.zzz: unknown key; known: max"),
        ("run: x\nuser: root", None),
        ("run: x\nrun: y", "job.yaml:2: run: given twice (first on line 1)"),
        ("run: x\nenv:\n  A: 1\n  A: 2", "job.yaml:4: env.A: given twice (first on line 3)"),
        ("run: x\npriority: 101", "job.yaml:2: priority: expected a whole number from 0 to 100, got 101"),
        ("run: x\npriority: -1", 'job.yaml:2: priority: expected a whole number of 0 or more, got "-1"'),
        ("run: x\npriority: true", 'job.yaml:2: priority: expected a whole number of 0 or more, got "true"'),
        ("run: x\nparallelism: {data: 0}", "job.yaml:2: parallelism.data: expected a whole number of 1 or more, got 0"),
        ("run: x\nparallelism: {data: 0..4}", "job.yaml:2: parallelism.data: expected a whole number of 1 or more, got 0"),
        ("run: x\nparallelism: {data: {start: 1}}", None),
        ("run: x\nparallelism: {data: {range: 1..4, start: 5}}", None),
        ("run: x\nparallelism: {data: 1048577}", None),
        ("run: x\nparallelism: {pipeline: 0}", None),
        ("run: x\nparallelism: {sync: all-reduce, servers: 1}", None),
        (
            "run: x\nresources: {cpus: 0}",
            "job.yaml:2: resources.cpus: expected a number of cores above 0, of at most 1048576, got 0.0",
        ),
        ("run: x\nresources: {memory: 4Gb}", None),
        ("run: x\nresources: 4", 'job.yaml:2: resources: expected keys and values, got "4"'),
        ("run: x\nresources: {gpu: [1]}", "job.yaml:2: resources.gpu: expected one value, got a list"),
        ("run: x\nresources: {gpu: {}}", None),
        ("run: x\nresources: {gpu: {any_of: 1}}", 'job.yaml:2: resources.gpu.any_of: expected a list, got "1"'),
        ("run: x\nresources: {gpu: {any_of: [1, 1]}}", None),
        (
            "run: x\nmodel: {partitions: [0.4, 0.5]}",
            "job.yaml:2: model.partitions: expected shares that add up to 1, got a sum of 0.9",
        ),
        ("run: x\nmodel: {partitions: [0.4, 0.6]}", "job.yaml:2: model.partitions: expected pipeline * tensor = 1 shares, got 2"),
        ("run: x\nmodel: {parameters: 1.5}", None),
        ("run: x\nshare_gpu: maybe", 'job.yaml:2: share_gpu: expected true or false, got "maybe"'),
        ("run: x\ndeadline: 0", None),
        ("run: x\ndeadline: 1e309", None),
        ("run: x\ngoal: {accuracy: 1.5}", None),
        ("run: x\nname: ../x", "job.yaml:2: name: expected a name without '..' and path separators, got \"../x\""),
        ('run: x\nname: "a\\0b"', 'job.yaml:2: name: expected a name without control characters, got "a\\u0000b"'),
        ('run: x\nname: "a\\ud800"', None),
        ("run: x\nname: -rf", None),
        ("run: x\nenv: {A-B: 1}", 'job.yaml:2: env: expected names of letters, digits and _, got "A-B"'),
        ('run: x\nenv:\n  A: "\\0"', None),
        ("name: x", 'job.yaml:1: run: expected a command, got ""'),
        ("run: [a]", "job.yaml:1: run: expected one value, got a list"),
        ("run: x\nstop: {allow: accuracy}", 'job.yaml:2: stop.allow: expected a list, got "accuracy"'),
        ("- run: x", "job.yaml:1: expected keys and values, got a list"),
        ("just text", 'job.yaml:1: expected keys and values, got "just text"'),
        ("? [a]\n: b", "job.yaml:1: expected one value, got a list"),
        ("", "job.yaml: expected a job, got an empty file"),
        ("# nothing\n", "job.yaml: expected a job, got an empty file"),
        ("run: &a x\nsetup: *a", "job.yaml:1: not valid YAML: anchors (&) and aliases (*) are not allowed"),
        ("run: x\nsetup: *a", "job.yaml:2: not valid YAML: anchors (&) and aliases (*) are not allowed"),
        ("run: x\n<<: {name: a}", "job.yaml:2: <<: unknown key; known"),
        ("run: !!python/object/apply:os.system [x]", "job.yaml:1: the YAML tag "),
        ("run: x\nenv: {A: !secret b}", 'job.yaml:2: the YAML tag "!secret" is not allowed'),
        ("run: x\n--- \nrun: y", None),
        ('run: "x', "job.yaml:1: not valid YAML: while scanning a quoted scalar, found unexpected end of stream"),
        ("run: x\n\tname: y", None),
        ("run: x\n\nname: \x01", "job.yaml:3: not text: a character U+0001"),
        ("[" * 5000, "job.yaml:1: not valid YAML: nested over 16 deep"),
        ("- " * 5000 + "a", "job.yaml:1: not valid YAML: nested over 16 deep"),
        ("run: " + "x" * FILE_BYTES_MAX, "job.yaml: expected a job file of at most 1000000 bytes"),
        ('run: x\nname: "\\UFFFFFFFF"', "job.yaml:2: not valid YAML: a number or an escape out of range"),
        ("%YAML " + "1" * 5000 + ".1\n---\nrun: x", "job.yaml:1: not valid YAML: a number or an escape out of range"),
        ("%YAML 9.9\n---\nrun: x", None),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else "any",
)
def test_what_is_wrong_is_told_in_one_line(text, line):
    assert line_of(text).startswith(line or "job.yaml:")


def test_the_first_problem_of_the_file_is_told():
    assert line_of("urgency: 11\npriority: 101\nrun: x").startswith("job.yaml:1: urgency")
    assert line_of("priority: 101\nurgency: 11\nrun: x").startswith("job.yaml:1: priority")


@given(st.dictionaries(st.sampled_from([*JobSpec.__slots__, "goal", "retry"]), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["gpu", "any_of", "data", "servers", "range", "accuracy", "max"]), inner, max_size=3),
    ),
    max_leaves=5,
)))  # fmt: skip
def test_any_yaml_gives_a_sound_job_or_one_line(data):
    text = yaml.safe_dump(data, allow_unicode=True)
    try:
        spec = parse_job(text, file="job.yaml")
    except UserError as error:
        assert str(error).isprintable()
        assert str(error).startswith("job.yaml:")
    else:
        assert validate(spec) == []


@given(st.text(max_size=200))
def test_any_text_gives_a_sound_job_or_one_line(text):
    for content in (text, f"run: x\nname: {text}"):
        try:
            parse_job(content, file="job.yaml")
        except UserError as error:
            assert str(error).isprintable()


def test_files_are_named_after_themselves(tmp_path):
    path = tmp_path / "größe 1.yaml"
    path.write_bytes("\ufeffrun: echo 你好\r\nqueue: a\r\n".encode())
    assert load_job(path) == JobSpec(name="größe 1", run="echo 你好", queue="a")
    assert load_job(str(path)).name == "größe 1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a job, got an empty file"),
        (b"run: x\nname: \xff\xfe", "expected UTF-8 text"),
        (b"\x7fELF\0\0\0", "got a binary file"),
        (b"run: x" + b" " * FILE_BYTES_MAX, "at most 1000000 bytes"),
    ],
)
def test_files_that_are_no_job_file(tmp_path, content, message):
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_job(path)
    assert str(error.value).startswith(str(path))
    assert error.value.line == (2 if b"\xff" in content else 0)


def test_paths_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "missing.yaml", "a\0b", tmp_path / ("x" * 5000)):
        with pytest.raises(UserError, match="can't read the job file") as error:
            load_job(path)
        assert str(error.value).isprintable()


def test_a_command_is_a_job():
    spec = job_from_command(["/usr/bin/python", "train.py", "--name", "a b"])
    assert spec == JobSpec(name="python", run="/usr/bin/python train.py --name 'a b'")
    assert spec.resources == Resources((GpuDemand("", 1000),), 1000)
    assert shlex.split(spec.run) == ["/usr/bin/python", "train.py", "--name", "a b"]


def test_the_options_of_a_command():
    spec = job_from_command(
        ["./..", "x"],
        name="n",
        queue="q",
        priority="70",
        gpus="a100:2",
        cpus="0.5",
        memory="1GB",
        workers="2..4",
        workdir="w",
        env={"A": "1"},
        deadline="1h",
        time_limit=90,
    )
    assert spec == JobSpec(
        name="n",
        queue="q",
        priority=70,
        run="./.. x",
        workdir="w",
        env=(("A", "1"),),
        resources=Resources((GpuDemand("a100", 2000),), 500, 10**9),
        parallelism=Parallelism(data=2, data_min=2, data_max=4),
        deadline_s=3600.0,
        time_limit_s=90.0,
    )
    assert job_from_command(["./-x"]).name == "job"


def test_a_command_of_one_word_with_blanks_is_a_line_for_the_shell():
    line = "python train.py --lr 0.1 && echo done"
    assert job_from_command([line]).run == line
    assert job_from_command([line]).name == "python"
    assert job_from_command(["my script.sh", "x"]).run == "'my script.sh' x"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"argv": []}, "run"),
        ({"argv": [""]}, "run"),
        ({"argv": ["a\0"]}, "run"),
        ({"gpus": "NaN"}, "resources.gpu"),
        ({"gpus": 1.5}, "resources.gpu"),
        ({"cpus": 0}, "resources.cpus"),
        ({"memory": "x"}, "resources.memory"),
        ({"workers": 0}, "parallelism.data"),
        ({"workers": "a"}, "parallelism.data"),
        ({"name": "-x"}, "name"),
        ({"name": ""}, "name"),
        ({"priority": 101}, "priority"),
        ({"deadline": "soon"}, "deadline"),
        ({"time_limit": 0}, "time_limit"),
        ({"env": {"": "1"}}, "env"),
    ],
)
def test_wrong_options_of_a_command(options, key):
    with pytest.raises(UserError) as error:
        job_from_command(options.pop("argv", ["x"]), **options)
    assert error.value.key == key
    assert str(error.value).startswith(f"{key}: expected ")


@pytest.mark.parametrize(("name", "workers"), [("hello", 1), ("gang", 2)])
def test_the_examples(name, workers):
    spec = load_job(ROOT / "examples" / f"{name}.yaml")
    assert (spec.name, spec.parallelism.data) == (name, workers)
    assert spec.resources.gpu_alternatives == (GpuDemand("", 0),)


def test_the_example_of_the_docs():
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    spec = parse_job(example)
    assert spec.name == "resnet-cifar"
    assert spec.model.partitions == (400_000, 600_000)
    assert spec.deadline_us == 6 * 3_600_000_000


def test_the_docs_name_every_key():
    documented = set(re.findall(r"^\| `([a-z_.]+)`", DOCS.read_text("utf-8"), re.MULTILINE))
    known = set()
    with pytest.raises(UserError) as error:
        parse_job("zzzz: 1")
    top = error.value.message.partition("known: ")[2].split(", ")
    for key in top:
        try:
            parse_job(f"run: x\n{key}: {{zzzz: 1}}" if key != "run" else "run: x")
        except UserError as refused:
            inner = refused.message.partition("known: ")[2].split(", ") if "known: " in refused.message else [""]
            known |= {f"{key}.{name}" if name else key for name in inner}
        else:
            known.add(key)
    known = {key for key in known if not key.startswith("server_resources.")}
    assert known == documented
