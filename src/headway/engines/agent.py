"""The node agent: one small process a node, that outlives the controller.

Started as `python -I -S __main__.py STATE_DIR NODE`, in its own session, with its settings as JSON on its standard input.
It starts tasks (each under a supervisor, `runner.py`), and as a child subreaper takes in what a supervisor that was killed has
left; that it ends, and writes the end down. It measures what tasks use, and looks after the node's disk and GPUs.

It may be killed at any time: it holds nothing that isn't on the disk (`attempts.py` says what is) or in /proc. Supervisors run
on without it. The next one finds tasks again by pid, start time and boot id, or by their control groups. It ends by itself when
nothing runs and nobody has been connected for `idle_s`. `wire.py` is what it speaks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from . import accounts, cgroup, proc, runner, wire
from .lost import NEVER_STARTED, end_lost, write_end
from .nvml import Nvml, NvmlError
from .runner import EXIT_NOT_OURS, HANDLED, PR_SET_CHILD_SUBREAPER
from .usage import Sampler, Task

ORPHAN_PAUSE_S = 0.02
READ_BYTES = 1 << 16
UNSENT_BYTES_MAX = 64 * 1024 * 1024
FREE_BYTES_LEAST = 64 * 1024 * 1024
"""With less room than this on the disk of the state directory the node takes no more jobs; with twice as much it does again."""
GPU_LOOK_S = 30.0

Key = tuple[int, int, int]


class Client:
    """One controller's engine, as far as it has been heard."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.read = bytearray()
        self.unsent = bytearray()
        self.greeted = False


