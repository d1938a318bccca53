"""`/metrics`: the cluster in numbers for Prometheus. Base units, no label that names a job, so their number stays small."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from headway import __version__
from headway.api.auth import Person
from headway.api.cluster import queues_json
from headway.api.context import Api
from headway.api.problems import problems
from headway.core import columns as c
from headway.core.columns import EventKind, Name, NodePhase, Phase, Reason
from headway.core.events import EventBatch
from headway.core.round import InCharge
from headway.runtime.controller import Controller
from headway.runtime.guard import standing

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
US_PER_S = 1_000_000
QUEUES_MAX = 200
"""Of so many queues at most there are labels."""


def add_metrics(app: FastAPI, api: Api) -> None:
    """Declare the path."""
    registry = CollectorRegistry()
    registry.register(ClusterCollector(api))

    @app.get(
        "/metrics", responses=problems(also={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}),
        response_class=Response, tags=["cluster"],
    )  # fmt: skip
    async def metrics(who: Person) -> Response:
        """Figures for Prometheus, in its text format. The name of a figure says its unit."""
        return Response(generate_latest(registry) + generate_latest(api.meters.registry), media_type=MEDIA_TYPE)


class Totals:
    """What only goes up, counted from what is journalled since the controller's start."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.ended: Counts[str] = Counts()
        self.lost_s = 0.0
        """Run time of work that has to be done again, of jobs that tell their steps."""
        self.waits = 0
        self.waited_s = 0.0
        """First starts, and how long they had waited."""
        self._steps: dict[int, int] = {}
        controller.hearers.append(self.hear)

    def hear(self, batch: EventBatch) -> None:
        for record in batch.records:
            if (what := self._of_kind.get(int(record[c.E_KIND]))) is not None:
                what(self, record)

    def _observed(self, record: Any) -> None:
        job = int(record[c.E_ID])
        self._steps[job] = max(self._steps.get(job, 0), int(record[c.E_A]))

    def _started(self, record: Any) -> None:
        job = self.controller.board.by_number(int(record[c.E_ID]))
        if job is not None and job.first_started_us == int(record[c.E_T]):
            self.waits += 1
            self.waited_s += (job.first_started_us - job.submitted_us) / US_PER_S

    def _over(self, record: Any) -> None:
        number, kind = int(record[c.E_ID]), int(record[c.E_KIND])
        job, steps = self.controller.board.by_number(number), self._steps.pop(number, 0)
        if job is None:
            return
        if job.ended:
            self.ended[job.phase.name.lower()] += 1
        if kind == EventKind.COMPLETED or not steps:
            return
        row = self.controller.state.row(number)
        safe = int(record[c.E_B])
        if row is not None:
            safe = max(safe, int(self.controller.state.J[c.J_UNITS_SAVED, row]))
            self._steps[number] = max(safe, 0)
        if 0 <= safe < steps and not job.ended:
            self.lost_s += job.run_us / US_PER_S * (steps - safe) / steps

    _of_kind: dict[int, Callable[[Totals, Any], None]] = {  # noqa: RUF012
        EventKind.OBSERVED: _observed,
        EventKind.STARTED: _started,
        EventKind.STOPPED: _over,
        EventKind.FAILED: _over,
        EventKind.COMPLETED: _over,
        EventKind.START_FAILED: _over,
        EventKind.FINISHED: _over,
        EventKind.REJECTED: _over,
        EventKind.CANCEL_REQUESTED: _over,
    }


