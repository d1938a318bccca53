"""The demo: six real training jobs on four slots of this machine, under MLFS' heuristic with load control (`mlf-h+mlf-c`).

It starts a controller on a home of its own, hands the jobs in, shows what becomes of them, and tells at the end who waited, who
was stopped for whom and went on from which step, who had done enough; and what FIFO would have made of the same jobs. Ctrl-C
ends the jobs and the controller. It needs the extra `jobs`: pip install -e '.[jobs]'
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from headway.app import live
from headway.app.jobfile import load_job
from headway.core.errors import UserError
from headway.core.model import JobSpec, StopRule

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build/demo"
POLICY = "mlf-h+mlf-c"
NODES = "2x2"
LOOK_S = 0.5
URGENT_AT_FRAC = 0.2
"""When a job has so much of its steps behind it, the urgent one comes …"""
URGENT_AFTER_S = 40.0
"""… or so long after the first start, in seconds."""
PATIENCE_S = 300.0
"""When the demo gives up, in seconds."""
STOP_S = 45.0
"""What jobs and controller get to end, in seconds: more than the jobs' grace."""
SETTINGS = """\
# Two queues: whoever trains for research may use all four slots, until the product team wants what it is guaranteed.
[queues.research]
quota = 0
[queues.product]
quota = 4
"""
ENDED = ("completed", "failed", "cancelled", "rejected")


@dataclass(frozen=True)
class Entry:
    """A job of the demo: a job file and what is different here."""

    file: str
    what: str
    changes: dict[str, Any]


JOBS = (
    Entry("digits-ddp", "small CNN, 2 replicas", {"deadline_s": 120.0}),
    Entry("digits-pipeline", "large CNN, 2 stages", {"deadline_s": 150.0, "stop": StopRule("accuracy"), "goal_accuracy": 0.96}),
    Entry("digits-ps", "LSTM, 2 workers and a server", {"deadline_s": 180.0}),
    Entry("digits-svm", "SVM", {"deadline_s": 180.0, "stop": StopRule("fixed")}),
    Entry("digits-plain", "MLP, no word of Headway", {"priority": 40}),
)
URGENT = Entry(
    "digits-hybrid", "MLP, 2 replicas of 2 stages", {"deadline_s": 60.0, "priority": 90, "urgency": 10, "queue": "product"}
)

console = Console(highlight=False)


def say(text: str = "") -> None:
    console.print(text, markup=False, soft_wrap=True)


def spec_of(entry: Entry) -> JobSpec:
    spec = load_job(ROOT / f"examples/{entry.file}.yaml")
    return replace(spec, user=getpass.getuser(), workdir=str(ROOT), **{"queue": "research", **entry.changes})


class Controller:
    """A controller of our own, which is gone with all its jobs when this is left."""

    def __enter__(self) -> live.Client:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_") or key == "HEADWAY_CACHE"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
        self.environment = {**clean, "HEADWAY_HOME": str(HOME), "PATH": path}
        self.log = (HOME / "controller.log").open("wb")
        # In a session of its own: Ctrl-C is for the demo, which lets the jobs end first.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli", "up", "--json", "--nodes", NODES, "--policy", POLICY],
            env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        try:
            line = self.process.stdout.readline()
            if not line:
                raise UserError(f"the controller did not start: {(HOME / 'controller.log').read_text().strip()}")
            self.client = live.connect(self.environment)
        except BaseException:
            self.stop()
            raise
        return self.client

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        with suppress(UserError):
            if running := [job["job"] for job in live.queue(self.client, states=("live",))["jobs"]]:
                say(f"Ending {len(running)} jobs …")
                for job in running:
                    live.cancel(self.client, job)
            deadline = time.monotonic() + STOP_S
            while live.queue(self.client, states=("live",))["jobs"] and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        self.stop()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


# -- what one sees while it runs ----------------------------------------------------------------------------------------


def figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def state_of(job: dict[str, Any]) -> str:
    return f"{job['state']} ({job['reason']})" if job["reason"] else str(job["state"])


