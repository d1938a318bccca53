"""Requests of MLflow clients."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from headway.progress.mlflow import Answer, Tracking
from headway.progress.names import MetricNames
from headway.progress.told import Merge, Point, Told


class Client:
    """One attempt's requests, without HTTP."""

    def __init__(self) -> None:
        self.tracking, self.told = Tracking(), list[Told]()

    def __call__(self, path: str, method: str = "POST", **fields: Any) -> Answer:
        answer = self.tracking.answer(3, 1, "digits", MetricNames(), method, path, fields, 1000)
        self.told += answer.told
        return answer

    def points(self) -> list[Point]:
        merge = Merge()
        return [point for told in self.told if (point := merge.take(told)) is not None]


def test_a_run_from_its_creation_to_its_end() -> None:
    ask = Client()
    assert ask("experiments/get-by-name", "GET", experiment_name="x").fields["experiment"]["experiment_id"] == "0"
    run = ask("runs/create", experiment_id="0", start_time="5", tags=[{"key": "a", "value": "b"}]).fields["run"]["info"]["run_id"]
    assert run == "3-1"
    assert ask("runs/log-metric", run_id=run, key="loss", value=0.5, step="7", timestamp=1).status == 200
    batch = [{"key": "accuracy", "value": 0.75, "step": 8}, {"key": "lr", "value": "NaN", "step": 8}]
    assert ask("runs/log-batch", run_id=run, metrics=batch, params=[{"key": "p", "value": "1"}]).status == 200
    ask("runs/log-parameter", run_id=run, key="q", value="2")
    ask("runs/set-tag", run_id=run, key="t", value="3")
    ask("runs/update", run_id=run, status="FINISHED", end_time="9")
    got = ask("runs/get", "GET", run_id=run).fields["run"]
    assert got["info"]["status"] == "FINISHED" and got["info"]["start_time"] == 5 and got["info"]["end_time"] == 9
    assert got["data"]["params"] == [{"key": "p", "value": "1"}, {"key": "q", "value": "2"}]
    assert got["data"]["tags"] == [{"key": "a", "value": "b"}, {"key": "t", "value": "3"}]
    assert ask.points() == [Point(7, 0.5, None), Point(7, None, 0.75)]


def test_the_run_that_the_environment_names_is_there_and_nested_ones_come_after_it() -> None:
    ask = Client()
    assert ask("runs/log-metric", run_id="3-1", key="loss", value=1.0, step=1).status == 200
    nested = ask("runs/create").fields["run"]["info"]["run_id"]
    assert nested == "3-1-1"
    ask("runs/log-metric", run_id=nested, key="loss", value=9.0, step=50)
    assert ask.points() == [Point(1, 1.0, None)]


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("runs/log-metric", {"run_id": "4-1", "key": "loss", "value": 1}, 404),
        ("runs/log-metric", {"run_id": "3-1", "key": "loss", "value": "x"}, 400),
        ("runs/log-metric", {"run_id": "3-1", "key": "loss", "value": True}, 400),
        ("runs/log-batch", {"run_id": "3-1", "metrics": "x"}, 400),
        ("runs/log-batch", {"run_id": "3-1", "metrics": [1]}, 400),
        ("registered-models/create", {"run_id": "3-1"}, 404),
        ("runs/get", {}, 404),
    ],
)
def test_what_is_refused(path: str, fields: dict[str, Any], status: int) -> None:
    answer = Client()(path, **fields)
    assert answer.status == status and answer.fields["error_code"] and answer.told == ()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    ask = Client()

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            where = urlsplit(self.path)
            fields = dict(parse_qsl(where.query)) | json.loads(
                self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}"
            )
            answer = ask(where.path.removeprefix("/api/2.0/mlflow/"), self.command, **fields)
            body = json.dumps(answer.fields).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = handle_one

        def log_message(self, *_: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.ask = ask  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.filterwarnings("ignore")
def test_the_real_client(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    mlflow.set_tracking_uri(f"http://127.0.0.1:{server.server_port}")
    mlflow.set_experiment("whatever")
    with mlflow.start_run():
        mlflow.log_param("lr", 0.1)
        for step in range(1, 4):
            mlflow.log_metrics({"train_loss": 1 / step, "val_accuracy": step / 4}, step=step)
        mlflow.log_metric("train_loss", float("nan"), step=4)
        mlflow.set_tag("who", "me")
    ask = server.ask  # type: ignore[attr-defined]
    losses = [(point.step, point.loss) for point in ask.points() if point.loss is not None]
    assert losses[:3] == [(1, 1.0), (2, 0.5), (3, 1 / 3)] and losses[3][1] != losses[3][1]
    assert [point.accuracy for point in ask.points() if point.accuracy is not None] == [0.25, 0.5, 0.75]
