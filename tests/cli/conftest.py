"""The command line against a controller that is not there: its answers are written down here, in the shapes of the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway import __version__
from headway.app import live
from headway.app.client import Client
from headway.cli import run_command

URL = "http://127.0.0.1:8080"


def job(number: int, name: str, state: str, **fields: Any) -> dict[str, Any]:
    """A job as the API tells it."""
    return {
        "job": f"{name}-{number}",
        "number": number,
        "name": name,
        "queue": "default",
        "user": "ann",
        "group": "",
        "state": state,
        "reason": "",
        "message": "",
        "note": "",
        "priority": 50,
        "urgency": 5,
        "held": False,
        "attempt": 0,
        "preemptions": 0,
        "gpus": 1,
        "tasks": 1,
        "nodes": [],
        "node_places": [],
        "submitted_at": "2030-01-31T12:00:00Z",
        "started_at": None,
        "ended_at": None,
        "deadline_at": None,
        "time_limit_s": None,
        "wait_s": 5.0,
        "run_s": 0.0,
        "eta_s": None,
        "exit_code": None,
        "steps": None,
        "total": None,
        "loss": None,
        "accuracy": None,
        "saved_step": None,
        "saved_age_s": None,
        "goal_accuracy": None,
        "stop_rule": "fixed",
    } | fields


TRAIN = job(
    1, "train", "running", attempt=2, preemptions=1, gpus=2, tasks=2, nodes=["n0", "n1"],
    node_places=[{"node": "n0", "gpus": [0]}, {"node": "n1", "gpus": [1]}], started_at="2030-01-31T12:00:05Z", run_s=3_725.0,
    eta_s=600.0, steps=1_500, total=3_000, loss=0.012345, accuracy=0.875, saved_step=1_400, saved_age_s=30.0, priority=80,
)  # fmt: skip
NEXT = job(2, "nächster", "queued", reason="no-room", queue="vision", gpus=4)
BAD = job(3, "bad", "failed", reason="exit-code", exit_code=3, attempt=1, run_s=61.0)
NODES = [
    {"node": "n0", "state": "up", "gpu_kind": "slot", "gpus": 2, "gpus_free": 1, "gpus_held": 1, "reasons": []},
    {"node": "n1", "state": "draining", "gpu_kind": "slot", "gpus": 2, "gpus_free": 1, "gpus_held": 1,
     "reasons": ["drained: new fans"]},
]  # fmt: skip
STATUS = {
    "version": __version__, "url": URL, "policy": "fifo", "epoch": 1, "now": "2030-01-31T13:02:10Z",
    "jobs": {"queued": 1, "running": 1}, "nodes": 2, "nodes_up": 1, "gpus": 4, "gpus_used": 2, "rounds": 9, "refused_plans": 0,
    "events": 42, "stopping": False,
}  # fmt: skip
QUEUES = [
    {
        "queue": "default",
        "parent": "",
        "quota_gpus": None,
        "limit_gpus": None,
        "weight": 1,
        "gpus_used": 2,
        "queued": 0,
        "running": 1,
    },
    {
        "queue": "vision",
        "parent": "research",
        "quota_gpus": 8,
        "limit_gpus": 16,
        "weight": 2,
        "gpus_used": 0,
        "queued": 1,
        "running": 0,
    },
]
USERS = [
    {"user": "ann", "queued": 1, "running": 1, "gpus_used": 2, "queued_max": 50, "gpus_max": None, "urgency_budget": 12,
     "admin": False},
]  # fmt: skip
TOKENS = [{"name": "ann", "user": "ann", "role": "user", "created_at": "2030-01-31T12:00:00+00:00", "expires_at": None}]
EVENTS = [
    {"seq": 41, "t": "2030-01-31T12:00:00Z", "kind": "submitted", "job": "train-1", "attempt": 0, "node": None, "reason": "",
     "message": ""},
    {"seq": 42, "t": "2030-01-31T12:00:06Z", "kind": "observed", "job": "train-1", "attempt": 1, "node": None, "reason": "",
     "message": "", "step": 1500, "loss": 0.012345, "accuracy": 0.875},
]  # fmt: skip

Answer = Callable[[httpx.Request], Any]


class FakeController:
    """Answers as a controller does; `says` adds an answer, `asked` holds what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[tuple[str, str], Any] = {
            ("GET", "/healthz"): {"status": "ok", "version": __version__},
            ("GET", "/v1/jobs"): self._jobs,
            ("GET", "/v1/jobs/train-1"): TRAIN | {"spec": {"schema": 1, "name": "train", "run": "python train.py"}},
            ("GET", "/v1/jobs/train-1/logs"): lambda _: httpx.Response(200, content=b"epoch 1\nepoch 2\n"),
            ("GET", "/v1/nodes"): {"nodes": NODES},
            ("GET", "/v1/status"): STATUS,
            ("GET", "/v1/queues"): {"queues": QUEUES},
            ("GET", "/v1/users"): {"users": USERS},
            ("GET", "/v1/me"): {"token": "", "user": "ann", "role": "admin"},
            ("GET", "/v1/tokens"): {"tokens": TOKENS},
            ("GET", "/v1/events"): self._events,
            ("POST", "/v1/jobs"): self._submitted,
            ("POST", "/v1/jobs/batch"): self._batch,
            ("PATCH", "/v1/jobs/train-1"): TRAIN,
            ("POST", "/v1/nodes/n0/drain"): NODES[0] | {"state": "draining", "reasons": ["drained: fans"]},
            ("POST", "/v1/nodes/n0/undrain"): NODES[0],
            ("POST", "/v1/reload"): {"file": "headway.toml", "changed": ["policy"], "restart": ["cluster.port"]},
            ("POST", "/v1/stop"): {"stopping": True, "live_jobs": 2},
            ("POST", "/v1/tokens"): TOKENS[0] | {"token": "hw_ann_secret"},
            ("DELETE", "/v1/tokens/ann"): TOKENS[0],
        }
        for verb in ("cancel", "hold", "release", "requeue"):
            self.answers["POST", f"/v1/jobs/{verb}"] = {"jobs": [TRAIN], "errors": []}

    def says(self, method: str, path: str, answer: Any) -> None:
        self.answers[method, path] = answer

    def _jobs(self, request: httpx.Request) -> Any:
        params = request.url.params
        words = set(params.get("state", "").split(",")) - {""}
        if "live" in words:
            words |= {"queued", "starting", "running", "stopping"}
        found = [
            one
            for one in (TRAIN, NEXT, BAD)
            if (not words or one["state"] in words)
            and all(not params.get(key) or one[key] == params[key] for key in ("queue", "user", "group"))
        ]
        limit = int(params["limit"])
        return {"jobs": found[-limit:], "more": max(len(found) - limit, 0), "next": ""}

    def _submitted(self, request: httpx.Request) -> Any:
        if request.url.params.get("dry_run") == "true":
            spec = json.loads(request.content)
            told = {"dry_run": True, "state": "would-queue", "message": ""}
            return told | {"name": spec["name"], "user": "ann", "queue": "default", "gpus": 1, "tasks": 1}
        return _answered(1, json.loads(request.content)["name"], request.url.params.get("id", ""))

    def _batch(self, request: httpx.Request) -> Any:
        entries = json.loads(request.content)["jobs"]
        return {"results": [_answered(i, entry["spec"]["name"], entry["id"]) for i, entry in enumerate(entries, start=1)]}

    def _events(self, request: httpx.Request) -> httpx.Response:
        text = ": here\n\n" + "".join(f"id: {e['seq']}\nevent: {e['kind']}\ndata: {json.dumps(e)}\n\n" for e in EVENTS)
        return httpx.Response(200, text=text, headers={"Content-Type": "text/event-stream"})

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, request.url.raw_path.decode(), body))
        path = request.url.raw_path.decode().partition("?")[0]
        answer = self.answers.get((request.method, path))
        if answer is None:
            return problem(404, f'there is no job "{path.rpartition("/")[2]}"')
        if callable(answer):
            answer = answer(request)
        if not isinstance(answer, httpx.Response):
            answer = httpx.Response(200, json=answer)
        answer.headers.setdefault("X-Headway-Version", __version__)
        return answer