def table(jobs: list[dict[str, Any]], totals: dict[str, int], what: dict[str, str], since: float) -> Table:
    """All jobs, as they are now."""
    shown = Table(box=box.SIMPLE, title=f"{POLICY} on {NODES} slots, {time.monotonic() - since:.0f} s", title_justify="left")
    for name in ("JOB", "WHAT", "SLOTS", "STATE", "NODES", "TRY", "STEP", "LOSS", "ACCURACY"):
        shown.add_column(name, justify="right" if name in ("SLOTS", "TRY", "STEP", "LOSS", "ACCURACY") else "left", no_wrap=True)
    colours = {"running": "green", "completed": "dim", "failed": "red", "stopping": "yellow", "starting": "cyan"}
    for job in jobs:
        steps = "" if job["steps"] is None else f"{job['steps']}/{totals[job['job']]}"
        held = ",".join(dict.fromkeys(job["nodes"])) if job["state"] in ("starting", "running", "stopping") else ""
        shown.add_row(
            job["job"], what[job["job"]], str(job["gpus"]), state_of(job), held, str(job["attempt"] or ""), steps,
            figure(job["loss"], 3), figure(job["accuracy"], 3), style=colours.get(job["state"], ""),
        )  # fmt: skip
    return shown


class Shown:
    """The jobs on the screen: a table that is drawn anew on a terminal, a line for each change elsewhere."""

    def __init__(self, totals: dict[str, int], what: dict[str, str]) -> None:
        self.totals, self.what, self.since = totals, what, time.monotonic()
        self.before: dict[str, tuple[Any, ...]] = {}
        self.screen = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Shown:
        if self.screen is not None:
            self.screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.screen is not None:
            self.screen.stop()

    def update(self, jobs: list[dict[str, Any]]) -> None:
        if self.screen is not None:
            self.screen.update(table(jobs, self.totals, self.what, self.since), refresh=True)
            return
        for job in jobs:
            now = (job["state"], job["reason"], job["attempt"])
            if self.before.get(job["job"]) != now:
                self.before[job["job"]] = now
                at = f" at step {job['steps']}/{self.totals[job['job']]}" if job["steps"] is not None else ""
                accuracy = f", accuracy {job['accuracy']:.3f}" if job["accuracy"] is not None else ""
                attempt = f", attempt {job['attempt']}" if job["attempt"] > 1 and job["state"] == "starting" else ""
                say(f"{time.monotonic() - self.since:6.1f} s  {job['job']:<18} {state_of(job)}{attempt}{at}{accuracy}")