class Agent:
    """One node's agent. `settings`: `devices` (UUIDs of the GPUs by slot), `sample_s`, `idle_s`, `version`, `engine`."""

    def __init__(self, root: Path, node: str, settings: dict[str, Any]) -> None:
        self.root, self.node, self.pid = root, node, os.getpid()
        self.dir = proc.node_dir(root, node)
        self.version = str(settings.get("version", ""))
        self.engine = str(settings.get("engine", ""))
        self.idle_s = float(settings.get("idle_s", 10.0))
        self.sample_s = min(float(settings.get("sample_s", 5.0)), self.idle_s)
        self.devices = tuple(map(str, settings.get("devices", ())))
        self.boot = proc.boot_id()
        self.nvml = Nvml.open() if self.devices else None
        self.sampler = Sampler(self.devices, self.nvml)
        self.groups = cgroup.find_groups(f"headway-{self.engine[:8]}.{self.dir.name}")
        self.selector = selectors.DefaultSelector()
        self.clients: list[Client] = []
        self.supervisors: dict[int, Key] = {}
        self.watched: dict[Key, int] = {}
        self.places: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        self.left: set[Key] = set()
        self.problem = ""
        self.gpu_problem = ""
        self.gpu_look_s = 0.0
        self.busy_s = time.monotonic()
        self.ending = False

    # Life

    def run(self) -> None:
        with contextlib.closing(self.listen()) as listener:
            self.on(listener.fileno(), lambda: self.accept(listener))
            woken, waker = socket.socketpair()
            woken.setblocking(False)
            waker.setblocking(False)
            signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, self.noted)
            self.on(woken.fileno(), lambda: self.reap(woken))
            sample_at_s = 0.0
            while not self.ending:
                now_s = time.monotonic()
                if now_s >= sample_at_s or self.left:
                    tasks = self.look()
                    if now_s >= sample_at_s:
                        self.measure(tasks)
                        sample_at_s = now_s + self.sample_s
                    if tasks or self.supervisors or self.clients:
                        self.busy_s = now_s
                    if now_s - self.busy_s >= self.idle_s or not self.dir.exists():
                        return
                pause_s = ORPHAN_PAUSE_S if self.left else max(sample_at_s - time.monotonic(), 0.0)
                for key, _ in self.selector.select(pause_s):
                    key.data()

    def listen(self) -> socket.socket:
        """The socket, for us alone. By a relative path: the directory's own may be longer than a socket's may."""
        me = proc.process(self.pid)
        assert me is not None
        card = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": self.boot}
        proc.write_json(self.dir / wire.CARD, {**card, "protocol": wire.PROTOCOL, "version": self.version})
        back = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(self.dir)
        mask = os.umask(0o177)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(wire.SOCKET)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            listener.bind(wire.SOCKET)
            listener.listen()
        finally:
            os.umask(mask)
            os.fchdir(back)
            os.close(back)
        return listener

    def noted(self, number: int, _: object) -> None:
        if number == signal.SIGTERM:
            self.ending = True

    def on(self, fd: int, do: Callable[[], None], events: int = selectors.EVENT_READ) -> None:
        self.selector.register(fd, events, do)

    # Speaking

    def accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if not wire.may_speak(connection):
                connection.close()
                return
            connection.setblocking(False)
            client = Client(connection)
            self.clients.append(client)
            self.on(connection.fileno(), lambda: self.serve(client))

    def drop(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            self.selector.unregister(client.connection.fileno())
            client.connection.close()
            self.busy_s = time.monotonic()

    def serve(self, client: Client) -> None:
        self.flush(client)
        over = False
        while not over and client in self.clients:
            try:
                some = client.connection.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                some = b""
            client.read += some
            over = not some or len(client.read) > wire.LINE_BYTES_MAX
        # What it said before it hung up counts.
        while (end := client.read.find(b"\n")) >= 0:
            line = bytes(client.read[:end])
            del client.read[: end + 1]
            try:
                self.hear(client, wire.decoded(line))
            except (wire.WireError, KeyError, TypeError, ValueError) as error:
                self.say(client, {"event": "error", "error": f"{type(error).__name__}: {error}"})
                over = True
                break
        if over:
            self.drop(client)

    def hear(self, client: Client, message: dict[str, Any]) -> None:
        asked = message.get("op")
        if not client.greeted:
            fault = wire.version_fault("controller", message.get("protocol"), message.get("version"))
            if asked != "hello" or fault:
                raise wire.WireError(fault or "expected a hello first")
            client.greeted = True
            self.say(client, self.hello())
        elif asked == "ping":
            self.say(client, {"event": "pong", "id": message.get("id")})
        elif asked == "spawn":
            self.spawn_all(client, message)
        elif asked == "end":
            self.ending = True
        else:
            raise wire.WireError(f"this agent knows no {asked!r}")

    def hello(self) -> dict[str, Any]:
        """Who we are, what the node has, and what is wrong with it."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        gpus: list[dict[str, Any]] = []
        if self.nvml is not None:
            with contextlib.suppress(NvmlError):
                gpus = [gpu._asdict() for gpu in self.nvml.gpus() if gpu.uuid in self.devices]
        return {
            "event": "hello",
            "protocol": wire.PROTOCOL,
            "version": self.version,
            "node": self.node,
            "pid": self.pid,
            "boot_id": self.boot,
            "cpus_milli": 1000 * len(os.sched_getaffinity(0)),
            "memory_bytes": pages,
            "gpus": gpus,
            "limits": self.groups.limits(),
            "problem": self.problem,
        }

    def tell(self, message: dict[str, Any]) -> None:
        for client in list(self.clients):
            if client.greeted:
                self.say(client, message)

    def say(self, client: Client, message: dict[str, Any]) -> None:
        client.unsent += wire.encoded(message)
        self.flush(client)

    def flush(self, client: Client) -> None:
        if client not in self.clients:
            return
        try:
            while client.unsent:
                del client.unsent[: client.connection.send(client.unsent)]
        except BlockingIOError:
            if len(client.unsent) > UNSENT_BYTES_MAX:  # It doesn't listen: it can look at the disk when it comes back.
                self.drop(client)
                return
        except OSError:
            self.drop(client)
            return
        more = selectors.EVENT_WRITE if client.unsent else 0
        key = self.selector.get_key(client.connection.fileno())
        if key.events != selectors.EVENT_READ | more:
            self.selector.modify(client.connection.fileno(), selectors.EVENT_READ | more, key.data)

    # Starting

    def spawn_all(self, client: Client, message: dict[str, Any]) -> None:
        """Start the tasks of one attempt. Whatever can't be started ends with the reason on the disk."""
        job, attempt = int(message["job"]), int(message["attempt"])
        path = self.attempt_dir(job, attempt)
        intent = proc.read_json(path / "launch.json")
        if intent is None:
            return  # It has been given up.
        if intent["epoch"] != message["epoch"]:
            # The intent is another controller's: it has looked at the world since, and this one hasn't.
            self.say(client, {"event": "error", "error": f"job {job}, attempt {attempt}: its epoch has been replaced"})
            return
        base_env: dict[str, str] = message["base_env"]
        failed = False
        for task in message["tasks"]:
            rank = int(task["rank"])
            begun = proc.identity_path(path, rank).exists() or proc.exit_path(path, rank).exists()
            if begun or (job, attempt, rank) in self.supervisors.values():
                continue
            if failed:  # That ends the gang: the others need not start.
                write_end(path, rank, proc.EXIT_CANNOT_START, start_error=NEVER_STARTED, stopped_by="start")
                continue
            try:
                self.spawn((job, attempt, rank), path, task, base_env, str(message["user"]))
            except (OSError, ValueError, accounts.NoAccount) as error:
                said = str(error) if isinstance(error, accounts.NoAccount) else f"cannot start: {error}"
                write_end(path, rank, proc.EXIT_CANNOT_START, start_error=said)
                failed = True
        self.tell({"event": "look", "job": job, "attempt": attempt})

    def spawn(self, key: Key, path: Path, task: dict[str, Any], base_env: dict[str, str], user: str) -> None:
        job, attempt, rank = key
        log = self.root / "logs" / str(job) / str(attempt) / f"{rank}.log"
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        account = accounts.account_of(user)
        if account is not None:
            base_env = accounts.environment_of(account, base_env)
            task["account"] = (account.uid, account.gid, account.groups)
        task["env"] = {**base_env, **task["env"]}
        task["cgroup"] = self.groups.make(f"{job}.{attempt}.{rank}", int(task["cpus_milli"]), int(task["memory_bytes"]))
        wanted = ("command", "setup", "setup_rank", "workdir", "checkpoint_dir", "env", "cgroup", "account")
        spec = {name: task[name] for name in wanted if name in task}
        ready_r, ready_w = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(ready_r)
            os.close(ready_w)
            cgroup.remove(spec["cgroup"])
            raise
        if pid == 0:
            supervise(path, rank, log, spec, ready_w)
        os.close(ready_w)
        self.supervisors[pid] = key
        self.on(ready_r, lambda: self.ready(ready_r, key))

    def ready(self, fd: int, key: Key) -> None:
        """The supervisor has closed its standard output: the task runs, or has ended already."""
        self.selector.unregister(fd)
        os.close(fd)
        self.tell({"event": "look", "job": key[0], "attempt": key[1]})

    # Ends

    def reap(self, woken: socket.socket) -> None:
        with contextlib.suppress(OSError):
            woken.recv(READ_BYTES)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            key = self.supervisors.pop(pid, None)
            if key is not None:  # Else it was left by a supervisor, and has been ended.
                self.ended(key, os.waitstatus_to_exitcode(status))

    def ended(self, key: Key, code: int) -> None:
        job, attempt, rank = key
        path = self.attempt_dir(job, attempt)
        if not proc.exit_path(path, rank).exists() and path.exists():
            if proc.identity_path(path, rank).exists():
                self.left.add(key)
                self.clear_up()
            elif code == EXIT_NOT_OURS:
                cgroup.remove(self.groups.path(f"{job}.{attempt}.{rank}"), tries=1)
            else:
                error = f"the supervisor died{proc.supervisor_said(path)}"
                write_end(path, rank, proc.EXIT_CANNOT_START, start_error=error)
        self.tell({"event": "look", "job": job, "attempt": attempt})

    def clear_up(self) -> None:
        """End what supervisors that are gone have left, then write down the ends that they could not."""
        for one in proc.processes():
            if one.ppid == self.pid and one.alive and one.pid not in self.supervisors:
                for left in [*proc.descendants(one.pid), one]:
                    proc.kill(left, signal.SIGKILL)
        for key in sorted(self.left):
            job, attempt, rank = key
            if end_lost(self.attempt_dir(job, attempt), rank, proc.cookie(self.engine, *key)):
                self.left.discard(key)
                self.tell({"event": "look", "job": job, "attempt": attempt})

    def attempt_dir(self, job: int, attempt: int) -> Path:
        return self.root / "attempts" / f"{job}.{attempt}"

    # Looking and measuring

    def look(self) -> list[Task]:
        """The node's live tasks, by the disk and /proc. Those whose supervisors have gone without a word are cleared up."""
        tasks: list[Task] = []
        seen: set[tuple[int, int]] = set()
        for job, attempt, path in proc.attempts_in(self.root):
            seen.add((job, attempt))
            for rank, gpus in self.places_of(job, attempt, path).items():
                key = job, attempt, rank
                if proc.exit_path(path, rank).exists():
                    continue
                identity = proc.read_json(proc.identity_path(path, rank))
                if identity is None or identity.get("boot_id") != self.boot:
                    continue
                supervisor = proc.supervisor_of(identity, self.boot)
                if supervisor is None:
                    if not proc.exit_path(path, rank).exists():  # It may have written it just before it ended.
                        self.left.add(key)
                    continue
                tasks.append(Task(job, attempt, rank, supervisor.pid, str(identity.get("cgroup", "")), gpus))
                self.watch(key, supervisor)
        for gone in self.places.keys() - seen:
            del self.places[gone]
        if self.left:
            self.clear_up()
        return tasks

    def places_of(self, job: int, attempt: int, path: Path) -> dict[int, tuple[int, ...]]:
        """The slots of an attempt's tasks on this node, by rank."""
        if (job, attempt) not in self.places:
            intent = proc.read_json(path / "launch.json")
            if intent is None:
                return {}
            mine = [task for task in intent["tasks"] if task["node"] == self.node]
            self.places[job, attempt] = {int(task["rank"]): tuple(task["gpus"]) for task in mine}
        return self.places[job, attempt]

    def watch(self, key: Key, supervisor: proc.Process) -> None:
        """Be told when a supervisor ends that an earlier agent has started."""
        if key in self.watched or supervisor.pid in self.supervisors:
            return
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(supervisor.pid)
            self.watched[key] = fd
            self.on(fd, lambda: self.unwatch(key, fd))

    def unwatch(self, key: Key, fd: int) -> None:
        self.selector.unregister(fd)
        os.close(fd)
        del self.watched[key]
        self.ended(key, EXIT_NOT_OURS)

    def measure(self, tasks: list[Task]) -> None:
        starting = {f"{job}.{attempt}.{rank}" for job, attempt, rank in self.supervisors.values()}
        self.groups.sweep(starting | {f"{task.job}.{task.attempt}.{task.rank}" for task in tasks})
        figures = self.sampler.sample(tasks)
        if figures:
            self.tell({"event": "usage", "tasks": figures})
        problem = self.fault()
        if problem != self.problem:
            self.problem = problem
            self.tell({"event": "health", "problem": problem})

    def fault(self) -> str:
        """Why the node should take no more jobs."""
        try:
            disk = os.statvfs(self.root)
        except OSError as error:
            return f"the disk of the state directory: {error.strerror or error}"
        least = FREE_BYTES_LEAST * (2 if self.problem.startswith("the disk") else 1)
        least = min(least, disk.f_blocks * disk.f_frsize // 20)  # A small disk isn't a full one.
        if disk.f_bavail * disk.f_frsize < least:
            return f"the disk of the state directory is full ({disk.f_bavail * disk.f_frsize // 2**20} MiB left)"
        now_s = time.monotonic()
        if self.devices and now_s >= self.gpu_look_s:
            self.gpu_look_s = now_s + GPU_LOOK_S
            if self.nvml is None:
                self.gpu_problem = "the driver of its GPUs doesn't answer"
                self.nvml = self.sampler.nvml = Nvml.open()
            if self.nvml is not None:
                self.gpu_problem = next(filter(None, map(self.nvml.fault, self.devices)), "")
        return self.gpu_problem


def supervise(attempt_dir: Path, rank: int, log: Path, task: dict[str, Any], ready: int) -> NoReturn:
    """In the child: nothing of the agent's goes on here."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        signal.set_wakeup_fd(-1)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ready, 1)
        os.dup2(os.open(attempt_dir / "runner.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        runner.run(attempt_dir, rank, log, task)
    finally:
        os._exit(1)


def main(arguments: list[str]) -> NoReturn:
    root, node = Path(arguments[0]), arguments[1]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    code = 1
    try:
        with open(0, "rb", closefd=False) as file:
            settings = json.loads(file.read())
        lock = os.open(proc.node_dir(root, node) / wire.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os._exit(0)  # The node has an agent.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become a child subreaper")
        os.chdir("/")
        agent = Agent(root, node, settings)
        agent.run()
        agent.groups.close()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
