"""A real Slurm of a few emulated nodes on this machine: slurmctld, a slurmd a node, slurmdbd and MariaDB, in a folder of its own.

Daemons run in the foreground as children, on free ports of 127.0.0.1, as the user who starts them (root). GPUs are empty files:
Slurm counts them, nothing can be computed on them. Nothing outside the folder is written, and `stop` ends what was started here
and what that has left behind, by id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMANDS = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "mariadbd",
    "mariadb-install-db",
    "sacct",
    "sinfo",
    "sbatch",
    "scontrol",
    "sacctmgr",
)
SBIN = "/usr/sbin:/sbin"
PATIENCE_S = 40.0
STEP_S = 0.05
CLUSTER = "emulated"


def missing() -> str:
    """Why no emulated Slurm can run here; empty if one can."""
    absent = [command for command in COMMANDS if shutil.which(command, path=f"{os.environ.get('PATH', '')}:{SBIN}") is None]
    if absent:
        return f"no {', '.join(absent)}: tests/slurm/install.sh installs them on Debian"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as their users, for which it must be root"


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(STEP_S)
    raise AssertionError(f"in vain: {what}")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass
class EmulatedSlurm:
    """One cluster: `start`, then commands, then `stop`. Nodes are called n1, n2, …"""

    root: Path
    """A folder that everybody may enter, with those above it: jobs run as their users."""
    nodes: int = 4
    gpus: int = 4
    cpus: int = 16
    memory_mib: int = 64_000
    partitions: Mapping[str, str] = field(default_factory=lambda: {"gpu": "n[1-{nodes}]"})
    """Partition → its nodes; the first one is the default."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Lines of slurm.conf that replace those written here."""

    def __post_init__(self) -> None:
        self.root.chmod(0o755)
        self.conf = self.root / "slurm.conf"
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SACCT", "SINFO", "SQUEUE"))}
        self.environment = {**clean, "SLURM_CONF": str(self.conf), "PATH": f"{clean.get('PATH', '')}:{SBIN}", "TZ": "UTC"}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.ctld_port, self.dbd_port, self.sql_port, *self.node_ports = free_ports(3 + self.nodes)

    # -- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Write the settings, start everything, and wait until all nodes are idle and accounting is on."""
        for folder in ("state", "spool", "log", "dev", "jobs"):
            (self.root / folder).mkdir()
        (self.root / "jobs").chmod(0o777)
        for gpu in range(self.gpus):
            (self.root / "dev" / f"nvidia{gpu}").touch()
        self._write_settings()
        self._start_database()
        self.spawn("slurmdbd", "slurmdbd", "-D")
        until(lambda: listens(self.dbd_port), "slurmdbd listens")
        self.run("sacctmgr", "-i", "add", "cluster", CLUSTER)
        self.spawn("slurmctld", "slurmctld", "-D", "-c")
        for name in self.node_names:
            self.start_node(name)
        until(self.is_up, "all nodes are idle, and accounting knows the cluster")

    @property
    def node_names(self) -> list[str]:
        return [f"n{i + 1}" for i in range(self.nodes)]

    def start_node(self, name: str) -> None:
        """Start (again) the daemon of one node."""
        self.spawn(name, "slurmd", "-D", "-N", name)

    def is_up(self) -> bool:
        """Whether all nodes are idle and jobs would be accounted for."""
        states = self.attempt("sinfo", "-h", "-N", "-o", "%T").stdout.split()
        registered = self.attempt("sacctmgr", "-nP", "show", "cluster", "format=ControlPort").stdout.split()
        return len(states) >= self.nodes and set(states) == {"idle"} and registered == [str(self.ctld_port)]

    def stop(self) -> None:
        """End everything that was started here: by the ids of the daemons, then what carries this cluster's settings."""
        for name in reversed(list(self.daemons)):
            self.end(name, signal.SIGTERM if name == "mariadbd" else signal.SIGKILL)
        for pid in carriers(f"SLURM_CONF={self.conf}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Signal a daemon, and wait for its end."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def spawn(self, name: str, *command: str) -> None:
        """Start a daemon whose output goes to a log of its own."""
        with (self.root / "log" / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, cwd=self.root, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                executable=shutil.which(command[0], path=self.environment["PATH"]),
            )  # fmt: skip

    # -- commands -------------------------------------------------------------------------------------------------
    def attempt(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command, whatever its exit code."""
        return subprocess.run(
            command, env=self.environment, cwd=self.root / "jobs", capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def run(self, *command: str) -> str:
        """Run a command that must work; its output."""
        done = self.attempt(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        """Hand in a batch job whose script is one line of shell; its id."""
        return self.run("sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", script).strip().split(";")[0]

    def states(self) -> dict[str, str]:
        """Each job that the controller still knows, and its state; an array's tasks one by one."""
        listed = self.run("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").split()
        return dict(zip(listed[::2], listed[1::2], strict=True))

    def wait_for(self, job: str, *states: str, patience_s: float = PATIENCE_S) -> str:
        """Wait until a job is in one of the states; which one."""

        def state() -> str:
            found = self.states().get(job, "")
            return found if found in states else ""

        try:
            return str(until(state, f"{job} is {' or '.join(states)}", patience_s))
        except AssertionError as error:
            told = self.run("squeue", "-t", "all") + self.run("sinfo", "-N", "-o", "%N %T %E")
            raise AssertionError(f"{error}\n{told}") from None

    def wait_all_ended(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until no job waits or runs, and accounting has been told so."""
        until(lambda: not self.run("squeue", "-h", "-o", "%i").strip(), "all jobs have ended", patience_s)
        until(lambda: not self.run("sacct", "-anPX", "-s", "PD,R,S,RQ", "-o", "JobID").strip(), "accounting knows it", patience_s)

    # -- settings -------------------------------------------------------------------------------------------------
    def _write_settings(self) -> None:
        host = socket.gethostname().partition(".")[0]
        root = self.root
        settings = {
            "ClusterName": CLUSTER,
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": self.ctld_port,
            "SlurmUser": "root",
            "AuthType": "auth/none",
            "CredType": "cred/none",
            "StateSaveLocation": root / "state",
            "SlurmdSpoolDir": root / "spool" / "%n",
            "SlurmctldPidFile": root / "slurmctld.pid",
            "SlurmdPidFile": root / "slurmd-%n.pid",
            "SlurmctldLogFile": root / "log" / "slurmctld.log",
            "SlurmdLogFile": root / "log" / "slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "SwitchType": "switch/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "DefMemPerCPU": 100,
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "bf_interval=1,bf_resolution=1,sched_min_interval=100000",
            "PriorityType": "priority/basic",
            "SlurmdParameters": "config_overrides",
            "GresTypes": "gpu",
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": self.dbd_port,
            "AccountingStorageTRES": "gres/gpu,gres/gpu:a100",
            "JobAcctGatherType": "jobacct_gather/none",
            "JobRequeue": 1,
            "KillWait": 1,
            "CompleteWait": 0,
            "ReturnToService": 2,
            "SlurmdTimeout": 15,
            "InactiveLimit": 0,
            **self.parameters,
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        of_all = f"CPUs={self.cpus} RealMemory={self.memory_mib} Gres=gpu:a100:{self.gpus} State=UNKNOWN"
        for name, port in zip(self.node_names, self.node_ports, strict=True):
            lines.append(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {of_all}")
        for i, (name, nodes) in enumerate(self.partitions.items()):
            default = "YES" if i == 0 else "NO"
            where = nodes.format(nodes=self.nodes)
            lines.append(f"PartitionName={name} Nodes={where} Default={default} MaxTime=INFINITE DefaultTime=10 State=UP")
        self.conf.write_text("\n".join(lines) + "\n")
        last = self.gpus - 1
        (root / "gres.conf").write_text(f"NodeName=n[1-{self.nodes}] Name=gpu Type=a100 File={root}/dev/nvidia[0-{last}]\n")
        dbd = root / "slurmdbd.conf"
        dbd.touch(0o600)
        dbd.write_text(
            f"AuthType=auth/none\nDbdHost={host}\nDbdAddr=127.0.0.1\nDbdPort={self.dbd_port}\nSlurmUser=root\n"
            f"LogFile={root}/log/slurmdbd.log\nPidFile={root}/slurmdbd.pid\n"
            f"StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={self.sql_port}\n"
            "StorageUser=slurm\nStoragePass=slurm\nStorageLoc=slurm_acct\n"
        )

    def _start_database(self) -> None:
        data, socket_path = self.root / "sql", self.root / "sql.sock"
        owner = ("--user=root",)
        self.run(
            "mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal",
            "--skip-test-db", *owner,
        )  # fmt: skip
        setup = self.root / "setup.sql"
        setup.write_text(
            "CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';\nGRANT ALL ON slurm_acct.* TO 'slurm'@'127.0.0.1';\n"
        )
        self.spawn(
            "mariadbd", "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket_path}", f"--port={self.sql_port}",
            "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M",
            "--innodb-lock-wait-timeout=900",            "--innodb-flush-log-at-trx-commit=0",
            "--performance-schema=OFF", "--skip-name-resolve",
            f"--init-file={setup}", *owner,
        )  # fmt: skip
        until(lambda: listens(self.sql_port), "the database listens")


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def carriers(variable: str) -> list[int]:
    """The processes that were started with this in their environment, but for this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found
