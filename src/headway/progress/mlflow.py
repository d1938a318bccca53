"""An MLflow tracking server as far as a training script needs one: its requests as what the job tells, and the answers.

Pure: whoever serves HTTP hands in method, path below `/api/2.0/mlflow/`, and the request's fields (JSON body or query), and gets
the answer's fields. The first run of an attempt is the job's (its id is `JOB-ATTEMPT`, or what the job asks for); metrics of
further runs, nested ones say, are kept apart and count only if the first has none (`progress.told`). Parameters, tags and the
newest metrics are kept while the attempt lives, for `runs/get`; nothing else is. Models and artefacts are not taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headway.progress.names import MetricNames
from headway.progress.told import Source, Told

ATTEMPTS_MAX = 1000
"""Of so many attempts, the newest, it is remembered what they have logged."""
RUNS_MAX = 100
NAMES_MAX = 1000
TEXT_LENGTH_MAX = 1000
BATCH_MAX = 1000
EXPERIMENT = "0"


class Answer(NamedTuple):
    """What to answer, and what the request has told."""

    status: int
    fields: dict[str, Any]
    told: tuple[Told, ...] = ()


@dataclass(slots=True)
class _Run:
    """One run, as far as it is remembered."""

    run_id: str
    name: str
    began_ms: int
    order: int
    status: str = "RUNNING"
    ended_ms: int | None = None
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            "run_id": self.run_id, "run_uuid": self.run_id, "run_name": self.name, "experiment_id": EXPERIMENT, "user_id": "",
            "status": self.status, "start_time": self.began_ms, "artifact_uri": "", "lifecycle_stage": "active",
        }  # fmt: skip
        if self.ended_ms is not None:
            info["end_time"] = self.ended_ms
        pairs = {name: [{"key": key, "value": text} for key, text in getattr(self, name).items()] for name in ("params", "tags")}
        return {"info": info, "data": {"metrics": list(self.metrics.values()), **pairs}, "inputs": {}}


class Tracking:
    """What the attempts have logged."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[int, int], dict[str, _Run]] = OrderedDict()

    def answer(
        self,
        job: int,
        attempt: int,
        name: str,
        names: MetricNames,
        method: str,
        path: str,
        fields: Mapping[str, Any],
        now_ms: int,
    ) -> Answer:
        """The answer to one request of an attempt. `name` is the job's; `names` say which metric is which."""
        runs = self._attempts.setdefault((job, attempt), {})
        self._attempts.move_to_end((job, attempt))
        while len(self._attempts) > ATTEMPTS_MAX:
            self._attempts.popitem(last=False)
        what = path.strip("/")
        if what.startswith("experiments/"):
            return _experiment(what, name)
        if what == "runs/create":
            return self._create(runs, f"{job}-{attempt}", name, fields, now_ms)
        if what == "runs/search":
            return Answer(200, {"runs": [run.to_json() for run in runs.values()]})
        run_id = str(fields.get("run_id") or fields.get("run_uuid") or "")
        first = f"{job}-{attempt}"
        if run_id == first and first not in runs:  # the environment names it, so nobody creates it
            runs[first] = _Run(first, name, now_ms, 0)
        run = runs.get(run_id)
        if run is None:
            return _error(404, "RESOURCE_DOES_NOT_EXIST", f"there is no run {run_id[:100]} of this job's present attempt")
        if what == "metrics/get-history":
            newest = run.metrics.get(str(fields.get("metric_key", "")))
            return Answer(200, {"metrics": [newest] if newest else []})
        return _of_run(what, run, names, fields)

    def _create(self, runs: dict[str, _Run], first: str, name: str, fields: Mapping[str, Any], now_ms: int) -> Answer:
        if len(runs) >= RUNS_MAX:
            return _error(400, "INVALID_PARAMETER_VALUE", f"an attempt may have {RUNS_MAX} runs")
        run_id = first if first not in runs else f"{first}-{len(runs)}"
        began = _whole(fields.get("start_time"))
        called = str(fields.get("run_name") or name)[:TEXT_LENGTH_MAX]
        run = runs[run_id] = _Run(run_id, called, now_ms if began is None else began, len(runs))
        _set_all(run.tags, fields.get("tags"))
        return Answer(200, {"run": run.to_json()})


