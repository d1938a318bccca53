"""Scripts with #SBATCH lines, against what Slurm's manual says of each option."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import CommandLine

from headway.app import sbatch_values as values
from headway.app.jobfile import load_jobs
from headway.core.errors import UserError
from headway.core.model import JobSpec
from headway.core.units import US_PER_S

NOW = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)


def load(
    folder: Path, *options: str, body: str = "python train.py", head: str = "#!/bin/bash"
) -> tuple[list[JobSpec], list[str]]:
    path = folder / "train.sh"
    path.write_text("\n".join([head, *(f"#SBATCH {option}" for option in options), body, ""]), "utf-8")
    return load_jobs(path, {"HOME": "/home/ann", "SECRET": "x"})


def one(folder: Path, *options: str, **script: str) -> JobSpec:
    (spec,), _ = load(folder, *options, **script)
    return spec


def test_a_script_as_people_write_them(tmp_path: Path) -> None:
    spec = one(
        tmp_path,
        "--job-name=resnet # what it is called",
        "-N 2 --ntasks-per-node=4",
        "--gres=gpu:a100:4",
        "-c 8",
        "--mem=64G",
        "-t 1-12:30",
        "--partition=vision",
        '--export=ALL,EPOCHS=3,MODEL="a b"',
        "--signal=B:TERM@120",
        "--nice=200",
        "--chdir=/data/run",
        "--no-requeue",
    )
    assert (spec.name, spec.queue, spec.workdir, spec.priority, spec.retry_max) == ("resnet", "vision", "/data/run", 30, 0)
    assert spec.parallelism.data == 8, "two nodes of four tasks"
    (gpu,) = spec.resources.gpu_alternatives
    assert (gpu.kind, gpu.milli) == ("a100", 1_000), "four GPUs of a node for its four tasks"
    assert spec.resources.cpus_milli == 8_000 and spec.resources.memory_bytes == 16 * 2**30
    assert spec.time_limit_s == 131_400 and spec.checkpoint.grace_s == 120
    assert dict(spec.env) == {"EPOCHS": "3", "MODEL": "a b"}


@pytest.mark.parametrize(
    ("options", "workers", "gpus_milli"),
    [
        ([], (1, 1), 0),
        (["-G1"], (1, 1), 1_000),
        (["--gpus=8", "-n 4"], (4, 4), 2_000),
        (["--gpus-per-task=2", "-n4"], (4, 4), 2_000),
        (["--gpus-per-node=4", "-N2"], (2, 2), 4_000),
        (["--gres=gpu", "-N 2"], (2, 2), 1_000),
        (["-N1-4", "--gres=gpu:2"], (1, 4), 2_000),
        (["-N2", "-n8", "--gres=gpu:4"], (8, 8), 1_000),
        (["-N2", "--ntasks=8", "--ntasks-per-node=4", "--gpus=v100:8"], (8, 8), 1_000),
    ],
)
def test_tasks_are_workers_and_share_the_gpus(
    options: list[str], workers: tuple[int, int], gpus_milli: int, tmp_path: Path
) -> None:
    spec = one(tmp_path, *options)
    par = spec.parallelism
    assert (par.data, par.data_max) == workers and par.data_min == par.data
    assert spec.resources.gpu_alternatives[0].milli == gpus_milli


@pytest.mark.parametrize(
    ("options", "memory_bytes"),
    [
        (["--mem=4000"], 4_000 * 2**20),
        (["--mem=0"], 0),
        (["--mem-per-cpu=2G", "-c4"], 8 * 2**30),
        (["--mem-per-gpu=1T", "-G2"], 2 * 2**40),
    ],
)
def test_memory(options: list[str], memory_bytes: int, tmp_path: Path) -> None:
    assert one(tmp_path, *options).resources.memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5_400), ("90:30", 5_430), ("1:30:00", 5_400), ("2-12", 216_000), ("2-12:30", 217_800), ("0-0:0:5", 5),
     ("UNLIMITED", None), ("0", None)],
)  # fmt: skip
def test_time_limits_are_minutes_first(text: str, seconds: int | None) -> None:
    assert values.time_limit_us(text) == (None if seconds is None else seconds * US_PER_S)


@given(days=st.integers(0, 400), seconds=st.integers(1, 86_399))
def test_every_time_limit_is_read_back(days: int, seconds: int) -> None:
    minutes, s = divmod(seconds, 60)
    hours, m = divmod(minutes, 60)
    assert values.time_limit_us(f"{days}-{hours:02}:{m:02}:{s:02}") == (days * 86_400 + seconds) * US_PER_S


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("now+90", 90), ("now+6hours", 21_600), ("now+1day", 86_400), ("18:00", 21_600), ("11:00:30", 82_830),
     ("2030-02-01T12:00", 86_400), ("2030-01-31T14:00:00+01:00", 3_600)],
)  # fmt: skip
def test_deadlines_count_from_now(text: str, seconds: int) -> None:
    assert values.deadline_us(text, NOW) == seconds * US_PER_S


def test_an_array_is_a_job_for_each_index_in_one_group(tmp_path: Path) -> None:
    specs, _ = load(tmp_path, "-a 1-5:2,9%2", "-J sweep")
    assert [spec.name for spec in specs] == ["sweep_1", "sweep_3", "sweep_5", "sweep_9"]
    assert {spec.group for spec in specs} == {"sweep"}
    assert dict(specs[1].env) == {
        "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "9",
    }  # fmt: skip


def test_what_is_passed_over_is_told(tmp_path: Path) -> None:
    _, notes = load(tmp_path, "-o out-%j.txt", "--mail-type=END", "--signal=USR1@90", "--export=ALL")
    assert notes == [
        "passed over: --mail-type, --output; what it prints: headway logs JOB",
        "--export=ALL: the environment is not taken along; name what the job needs: --export=NAME,…",
        "--signal: SIGTERM is sent 90 s before the end, in place of USR1",
    ]


def test_named_variables_are_taken_along_and_no_others(tmp_path: Path) -> None:
    assert one(tmp_path, "--export=HOME,A=1").env == (("HOME", "/home/ann"), ("A", "1"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--job-nam=x"], "train.sh:2: --job-nam: unknown option of sbatch (did you mean 'job-name'?)"),
        (["-J a", "-d afterok:1"], "train.sh:3: --dependency: not possible here: jobs can't wait for others"),
        (["-Z 1"], 'train.sh:2: expected an option of sbatch, got "-Z"'),
        (["train"], 'train.sh:2: expected an option of sbatch, got "train"'),
        (["-N"], "train.sh:2: --nodes: expected a value, got nothing"),
        (["-N nan"], "train.sh:2: --nodes: expected a whole number"),
        (["-N 4-2"], "train.sh:2: --nodes: expected a range of nodes"),
        (["-N 1-4", "-n 4"], "train.sh:2: --nodes: expected one number of nodes"),
        (["-G 3 -n 2"], "train.sh:2: --gpus: expected GPUs that 2 workers can share evenly, got 3"),
        (["--gres=lustre:1"], "train.sh:2: --gres: expected gpu, gpu:N or gpu:KIND:N"),
        (["--mem=1e9"], "train.sh:2: --mem: expected memory"),
        (["-t", "-t soon"], "train.sh:"),
        (["-t -5"], "train.sh:2: --time: expected a time limit"),
        (["--deadline=2000-01-01"], "train.sh:2: --deadline: expected a time"),
        (["-p a,b"], "train.sh:2: --partition: expected one name"),
        (["-a 0-100000"], "train.sh:2: --array: expected at most 1000"),
        (["-a x"], "train.sh:2: --array: expected indices"),
        (["--export=NOT_SET"], "train.sh:2: --export: expected variables that are set here"),
        (["-J ../x"], "train.sh:2: name: expected a name without '..'"),
        (["-J 'open"], "train.sh:2: #SBATCH: no closing quotation"),
        (["--signal=@"], "train.sh:2: --signal: expected a signal"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        load(Path("."), *options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#SBATCH -N 1\ntrue\n", "1: expected a script that begins with #!"),
        ("#!\ntrue\n", "1: expected an interpreter"),
        ("#!/bin/sh\n#SBATCH -N 1\n", "expected commands, got none"),
    ],
)
def test_what_is_no_script(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text(text)
    with pytest.raises(UserError) as caught:
        load_jobs(tmp_path / "x.sh", {})
    assert message in str(caught.value)


def test_options_behind_the_first_command_are_comments(tmp_path: Path) -> None:
    assert one(tmp_path, body="true\n#SBATCH --nonsense\n").parallelism.data == 1


def shell(run: str, folder: Path) -> str:
    return subprocess.run(["/bin/sh", "-c", run], cwd=folder, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.parametrize(
    ("head", "body", "printed"),
    [
        ("#!/bin/bash", 'a=(1 2)\necho "${a[1]} it\'s"', "2 it's\n"),
        ("#!/bin/sh -e", "srun -n 2 --gpus=1 echo one\nfalse || echo two", "one\ntwo\n"),
        ("#!/bin/bash", "srun --mpi=none -- echo -n x\n  srun echo y", "xy\n"),
        ("#!/usr/bin/env python3", "print('py', 1 + 1)", "py 2\n"),
    ],
)
def test_a_script_is_run_by_its_interpreter(head: str, body: str, printed: str, tmp_path: Path) -> None:
    assert shell(one(tmp_path, head=head, body=body).run, tmp_path) == printed


def test_a_script_is_handed_in_like_a_job_file(cli: CommandLine) -> None:
    cli.write("train.sh", "#!/bin/bash\n#SBATCH -J one -o x\npython train.py\n")
    assert cli.run("submit", "train.sh") == "one-1\n"
    assert cli.said == "headway: train.sh: passed over: --output; what it prints: headway logs JOB\n"
    cli.write("array.sh", "#!/bin/bash\n#SBATCH -a 0-2\npython train.py\n")
    assert cli.run("submit", "array.sh").split() == ["array_0-1", "array_1-2", "array_2-3"]
    assert "is an array of 3 jobs" in cli.refusal("run", "array.sh")


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.sh")
        path.write_bytes(("#!/bin/sh\n#SBATCH " + text).encode("utf-8", "surrogatepass"))
        try:
            found: Any = load_jobs(path, {})
        except UserError as error:
            assert str(error).count("\n") == 0
        else:
            assert found