class ClusterCollector(Collector):
    """Reads the controller whenever somebody asks."""

    def __init__(self, api: Api) -> None:
        self.api, self.totals = api, Totals(api.controller)

    def collect(self) -> Iterator[Metric]:
        controller = self.api.controller
        yield _gauge("headway_info", "The controller", [(("version", __version__), ("policy", controller.brains.policy.name), 1)])
        who = standing(controller.state, controller.brains, controller.now_us()).who
        charge = [(("in_charge", one.value), int(one is who)) for one in InCharge]
        yield _gauge("headway_policy_in_charge", "Who decides: the policy, its teacher, or the fallback", charge)
        yield from self._jobs()
        yield from self._nodes()
        yield from self._rounds()
        yield from self._work()

    def _jobs(self) -> Iterator[Metric]:
        controller = self.api.controller
        state, counted = controller.state, Counts[tuple[int, int]]()
        rows = state.live_rows()
        counted.update(zip(state.J[c.J_PHASE, rows].tolist(), state.J[c.J_QUEUE, rows].tolist(), strict=True))
        jobs = GaugeMetricFamily("headway_jobs", "Live jobs by state and queue", labels=["state", "queue"])
        for number, name in list(state.names[Name.QUEUE].items())[:QUEUES_MAX]:
            for phase in (Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING):
                jobs.add_metric([phase.name.lower(), name], counted[phase, number])
        yield jobs
        kinds = self.api.feed.kinds
        yield _total("headway_jobs_submitted", "Jobs taken in", kinds[EventKind.SUBMITTED])
        ended = CounterMetricFamily("headway_jobs_ended", "Jobs that have ended, by how", labels=["state"])
        for phase in (Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED, Phase.REJECTED):
            ended.add_metric([phase.name.lower()], self.totals.ended[phase.name.lower()])
        yield ended
        used = GaugeMetricFamily("headway_queue_gpus_used", "GPUs that the jobs of a queue hold", labels=["queue"])
        quota = GaugeMetricFamily("headway_queue_gpus_quota", "GPUs that a queue is guaranteed", labels=["queue"])
        for queue in queues_json(controller)[:QUEUES_MAX]:
            used.add_metric([queue["queue"]], queue["gpus_used"])
            if queue["quota_gpus"] is not None:
                quota.add_metric([queue["queue"]], queue["quota_gpus"])
        yield used
        yield quota
        waits = SummaryMetricFamily("headway_job_wait_seconds", "From submission to the first start")
        waits.add_metric([], self.totals.waits, self.totals.waited_s)
        yield waits

    def _nodes(self) -> Iterator[Metric]:
        nodes = self.api.controller.nodes()
        phases = Counts(node.phase for node in nodes)
        yield _gauge(
            "headway_nodes", "Nodes by state",
            [(("state", phase.name.lower()), phases[phase]) for phase in NodePhase],
        )  # fmt: skip
        yield _gauge("headway_gpus", "GPUs of all nodes", [(sum(node.gpus for node in nodes),)])
        up = [node for node in nodes if node.phase != NodePhase.DOWN]
        yield _gauge("headway_gpus_up", "GPUs of the nodes that are there", [(sum(node.gpus for node in up),)])
        yield _gauge("headway_gpus_used", "GPUs on which processes of jobs run", [(sum(node.held for node in nodes),)])

    def _rounds(self) -> Iterator[Metric]:
        rounds = self.api.controller.rounds
        yield _total("headway_rounds", "Rounds held", rounds.held)
        yield _total("headway_plans_refused", "Plans of the policy that broke a rule, or came too late", rounds.refused)
        kinds = self.api.feed.kinds
        yield _total(
            "headway_policy_comparisons", "Comparisons with other policies, by forks, or why not", kinds[EventKind.SHADOWED]
        )
        yield _total("headway_plan_entries_dropped", "Entries of plans that had gone stale", rounds.dropped)
        yield _total("headway_jobs_started_meanwhile", "Jobs started while the policy thought", rounds.spared)
        decide = SummaryMetricFamily("headway_decide_seconds", "How long the policy thought, by journal time")
        decide.add_metric([], rounds.decided, rounds.decided_us / US_PER_S)
        yield decide

    def _work(self) -> Iterator[Metric]:
        controller, feed = self.api.controller, self.api.feed
        stops = CounterMetricFamily("headway_stops", "Stops that were asked for, by why", labels=["reason"])
        for reason in Reason:
            if feed.stops[reason] or reason is Reason.PREEMPTED:
                stops.add_metric([reason.word], feed.stops[reason])
        yield stops
        yield _total("headway_preemptions", "Jobs stopped so that others run", feed.stops[Reason.PREEMPTED])
        yield _total("headway_lost_work_seconds", "Run time of steps that were not saved and are done again", self.totals.lost_s)
        yield _total("headway_observations", "Reports of jobs that were kept", feed.kinds[EventKind.OBSERVED])
        yield _total("headway_checkpoints", "Checkpoints that jobs have told of", feed.kinds[EventKind.SAVED])
        yield _total("headway_journal_events", "Events of the journal", controller.journal.events)
        yield _total("headway_journal_segments", "Writes of the journal", controller.journal.segments)
        yield _gauge("headway_epoch", "The controller's epoch: one more with each that takes over", [(controller.epoch,)])


def _gauge(name: str, says: str, values: list[tuple[Any, ...]]) -> Metric:
    """A gauge; each value comes after its labels, as pairs."""
    labels = [pair[0] for pair in values[0][:-1]] if values else []
    metric = GaugeMetricFamily(name, says, labels=labels)
    for *pairs, value in values:
        metric.add_metric([str(pair[1]) for pair in pairs], value)
    return metric


def _total(name: str, says: str, value: float) -> Metric:
    return CounterMetricFamily(name, says, value=value)
