"""The machines of a simulated cluster, in virtual time: nodes, gangs, checkpoints; and the world's own view of what must hold.

What a task does is told by its command, the text of a `Script`. The world outlives controllers and engines. It judges by what
really runs, whatever a scheduler believes; what must never be is noted in `wrongs`:

* a GPU, or a node's cpus, given twice; two live attempts of a job; a gang that is started in part;
* a job run again after it had completed, or after its owner had been told that it is cancelled;
* a job started although its owner holds it;
* an attempt that does not begin where the job's last checkpoint ended;
* a stop that gives less grace than the job has asked for.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headway.core.columns import WHOLE
from headway.engines.base import (
    NEVER_STARTED,
    NODE_LOST,
    NODE_REBOOTED,
    Ended,
    EngineEvent,
    EngineInvariant,
    Launch,
    NodeBack,
    NodeInfo,
    NodeLost,
    NodeUnreachable,
    Place,
    Record,
    Running,
    StaleAttempt,
    StaleEpoch,
    Started,
    StopKind,
    TaskEnd,
    check_launch,
    ended_event,
    gang_outcome,
)
from headway.testing.script import Gang, Node, Process, Script, StopOrder
from headway.testing.virtual import US, now_us

EXIT_TERMINATED, EXIT_KILLED = 143, 137
TRACE_MAX = 4000
SLACK_S = 1e-6


class Machine:
    """All nodes, and what runs on them."""

    def __init__(self, nodes: Iterable[NodeInfo], *, gang_grace_s: float = 0.3, presume_s: float = math.inf) -> None:
        """`presume_s`: a node that is out of reach for so long has ended its tasks, so the engine need not wait for it."""
        self.nodes = {info.name: Node(info) for info in nodes}
        self.gang_grace_s, self.presume_s = gang_grace_s, presume_s
        self.epoch = -1
        self.gangs: dict[tuple[int, int], Gang] = {}
        self.acknowledged: dict[int, int] = {}
        self.saved_s: dict[str, float] = {}
        """Work done, by checkpoint directory."""
        self.best_s: dict[str, float] = {}
        """The most that each job has saved, by its name."""
        self.runs: Counter[str] = Counter()
        self.failed: dict[str, set[int]] = {}
        """Attempts of each job that failed by themselves."""
        self.asked: dict[str, set[int]] = {}
        """Attempts of each job that were asked to stop, perhaps too late: of these, no failure need count."""
        self.completed: set[str] = set()
        self.cancelled: set[str] = set()
        """Jobs whose owners have been told that they are cancelled."""
        self.held: set[str] = set()
        """Jobs that waited when their owners were told that they are held."""
        self.listeners: list[Callable[[EngineEvent], None]] = []
        self.gates: set[str] = set()
        self.launched = 0
        self.lossy = False
        """Whether a journal has lost its end: then nobody knows any more what had completed or been cancelled."""
        self.wrongs: list[str] = []
        self.trace: list[str] = []

    # -- what an engine asks --------------------------------------------------------------------------------------
    def enter(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"epoch {epoch} is older than epoch {self.epoch}")
        self.epoch = epoch

    def newest(self, job: int) -> int:
        """The newest attempt known of a job; 0: none."""
        return max([number for other, number in self.gangs if other == job] + [self.acknowledged.get(job, 0)])

    def launch(self, launch: Launch) -> None:
        self.enter(launch.epoch)
        newest = self.newest(launch.job)
        if launch.attempt < newest:
            raise StaleAttempt(f"job {launch.job}: attempt {launch.attempt} is older than attempt {newest}")
        if launch.attempt == newest:
            return
        check_launch(launch, {name: node.info.gpus for name, node in self.nodes.items()})
        if any(task.milli != WHOLE for task in launch.tasks if task.gpus):
            raise EngineInvariant(f"job {launch.job}: this engine gives whole GPUs only")
        self._check_free(launch)
        for task in launch.tasks:
            if not self.nodes[task.node].reachable:
                raise NodeUnreachable(task.node)
        self._begin(launch)

    def _check_free(self, launch: Launch) -> None:
        """The engine's own check against what it believes to run."""
        wanted = {(task.node, gpu) for task in launch.tasks for gpu in task.gpus}
        for other in self.gangs.values():
            if other.ended is not None:
                continue
            if other.launch.job == launch.job:
                raise EngineInvariant(f"job {launch.job}: attempt {other.launch.attempt} is still live")
            if both := wanted & {(task.wanted.node, gpu) for task in other.tasks for gpu in task.wanted.gpus}:
                node, gpu = min(both)
                raise EngineInvariant(f"job {launch.job}: GPU {gpu} of node {node} is held by job {other.launch.job}")

    def stop(self, epoch: int, job: int, attempt: int, grace_s: float, reason: str) -> None:
        if not (math.isfinite(grace_s) and grace_s >= 0):
            raise ValueError(f"grace_s must be a number of seconds, at least 0, not {grace_s}")
        self.enter(epoch)
        gang = self.gangs.get((job, attempt))
        if gang is None or gang.ended is not None:
            return
        if grace_s + SLACK_S < max(task.script.grace_s for task in gang.tasks):
            self.wrong(f"{self._who(gang)} is given {grace_s:g} s of grace, and needs more")
        self._order_stop(gang, "controller", grace_s, reason)

    def excuse(self, job: int, attempt: int) -> None:
        """A stop is asked for; the attempt may have failed already, or fail before it hears of it."""
        gang = self.gangs.get((job, attempt))
        if gang is not None:
            self.asked.setdefault(gang.launch.name, set()).add(attempt)

    def snapshot(self) -> tuple[Record, ...]:
        records: list[Record] = []
        for (job, attempt), gang in sorted(self.gangs.items()):
            if gang.ended is not None:
                records.append(gang.ended)
                continue
            places = tuple(Place(task.wanted.rank, task.wanted.node, task.wanted.gpus) for task in gang.tasks)
            stopping = gang.stop is not None
            phase: Any = "stopping" if stopping else "running" if gang.up_us is not None else "starting"
            records.append(Running(job, attempt, gang.launch.epoch, phase, places))
        return tuple(records)

    def acknowledge(self, epoch: int, job: int, attempt: int) -> None:
        self.enter(epoch)
        gang = self.gangs.get((job, attempt))
        if gang is None:
            return
        if gang.ended is None:
            raise EngineInvariant(f"job {job}, attempt {attempt} is still live: there is no end to acknowledge")
        del self.gangs[job, attempt]
        self.acknowledged[job] = max(attempt, self.acknowledged.get(job, 0))

    def inventory(self) -> tuple[NodeInfo, ...]:
        return tuple(_with_reach(node.info, node.reachable) for node in self.nodes.values())

    # -- the course of a gang -------------------------------------------------------------------------------------
    def _begin(self, launch: Launch) -> None:
        scripts = [Script.read(task.command) for task in launch.tasks]
        gang = Gang(launch, [Process(task, script) for task, script in zip(launch.tasks, scripts, strict=True)])
        gang.begun_s = self.saved_s.get(launch.checkpoint_dir, 0.0) if launch.checkpoint_dir else 0.0
        self._judge_launch(gang)
        self.launched += 1
        self.gangs[gang.key] = gang
        self.note(f"launch {self._who(gang)} on {' '.join(f'{t.node}:{t.gpus}' for t in launch.tasks)} from {gang.begun_s:g} s")
        for task in gang.tasks:
            self._later(task, task.script.start_s, self._come_up, gang, task)

    def _come_up(self, gang: Gang, task: Process) -> None:
        script, failed = task.script, ""
        if gang.launch.attempt in script.start_fails:
            failed = "cannot start: no space left"
        elif not Path(task.wanted.workdir).is_dir():
            failed = f"cannot start: there is no directory {task.wanted.workdir}"
        if failed:
            self._end(gang, task, 126, start_error=failed)
            return
        task.came_up = True
        if script.devices:
            Path(script.devices).write_text(",".join(map(str, task.wanted.gpus)) + "\n", "utf-8")
        if script.mark:
            with open(script.mark, "a", encoding="utf-8") as file:
                file.write("started\n")
        if all(one.came_up for one in gang.tasks) and gang.stop is None:
            self._gang_up(gang)
        self._look(gang)

    def _gang_up(self, gang: Gang) -> None:
        name = gang.launch.name
        gang.up_us = now_us()
        self.runs[name] += 1
        for task in gang.tasks:
            script = task.script
            code = script.codes[self.runs[name] - 1] if self.runs[name] <= len(script.codes) else 0
            if script.gate and script.gate not in self.gates:
                continue
            left_s = max(script.work_s - gang.begun_s, 0.0) * (0.5 if code else 1.0)
            restore_s = script.restore_s if gang.begun_s else 0.0
            ends = task.wanted.rank == 0 or not (code and script.tasks)  # of a gang that fails, the first task does
            if ends:
                self._later(task, restore_s + left_s, self._end, gang, task, code, script.signal)

    def _done_s(self, gang: Gang) -> float:
        """How much of the job's work is done now."""
        script = gang.tasks[0].script
        if gang.up_us is None:
            return gang.begun_s
        ran_s = (now_us() - gang.up_us) / US - (script.restore_s if gang.begun_s else 0.0)
        return min(gang.begun_s + max(ran_s, 0.0), script.work_s)

    def _save(self, gang: Gang, done_s: float) -> None:
        if where := gang.launch.checkpoint_dir:
            self.saved_s[where] = max(done_s, self.saved_s.get(where, 0.0))
            self.best_s[gang.launch.name] = max(done_s, self.best_s.get(gang.launch.name, 0.0))

    def _end(
        self, gang: Gang, task: Process, code: int, number: int | None = None, *, reason: str = "", start_error: str = ""
    ) -> None:
        """A process is gone."""
        if task.end is not None:
            return
        for timer in task.timers:
            timer.cancel()
        script = task.script
        if script.every_s and gang.up_us is not None and task.wanted.rank == 0:
            self._save(gang, math.floor(self._done_s(gang) / script.every_s + SLACK_S) * script.every_s)
        if not task.came_up and not start_error:
            start_error = NEVER_STARTED
        if number is not None and code == 0:
            code = 128 + number
        task.end = TaskEnd(task.wanted.rank, task.wanted.role, code, number, task.told_to_stop, reason, start_error)
        if not gang.live:
            self._gang_gone(gang)
        self._look(gang)

    def _gang_gone(self, gang: Gang) -> None:
        """The world's own note of how the attempt has ended."""
        ends = [task.end for task in gang.tasks if task.end is not None]
        started, code, _, after_stop, reason = gang_outcome(ends)
        name = gang.launch.name
        if started and code == 0 and not after_stop:
            if self._done_s(gang) + SLACK_S < gang.tasks[0].script.work_s:
                self.wrong(f"{self._who(gang)} has ended well with {self._done_s(gang):g} s of its work")
            self.completed.add(name)
        elif not after_stop and reason not in (NODE_REBOOTED, NODE_LOST):
            self.failed.setdefault(name, set()).add(gang.launch.attempt)
        self.note(f"gone {self._who(gang)}: code {code}, after stop {after_stop}, {reason or 'no reason'}")

    def _look(self, gang: Gang) -> None:
        """What the engine sees of an attempt, and does about it, and tells."""
        if gang.ended is not None or gang.key not in self.gangs:
            return
        for task in gang.tasks:
            if task.end is not None and self.nodes[task.wanted.node].reachable:
                task.known = True
        if gang.up_us is not None and not gang.told_started:
            gang.told_started = True
            self.tell(Started(*gang.key))
        known = [task.end for task in gang.tasks if task.known and task.end is not None]
        if len(known) == len(gang.tasks):
            started, code, number, after_stop, reason = gang_outcome(known)
            if after_stop and gang.stop is not None:
                reason = gang.stop.reason
            gang.ended = Ended(*gang.key, gang.launch.epoch, started, code, number, after_stop, reason)
            self.tell(ended_event(gang.ended))
            return
        if any(end.start_error and not end.stopped_by for end in known):
            self._order_stop(gang, "start", self.gang_grace_s, "start-failed")
        elif any(end.exit_code and not end.stopped_by for end in known):
            self._order_stop(gang, "gang", self.gang_grace_s, "gang-broken")
        elif gang.stop is not None:
            self._deliver_stop(gang)

    # -- stopping -------------------------------------------------------------------------------------------------
    def _order_stop(self, gang: Gang, kind: StopKind, grace_s: float, reason: str) -> None:
        deadline_us = now_us() + round(grace_s * US)
        if gang.stop is None or (kind == "controller" and gang.stop.kind == "gang"):
            gang.stop = StopOrder(kind, deadline_us, reason)
        else:
            gang.stop.deadline_us = min(gang.stop.deadline_us, deadline_us)
        self.note(f"stop {self._who(gang)}: {kind}, {reason}, {grace_s:g} s")
        self._deliver_stop(gang)

    def _deliver_stop(self, gang: Gang) -> None:
        assert gang.stop is not None
        for task in list(gang.live):
            if not self.nodes[task.wanted.node].reachable or task.end is not None:
                continue
            if not task.told_to_stop:
                task.told_to_stop = gang.stop.kind
                self._terminate(gang, task)
            wait_s = max(gang.stop.deadline_us - now_us(), 0) / US
            if task.end is None:
                self._later(task, wait_s, self._end, gang, task, 0, 9)

    def _terminate(self, gang: Gang, task: Process) -> None:
        """SIGTERM."""
        if not task.came_up:
            self._later(task, 0, self._end, gang, task, EXIT_TERMINATED, start_error=NEVER_STARTED)
        elif not task.script.ignores_term:
            for timer in task.timers:
                timer.cancel()
            self._later(task, task.script.save_s, self._obey, gang, task)

    def _obey(self, gang: Gang, task: Process) -> None:
        if task.wanted.rank == 0 and gang.up_us is not None:
            self._save(gang, max(self._done_s(gang) - task.script.save_s, gang.begun_s))
        if task.script.saved:
            Path(task.script.saved).touch()
        self._end(gang, task, task.script.term_code)

    def open(self, gate: str) -> None:
        """Whoever waits at the gate ends."""
        self.gates.add(gate)
        for gang in list(self.gangs.values()):
            for task in list(gang.live):
                if task.script.gate == gate and task.came_up and not task.told_to_stop:
                    self._end(gang, task, task.script.codes[0] if task.script.codes else 0)

    # -- nodes ----------------------------------------------------------------------------------------------------
    def cut_off(self, name: str, notice_s: float = 0.0) -> None:
        """The node can't be reached any more; the engine notices after a while."""
        node = self.nodes[name]
        if not node.reachable:
            return
        node.reachable, node.lost_since_us = False, now_us()
        since = node.lost_since_us
        self.note(f"node {name} is out of reach")
        loop = asyncio.get_running_loop()
        loop.call_later(notice_s, self._notice, node, since)
        if math.isfinite(self.presume_s):
            loop.call_later(self.presume_s, self._fence_node, node, since)
            loop.call_later(self.presume_s + 1.0, self._presume, node, since)

    def _notice(self, node: Node, since: int) -> None:
        if node.lost_since_us == since:
            self.tell(NodeLost(node.info.name))

    def power_off(self, name: str, notice_s: float = 0.0) -> None:
        """The node and all that runs on it are gone."""
        node = self.nodes[name]
        if not node.powered:
            return
        node.powered = False
        self.cut_off(name, notice_s)
        self.note(f"node {name} has no power")
        self._end_on(node, NODE_REBOOTED)

    def heal(self, name: str) -> None:
        """The node can be reached again; one without power has booted."""
        node = self.nodes[name]
        if node.reachable:
            return
        node.reachable = node.powered = True
        node.lost_since_us = None
        self.note(f"node {name} is back")
        for gang in list(self.gangs.values()):
            self._look(gang)
        self.tell(NodeBack(name))

    def _end_on(self, node: Node, reason: str) -> None:
        for gang in list(self.gangs.values()):
            for task in list(gang.live):
                if task.wanted.node == node.info.name:
                    self._end(gang, task, EXIT_KILLED, 9, reason=reason)

    def _fence_node(self, node: Node, since: int) -> None:
        """The node's agent has heard of nobody for so long that it ends its tasks."""
        if node.lost_since_us == since:
            self._end_on(node, NODE_LOST)

    def _presume(self, node: Node, since: int) -> None:
        """By now the node's agent has ended its tasks, so the engine may say so."""
        if node.lost_since_us != since:
            return
        self.note(f"what was on node {node.info.name} counts as ended")
        for gang in list(self.gangs.values()):
            for task in gang.tasks:
                if task.wanted.node != node.info.name or task.known:
                    continue
                assert task.end is not None, "an agent out of reach has not ended its tasks"
                gang.presumed = True
                how = task.end.stopped_by
                task.end = TaskEnd(task.wanted.rank, task.wanted.role, EXIT_KILLED, 9, how, NODE_LOST)
                task.known = True
            if gang.presumed:
                self.completed.discard(gang.launch.name)
            self._look(gang)

    # -- the world's judgement ------------------------------------------------------------------------------------
    def _judge_launch(self, gang: Gang) -> None:
        launch, name = gang.launch, gang.launch.name
        gpus: Counter[tuple[str, int]] = Counter()
        cpus: Counter[str] = Counter()
        for one in [*self.gangs.values(), gang]:
            for task in one.live:
                gpus.update((task.wanted.node, gpu) for gpu in task.wanted.gpus)
                cpus[task.wanted.node] += task.script.cpus_milli
            if one is not gang and one.launch.name == name and one.live:
                self.wrong(f"{self._who(gang)} is started while attempt {one.launch.attempt} runs")
        for (node, gpu), count in gpus.items():
            if count > 1:
                self.wrong(f"GPU {gpu} of node {node} is given to {count} attempts, the last {self._who(gang)}")
        for node, milli in cpus.items():
            if milli > self.nodes[node].info.cpus_milli:
                self.wrong(f"node {node} has {milli} milli-cpus of tasks")
        count = gang.tasks[0].script.tasks
        if count and count != len(launch.tasks):
            self.wrong(f"{self._who(gang)} starts with {len(launch.tasks)} of {count} tasks")
        if name in self.completed and not self.lossy:
            self.wrong(f"{self._who(gang)} is started, and the job had completed")
        if name in self.cancelled and not self.lossy:
            self.wrong(f"{self._who(gang)} is started, and its owner had been told that it is cancelled")
        if name in self.held and not self.lossy:
            self.wrong(f"{self._who(gang)} is started, and its owner had been told that it is held")
        if gang.begun_s + SLACK_S < self.best_s.get(name, 0.0):
            self.wrong(f"{self._who(gang)} begins at {gang.begun_s:g} s, and the job had saved {self.best_s[name]:g} s")

    def wrong(self, what: str) -> None:
        """Note what must never be."""
        self.wrongs.append(f"{now_us() / US:.6f} s: {what}")
        self.note(f"WRONG: {what}")

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        if len(self.trace) < TRACE_MAX:
            self.trace.append(f"{now_us() / US:12.6f}  {what}")

    def tell(self, event: EngineEvent) -> None:
        self.note(f"event {event}")
        for listener in list(self.listeners):
            listener(event)

    def _later(self, task: Process, seconds: float, call: Callable[..., None], *args: Any, **more: Any) -> None:
        loop = asyncio.get_running_loop()
        task.timers.append(loop.call_later(seconds, lambda: call(*args, **more)))

    def _who(self, gang: Gang) -> str:
        return f"{gang.launch.name} (job {gang.launch.job}, attempt {gang.launch.attempt})"


def _with_reach(info: NodeInfo, reachable: bool) -> NodeInfo:
    return NodeInfo(info.name, info.gpus, info.gpu_kind, info.cpus_milli, info.memory_bytes, reachable)