def with_figures(job: dict[str, Any], figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A job with the newest figures that were seen of it, which `figures` keeps: one that has ended may tell none."""
    seen = figures.setdefault(job["job"], {})
    seen |= {name: job[name] for name in ("steps", "loss", "accuracy") if job[name] is not None}
    return {**job, **seen}


def watch(
    client: live.Client, submit: Callable[[Entry], str], totals: dict[str, int], what: dict[str, str]
) -> list[dict[str, Any]]:
    """Show the jobs until all have ended; the urgent one comes when the others have got somewhere."""
    begun, training_since, urgent = time.monotonic(), None, ""
    figures: dict[str, dict[str, Any]] = {}
    with Shown(totals, what) as shown:
        while True:
            jobs = [with_figures(job, figures) for job in live.queue(client, states=("live", "ended"))["jobs"]]
            shown.update(jobs)
            now = time.monotonic()
            if training_since is None and any(job["state"] == "running" for job in jobs):
                training_since = now
            far = any((job["steps"] or 0) >= URGENT_AT_FRAC * totals[job["job"]] for job in jobs)
            if not urgent and (far or (training_since is not None and now - training_since >= URGENT_AFTER_S)):
                urgent = submit(URGENT)
            elif urgent and all(job["state"] in ENDED for job in jobs):
                return jobs
            if now - begun > PATIENCE_S:
                raise UserError(f"the jobs have not ended within {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)


# -- what became of them ------------------------------------------------------------------------------------------------


def resumed_from(client: live.Client, job: dict[str, Any]) -> list[str]:
    """Where each attempt after the first says that it goes on."""
    found = []
    for attempt in range(2, job["attempt"] + 1):
        printed = client.stream(f"/v1/jobs/{job['job']}/logs", {"rank": 0, "attempt": attempt})
        text = b"".join(printed).decode("utf-8", "replace")
        found += [line.removeprefix("goes on ") for line in text.splitlines() if line.startswith("goes on ")][:1] or ["the start"]
    return found


def story(client: live.Client, job: dict[str, Any], total: int, deadline_s: float | None) -> str:
    """One job's fate, as a sentence."""
    submitted, ended = datetime.fromisoformat(job["submitted_at"]), datetime.fromisoformat(job["ended_at"])
    took_s = (ended - submitted).total_seconds()
    parts = [f"waited {max(took_s - job['run_s'], 0):.0f} s"]
    if job["preemptions"]:
        parts.append(f"was stopped for another {job['preemptions']}×, went on {', '.join(resumed_from(client, job))}")
    accuracy = f" with accuracy {job['accuracy']:.3f}" if job["accuracy"] is not None else ""
    if job["reason"] == "early-stop":
        parts.append(f"had done enough at step {job['steps']} of {total}{accuracy}")
    else:
        parts.append(f"{state_of(job)} at step {job['steps']} of {total}{accuracy}")
    if deadline_s is not None:
        late = ended - submitted > timedelta(seconds=deadline_s)
        parts.append(f"{took_s:.0f} s in all, {'AFTER' if late else 'within'} its deadline of {deadline_s:.0f} s")
    else:
        parts.append(f"{took_s:.0f} s in all")
    return "; ".join(parts)


def tell(client: live.Client, jobs: list[dict[str, Any]], totals: dict[str, int], deadlines: dict[str, float | None]) -> bool:
    """What happened; whether all jobs completed."""
    say("\n== What happened")
    for job in jobs:
        say(f"  {job['job']:<18} {story(client, job, totals[job['job']], deadlines[job['job']])}.")
    early = sum(job["reason"] == "early-stop" for job in jobs)
    stopped = sum(job["preemptions"] > 0 for job in jobs)
    completed = sum(job["state"] == "completed" for job in jobs)
    say(f"  {completed} of {len(jobs)} completed; {stopped} made room for another, {early} had done enough early.")
    return completed == len(jobs)


def replay() -> None:
    """What another policy would have done, from the journal of this run."""
    say("\n== The same jobs under FIFO, replayed from the journal")
    page = HOME / "report.html"
    command = ["replay", str(HOME), "--policy", POLICY, "--policy", "fifo", "--report", str(page)]
    say(f"$ headway {' '.join(command)}")
    done = subprocess.run([sys.executable, "-m", "headway.cli", *command], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode == 0:
        say(done.stdout.rstrip())
        say(f"The page with both is {page.relative_to(ROOT)}.")
    else:
        say(f"It failed: {done.stderr.strip()}")


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    with suppress(UserError, OSError, json.JSONDecodeError):
        live.nodes(live.connect({"HEADWAY_HOME": str(HOME)}))
        raise SystemExit(f"a controller runs on {HOME}: is this demo running already?")
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True, mode=0o700)
    (HOME / "headway.toml").write_text(SETTINGS)
    say(f"== Six training jobs on four slots: 2 virtual nodes of this machine, policy {POLICY}")
    totals: dict[str, int] = {}
    what: dict[str, str] = {}
    deadlines: dict[str, float | None] = {}
    with Controller() as client:

        def submit(entry: Entry) -> str:
            spec = spec_of(entry)
            job: str = live.submit(client, spec)["job"]
            totals[job], what[job], deadlines[job] = spec.progress.total or 0, entry.what, spec.deadline_s
            return job

        for entry in JOBS:
            submit(entry)
        jobs = watch(client, submit, totals, what)
        well = tell(client, jobs, totals, deadlines)
    replay()
    home = HOME.relative_to(ROOT)
    say(f"\nThat took {time.monotonic() - begun:.0f} s. Journal and logs are in {home}. To look around in them:")
    say(f"$ HEADWAY_HOME={home} headway up    # and in another terminal, with the same home: headway queue --all")
    return 0 if well else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("Stopped; nothing runs any more.")
        sys.exit(130)
    except UserError as error:
        console.print(f"demo: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
