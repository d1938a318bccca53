"""What the commands ask a controller for, and what they do with its answers."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import httpx
import pytest
from tests.cli.conftest import BAD, TRAIN, CommandLine, job, problem

from headway import cli_queue
from headway.app.client import NoControllerError
from headway.app.logs import merged, whole_lines
from headway.cli_output import exit_code


# -- handing in ------------------------------------------------------------------------------------------------------
def test_several_files_go_in_one_request_and_each_is_answered_for_itself(cli: CommandLine) -> None:
    files = [cli.write(f"{name}.yaml", "run: 'true'\n") for name in "abc"]
    answers = [
        {"job": "a-1", "number": 1, "state": "queued", "reason": "", "message": "", "note": "urgency 9 is 7", "created": True},
        {"id": "", "error": "there is no queue \"x\"", "status": 422},
        {"job": "c-2", "number": 2, "state": "rejected", "reason": "larger-than-cluster", "message": "larger than the cluster",
         "note": "", "created": True},
    ]  # fmt: skip
    cli.controller.says("POST", "/v1/jobs/batch", {"results": answers})
    assert cli.run("submit", *files, code=2) == "a-1\n"
    assert cli.said == (
        'headway: a-1: urgency 9 is 7\nheadway: b.yaml: there is no queue "x"; c.yaml: c-2 is rejected: larger than the cluster\n'
    )
    posts = [body for method, _, body in cli.controller.asked if method == "POST"]
    assert [entry["spec"]["name"] for entry in posts[0]["jobs"]] == ["a", "b", "c"] and len(posts) == 1


def test_a_mistake_in_one_of_several_files_hands_none_in(cli: CommandLine) -> None:
    files = [cli.write("a.yaml", "run: 'true'\n"), cli.write("b.yaml", "run: 'true'\nprioritty: 3\n")]
    assert cli.refusal("submit", *files) == "b.yaml:2: prioritty: unknown key (did you mean 'priority'?)"
    assert not cli.controller.asked


def test_large_batches_go_in_several_requests(cli: CommandLine) -> None:
    from headway.app.jobfile import job_from_command
    from headway.app.live import connect, prepared, submit_many

    spec = prepared(job_from_command(["true", "x" * 400_000]), "ann")
    with connect({}) as client:
        assert len(submit_many(client, [(spec, "")] * 3)) == 3
        small = prepared(job_from_command(["true"]), "ann")
        assert len(submit_many(client, [(small, "")] * 2_001)) == 2_001
    sizes = [len(body["jobs"]) for _, path, body in cli.controller.asked if path == "/v1/jobs/batch"]
    assert sizes == [1, 1, 1, 1_000, 1_000, 1]


def test_a_dry_run_hands_nothing_in_and_says_what_would_happen(cli: CommandLine) -> None:
    file = cli.write("a.yaml", "run: 'true'\n")
    cli.run("submit", "--dry-run", file)
    assert cli.last()[:2] == ("POST", "/v1/jobs?dry_run=true")
    cli.controller.says("POST", "/v1/jobs", {"dry_run": True, "state": "rejected", "message": "larger than the cluster"})
    assert cli.run("submit", "--dry-run", file, code=2) == "would be rejected\n"
    assert "it would be rejected: larger than the cluster" in cli.said
    assert "leave out --wait and --hold" in cli.refusal("submit", "--dry-run", "--wait", file)


def test_a_job_may_be_held_from_the_beginning(cli: CommandLine) -> None:
    assert cli.run("submit", "--hold", "--", "true") == "true-1\n"
    assert cli.last()[:2] == ("POST", "/v1/jobs?hold=true")


def test_a_users_token_hands_jobs_in_under_its_own_name(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_TOKEN", "hw_bob_x")
    cli.controller.says("GET", "/v1/me", {"token": "bob", "user": "bob", "role": "user"})
    cli.run("submit", "--", "true")
    assert cli.last()[2]["user"] == "bob"
    cli.controller.says("GET", "/v1/me", {"token": "root", "user": "root", "role": "admin"})
    cli.run("submit", "--", "true")
    assert cli.last()[2]["user"] == "ann"


def test_waiting_ends_as_the_job_does(cli: CommandLine) -> None:
    cli.controller.says("GET", "/v1/jobs/true-1", job(1, "true", "failed", reason="time-limit"))
    assert cli.run("submit", "--wait", "--", "true", code=124) == "true-1: failed (time-limit)\n"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"state": "completed"}, 0),
        ({"state": "failed", "exit_code": 3, "reason": "exit-code"}, 1),
        ({"state": "failed", "exit_code": 127, "reason": "exit-code"}, 127),
        ({"state": "failed", "exit_code": 126, "reason": "exit-code"}, 126),
        ({"state": "failed", "exit_code": 139, "reason": "exit-code"}, 139),
        ({"state": "failed", "exit_code": 255, "reason": "exit-code"}, 1),
        ({"state": "failed", "exit_code": 137, "reason": "exit-code", "message": "out-of-memory"}, 137),
        ({"state": "failed", "exit_code": 143, "reason": "time-limit"}, 124),
        ({"state": "failed", "exit_code": None, "reason": "start-failed"}, 1),
        ({"state": "cancelled", "exit_code": 143, "reason": "cancelled"}, 143),
        ({"state": "rejected", "reason": "larger-than-cluster"}, 1),
    ],
)
def test_exit_codes_are_those_that_shells_know(fields: dict[str, Any], code: int) -> None:
    assert exit_code(job(1, "j", **fields)) == code
    if fields["state"] == "cancelled":
        assert exit_code(job(1, "j", **fields), interrupted=True) == 130


# -- staying with a job ----------------------------------------------------------------------------------------------
class Life:
    """A job that waits at two looks, runs, and ends; its output comes in two pieces, the second after a restart."""

    def __init__(self, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks, self.streams = 0, 0
        cli.controller.says("GET", "/v1/jobs/true-1", self.show)
        cli.controller.says("GET", "/v1/jobs/true-1/logs", self.logs)
        monkeypatch.setattr("time.sleep", lambda _: None)
        self.asked: list[str] = []

    def show(self, request: httpx.Request) -> Any:
        self.looks += 1
        if self.looks <= 2:
            return job(1, "true", "queued", reason="no-room")
        if self.looks <= 4:
            return job(1, "true", "running", attempt=1)
        return job(1, "true", "completed", attempt=1, run_s=2.0)

    def logs(self, request: httpx.Request) -> Any:
        self.streams += 1
        self.asked.append(request.url.params["offset"])
        if self.streams == 1:
            return httpx.Response(200, content=b"one\n")
        if self.streams == 2:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=b"two\n" if self.streams == 3 else b"")


def test_run_prints_the_output_once_over_a_restart_and_ends_as_the_job(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(cli, monkeypatch)
    assert cli.run("run", "--", "true") == "one\ntwo\n"
    assert cli.said.splitlines() == [
        "headway: true-1 is handed in; Ctrl-C cancels it",
        "headway: true-1 waits (no-room); more: headway why true-1",
        "headway: true-1: completed after 0:02",
    ]
    assert life.asked[:3] == ["0", "4", "4"]


@pytest.mark.parametrize("answer", ["pipe", "y", "again", "n"])
def test_ctrl_c_cancels_the_job_after_a_question(answer: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = False

    def cancel(_: httpx.Request) -> Any:
        nonlocal cancelled
        cancelled = True
        return job(1, "true", "stopping", attempt=1)

    streams = 0

    def logs(_: httpx.Request) -> Any:
        nonlocal streams
        streams += 1
        if streams == 1:
            raise KeyboardInterrupt
        return httpx.Response(200, content=b"")

    def show(_: httpx.Request) -> Any:
        over = "cancelled" if cancelled else "completed"
        return job(1, "true", over if streams else "running", attempt=1)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return answer != "pipe"

        def readline(self, *_: Any) -> str:
            if answer == "again":
                raise KeyboardInterrupt
            return answer + "\n"

    for path, told in (("/v1/jobs/true-1", show), ("/v1/jobs/true-1/logs", logs)):
        cli.controller.says("GET", path, told)
    cli.controller.says("POST", "/v1/jobs/true-1/cancel", cancel)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: answer != "pipe", raising=False)
    cli.run("run", "--", "true", code=0 if answer == "n" else 130)
    assert cancelled == (answer != "n")


# -- looking ---------------------------------------------------------------------------------------------------------
def test_running_jobs_are_shown_also_where_older_ones_are_left_out(cli: CommandLine) -> None:
    out = cli.run("queue", "--limit", "1")
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["train-1", "nächster-2"] and not cli.said
    cli.run("queue", "--all", "--limit", "1")
    assert cli.said == "headway: 1 older jobs are not shown (see --limit)\n"


def test_an_unknown_column_is_refused_with_a_hint(cli: CommandLine) -> None:
    assert cli.refusal("queue", "--format", "job,stat") == "--format: unknown column \"stat\" (did you mean 'state'?)"


def test_watching_goes_on_until_ctrl_c(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_queue, "_pause", pause)
    out = cli.run("queue", "--watch", "--interval", "0.5")
    assert out.count("JOBID") == 3 and pauses == [0.5] * 3
    pauses.clear()
    lines = cli.run("queue", "--watch", "--json").splitlines()
    assert len(lines) == 3 and all(json.loads(line)["jobs"] for line in lines)


def test_the_output_of_all_ranks_has_the_rank_before_each_line(cli: CommandLine) -> None:
    def logs(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=f"a{request.url.params['rank']}\nb".encode())

    cli.controller.says("GET", "/v1/jobs/train-1/logs", logs)
    lines = cli.run("logs", "train-1", "--all-ranks").splitlines()
    assert sorted(lines) == ["0: a0", "0: b", "1: a1", "1: b"]
    assert [line for line in lines if line.startswith("0")] == ["0: a0", "0: b"]
    assert cli.json("logs", "train-1", "--all-ranks")["ranks"][1] == {"rank": 1, "output": "a1\nb\n"}


def test_lines_come_whole_and_an_error_of_one_stream_ends_all() -> None:
    assert list(whole_lines(iter([b"a", b"b\nc", b"\n\xffd"]))) == ["ab", "c", "\ufffdd"]

    def broken() -> Any:
        yield b"x\n"
        raise NoControllerError("gone")

    with pytest.raises(NoControllerError):
        list(merged([broken()]))


# -- steering --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["train-1", "nächster-2", "train-1"], {"jobs": ["train-1", "nächster-2"]}),
        (["t*"], {"jobs": ["train-1"]}),
        (["*-[12]"], {"jobs": ["train-1", "nächster-2"]}),
        (["--all"], {"all": True, "user": "", "queue": "", "state": ""}),
        (["--user", "ann", "--state", "queued"], {"all": True, "user": "ann", "queue": "", "state": "queued"}),
    ],
)
def test_which_jobs_are_meant(arguments: list[str], body: Any, cli: CommandLine) -> None:
    cli.run("cancel", *arguments)
    assert cli.last() == ("POST", "/v1/jobs/cancel", body)


def test_ids_come_from_standard_input(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("train-1\nnächster-2\n"))
    cli.run("hold", "-")
    assert cli.last()[2] == {"jobs": ["train-1", "nächster-2"]}
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    asked = len(cli.controller.asked)
    assert cli.run("hold", "-") == "no jobs\n" and len(cli.controller.asked) == asked


def test_what_could_not_be_done_is_told_in_one_line(cli: CommandLine) -> None:
    errors = [{"job": f"x-{i}", "error": f'there is no job "x-{i}"'} for i in range(5)]
    cli.controller.says("POST", "/v1/jobs/cancel", {"jobs": [TRAIN], "errors": errors})
    assert cli.run("cancel", "train-1", "x-0", code=2) == "train-1: running\n"
    assert cli.said == 'headway: there is no job "x-0"; there is no job "x-1"; there is no job "x-2"; and 2 more\n'


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["cancel"], "expected ids of jobs, or --all"),
        (["cancel", "train-1", "--all"], "not both"),
        (["cancel", "nobody-*"], "no job that waits or runs has an id like"),
        (["hold", "-", "--user", "ann"], "not both"),
        (["update", "train-1"], "expected something to change"),
        (["update", "train-1", "--priority", "101"], "--priority: expected a whole number from 0 to 100"),
        (["update", "train-1", "--deadline", "soon"], "--deadline: expected a duration"),
        (["update", "train-1", "--urgency", "nan"], "--urgency: expected a whole number"),
        (["logs", "train-1", "--rank", "1", "--all-ranks"], "--rank: "),
        (["submit", "--id", "x", "a.yaml", "b.yaml"], "--id: is of one job"),
        (["show", "../x"], 'there is no job "..%2Fx"'),
        (["show", ".."], 'there is no job ".."'),
        (["cancel", "a\0b"], "there is no job"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str, cli: CommandLine) -> None:
    for name in "ab":
        cli.write(f"{name}.yaml", "run: 'true'\n")
    cli.controller.says("POST", "/v1/jobs/cancel", problem(404, "there is no job"))
    assert text in cli.refusal(*arguments)


def test_a_change_goes_as_the_api_wants_it(cli: CommandLine) -> None:
    cli.run("update", "train-1", "--priority", "80", "--deadline", "2h", "-t", "none", "--urgency", "7", "--queue", "x")
    assert cli.last() == (
        "PATCH", "/v1/jobs/train-1", {"priority": 80, "deadline": "2h", "time_limit": None, "urgency": 7, "queue": "x"},
    )  # fmt: skip


def test_a_question_is_asked_on_a_terminal_alone(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    cli.run("cancel", "--all", code=130)
    assert not [asked for asked in cli.controller.asked if asked[0] == "POST"]
    cli.run("cancel", "--all", "--yes")
    assert cli.last()[:2] == ("POST", "/v1/jobs/cancel")


# -- top -------------------------------------------------------------------------------------------------------------
def test_names_that_would_garble_a_terminal_are_escaped_everywhere(cli: CommandLine) -> None:
    evil = job(1, "\x1b[2J\u202etxt", "running", user="a\nb", queue="q\r", nodes=["n\x07"], node_places=[])
    cli.controller.says("GET", "/v1/jobs", {"jobs": [evil], "more": 0, "next": ""})
    cli.controller.says("GET", "/v1/jobs/train-1", evil | {"spec": {"run": "\x1b[31m"}})
    cli.controller.says("POST", "/v1/jobs/cancel", {"jobs": [evil], "errors": []})
    for command in (["queue"], ["queue", "-l"], ["top", "--once"], ["show", "train-1"], ["cancel", "train-1"]):
        out = cli.run(*command)
        assert not set(out) & set("\x1b\u202e\r\x07"), command
        assert "\\x1b[2J\\u202etxt" in out, command


def test_of_a_long_queue_top_shows_the_head(cli: CommandLine) -> None:
    status = cli.controller.answers["GET", "/v1/status"]
    cli.controller.says("GET", "/v1/status", status | {"jobs": {"queued": 5_000}})
    assert "and 4999 more that wait" in cli.run("top", "--once")
    assert any("order=oldest" in path for _, path, _ in cli.controller.asked)


def test_a_rejected_job_is_an_error(cli: CommandLine) -> None:
    answer = {
        "job": "true-1",
        "number": 1,
        "state": "rejected",
        "reason": "x",
        "message": "too large",
        "note": "",
        "created": True,
    }
    cli.controller.says("POST", "/v1/jobs", answer)
    assert cli.refusal("submit", "--", "true") == "true-1 is rejected: too large"
    assert cli.refusal("run", "--", "true") == "true-1 is rejected: too large"


def test_a_failed_job_tells_its_exit_code(cli: CommandLine) -> None:
    cli.controller.says("GET", "/v1/jobs/bad-3", BAD | {"spec": {}})
    assert "exit_code     3" in cli.run("show", "bad-3")


def test_run_tells_of_each_further_attempt(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([("running", 1), ("running", 2), ("running", 2), ("completed", 2)])
    last = ("completed", 2)
    asked: list[tuple[str, str]] = []

    def show(_: httpx.Request) -> Any:
        state, attempt = next(looks, last)
        return job(1, "true", state, attempt=attempt, run_s=1.0)

    def logs(request: httpx.Request) -> httpx.Response:
        of, offset = request.url.params["attempt"], int(request.url.params["offset"])
        asked.append((of, request.url.params["follow"]))
        return httpx.Response(200, content=f"try {of}\n".encode()[offset:])

    monkeypatch.setattr("time.sleep", lambda _: None)
    cli.controller.says("GET", "/v1/jobs/true-1", show)
    cli.controller.says("GET", "/v1/jobs/true-1/logs", logs)
    assert cli.run("run", "--", "true") == "try 1\ntry 2\n"
    assert "headway: true-1: attempt 2\n" in cli.said
    assert asked == [("1", "true"), ("1", "false"), ("2", "true"), ("2", "false")]
