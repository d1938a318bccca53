"""A PostgreSQL server of a test run's own: in a folder of its own, on a socket in it, as a user that is not root."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from sqlalchemy.engine import URL

from headway.core.errors import UserError
from headway.runtime.journal_db import parse_where

PATIENCE_S = 60.0


def programs() -> Path | None:
    """The folder of initdb and postgres of the newest version."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: int(path.split("/")[4]))
    on_path = shutil.which("initdb")
    return Path(found[-1]).parent if found else Path(on_path).parent if on_path else None


def missing() -> str:
    """Why no server can run here; empty if one can."""
    if programs() is None:
        return "no initdb: tests/postgres/install.sh installs it on Debian"
    try:
        parse_where("postgresql://")
    except UserError as error:
        return str(error)
    return ""


class Postgres:
    """The server. `start`, then a `database()` for each test, then `stop`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headway-pg-"))
        self.data = self.folder / "data"
        self.count = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.user: str | None = None
        if os.geteuid() == 0:
            self.user = next(name for name in ("postgres", "nobody") if _there(name))
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)

    def start(self) -> None:
        self._run("initdb", "-D", str(self.data), "-U", "headway", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        bin_dir = programs()
        assert bin_dir is not None
        with (self.folder / "log").open("wb") as out:
            self.process = subprocess.Popen(
                [str(bin_dir / "postgres"), "-D", str(self.data), "-k", str(self.folder), "-c", "listen_addresses=",
                 "-c", "fsync=off"],
                stdout=out, stderr=out, cwd=self.folder, **self._as_user(),  # type: ignore[call-overload]
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(subprocess.CalledProcessError):
                self._run("psql", "-h", str(self.folder), "-U", "headway", "-c", "SELECT 1", "postgres")
                return
            assert time.monotonic() < deadline and self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)

    def database(self) -> URL:
        """A new, empty database."""
        self.count += 1
        name = f"j{self.count}"
        self._run("psql", "-h", str(self.folder), "-U", "headway", "-c", f"CREATE DATABASE {name}", "postgres")
        return parse_where(f"postgresql://headway@/{name}?host={self.folder}")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        bin_dir = programs()
        assert bin_dir is not None
        command = [str(bin_dir / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S, cwd=self.folder, **self._as_user())  # type: ignore[call-overload]

    def _as_user(self) -> dict[str, object]:
        return {} if self.user is None else {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []}


def _there(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False