def _answered(number: int, name: str, job_id: str) -> dict[str, Any]:
    return {
        "job": job_id or f"{name}-{number}", "number": number, "state": "queued", "reason": "", "message": "", "note": "",
        "created": True,
    }  # fmt: skip


def problem(status: int, detail: str, **headers: str) -> httpx.Response:
    """An error as the API says it."""
    body = {"title": "", "status": status, "detail": detail}
    return httpx.Response(status, json=body, headers={"Content-Type": "application/problem+json", **headers})


class CommandLine:
    """Runs commands in this process, in a folder of their own."""

    def __init__(self, controller: FakeController, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.controller, self.folder, self._capsys = controller, folder, capsys

    def run(self, *arguments: str, code: int = 0) -> str:
        """What a command prints; what it says beside that is in `said`."""
        given = run_command(list(arguments))
        captured = self._capsys.readouterr()
        self.said = captured.err
        assert given == code, (given, captured.out, captured.err)
        return captured.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code), parse_constant=_refuse)

    def refusal(self, *arguments: str) -> str:
        """The one line with which a command refuses."""
        assert self.run(*arguments, code=2) == ""
        assert self.said.startswith("headway: ") and self.said.count("\n") == 1, self.said
        return self.said.removeprefix("headway: ").strip()

    def last(self) -> tuple[str, str, Any]:
        """What the controller was asked last."""
        return self.controller.asked[-1]

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, "utf-8")
        return name


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
def cli(
    controller: FakeController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    for name in ("HEADWAY_URL", "HEADWAY_TOKEN", "HEADWAY_JOURNAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "connect", lambda _: Client(URL, "token", httpx.MockTransport(controller)))
    return CommandLine(controller, tmp_path, capsys)