def _experiment(what: str, name: str) -> Answer:
    """There is one experiment, which has whatever name it is asked for by."""
    experiment = {
        "experiment_id": EXPERIMENT, "name": name, "artifact_location": "", "lifecycle_stage": "active", "tags": [],
    }  # fmt: skip
    if what == "experiments/create":
        return Answer(200, {"experiment_id": EXPERIMENT})
    if what in ("experiments/get", "experiments/get-by-name"):
        return Answer(200, {"experiment": experiment})
    if what == "experiments/search":
        return Answer(200, {"experiments": [experiment]})
    return Answer(200, {})


def _of_run(what: str, run: _Run, names: MetricNames, fields: Mapping[str, Any]) -> Answer:
    if what == "runs/get":
        return Answer(200, {"run": run.to_json()})
    if what == "runs/update":
        run.status = str(fields.get("status") or run.status)[:20]
        run.ended_ms = _whole(fields.get("end_time")) or run.ended_ms
        run.name = str(fields.get("run_name") or run.name)[:TEXT_LENGTH_MAX]
        return Answer(200, {"run_info": run.to_json()["info"]})
    if what == "runs/log-metric":
        return _metrics(run, names, [fields])
    if what in ("runs/log-parameter", "runs/set-tag"):
        _set_all(run.params if what == "runs/log-parameter" else run.tags, [fields])
        return Answer(200, {})
    if what == "runs/log-batch":
        metrics = fields.get("metrics") or []
        if not isinstance(metrics, list) or len(metrics) > BATCH_MAX:
            return _error(400, "INVALID_PARAMETER_VALUE", f"expected at most {BATCH_MAX} metrics")
        _set_all(run.params, fields.get("params"))
        _set_all(run.tags, fields.get("tags"))
        return _metrics(run, names, metrics)
    if what in ("runs/delete-tag", "runs/log-inputs", "runs/log-model", "runs/outputs"):
        return Answer(200, {})
    return _error(404, "ENDPOINT_NOT_FOUND", f"Headway has no {what[:100]}: it takes metrics, parameters and tags")


def _metrics(run: _Run, names: MetricNames, metrics: list[Any]) -> Answer:
    told = []
    for metric in metrics:
        if not isinstance(metric, Mapping) or (value := _real(metric.get("value"))) is None or not metric.get("key"):
            return _error(400, "INVALID_PARAMETER_VALUE", "expected a metric with a key and a value")
        key, step = str(metric["key"])[:TEXT_LENGTH_MAX], _whole(metric.get("step")) or 0
        if key in run.metrics or len(run.metrics) < NAMES_MAX:
            run.metrics[key] = {
                "key": key,
                "value": metric["value"],
                "step": step,
                "timestamp": _whole(metric.get("timestamp")) or 0,
            }
        told.append(_told(run, names.role(key), key, value, step))
    return Answer(200, {}, tuple(told))


def _told(run: _Run, role: tuple[str, int] | None, key: str, value: float, step: int) -> Told:
    """One metric as what the job tells; those of later runs come after those of the first."""
    later = 1000 * run.order
    plain = Told(Source.MLFLOW, step=float(step), writer=run.run_id, step_order=later + 100)
    if role is not None and role[0] == "loss":
        return plain._replace(loss=value, loss_order=role[1] + later, step_order=role[1] + later)
    if role is not None and role[0] == "accuracy":
        return plain._replace(accuracy=value, accuracy_order=role[1] + later)
    if role is not None and role[0] == "epoch":
        return plain._replace(epoch=value)
    return plain._replace(other=((key[:100], value),))


def _set_all(into: dict[str, str], pairs: Any) -> None:
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, Mapping) and pair.get("key"):
            key = str(pair["key"])[:TEXT_LENGTH_MAX]
            if key in into or len(into) < NAMES_MAX:
                into[key] = str(pair.get("value", ""))[:TEXT_LENGTH_MAX]


def _error(status: int, code: str, message: str) -> Answer:
    return Answer(status, {"error_code": code, "message": message})


def _whole(value: Any) -> int | None:
    """A whole number, which JSON made from protocol buffers writes as text."""
    try:
        return None if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _real(value: Any) -> float | None:
    """A number, also as the words that JSON made from protocol buffers has for those that are not finite."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
