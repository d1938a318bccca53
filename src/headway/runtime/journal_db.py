"""The database of a journal: where it is, how it is opened, its tables, and how older ones are brought to the present form.

SQLite (one file) or PostgreSQL, through SQLAlchemy Core. Every transaction that writes begins as a writer, and a commit is on
the disk when it returns: with less, a loss of power could take back the request of an attempt that an engine has already
seen, and attempts are what keeps a job from running twice.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from headway.core.errors import UserError, did_you_mean, one_line, shown

Where = Path | URL
"""A SQLite file, or the address of a database."""
APPLICATION_ID = 0x48445759
"""`HDWY`: marks the SQLite file as ours."""
SCHEMA_NAME = "headway"
"""The schema of our tables on PostgreSQL."""
BUSY_S = 5.0
"""How long a writer waits for another one, s."""
READS = {"headway_reads": True}
"""Execution options of a transaction that only reads: on SQLite it does not wait for a writer."""

tables = sa.MetaData()
segments = sa.Table(
    "segments", tables,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("schema", sa.Integer, nullable=False),
    sa.Column("events", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
)  # fmt: skip
"""The newest segments; the older ones are in archives. `epoch`: of the controller that has written it."""
archives = sa.Table(
    "archives", tables,
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("events", sa.BigInteger, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary),
)  # fmt: skip
"""Ranges of segments that have been compressed: in a file of this name, or (`body`) in the database itself."""
snapshots = sa.Table(
    "snapshots", tables,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("events", sa.BigInteger, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)  # fmt: skip
"""What replay gives up to a segment. `key`: which code has folded it."""
lease = sa.Table(
    "lease", tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.Text),
    sa.Column("journal", sa.Text, nullable=False),
)  # fmt: skip
"""One row: who may write. `journal`: the journal's own id, which its archives carry too."""
schema_version = sa.Table("schema_version", tables, sa.Column("version", sa.Integer, nullable=False))


def _first(db: Connection) -> None:
    """Version 1: segments alone. It had no `schema_version`."""
    blob = "BYTEA" if db.dialect.name == "postgresql" else "BLOB"
    number = "BIGINT" if db.dialect.name == "postgresql" else "INTEGER"
    db.exec_driver_sql(
        f"CREATE TABLE segments(seq {number} PRIMARY KEY, schema INTEGER NOT NULL, events INTEGER NOT NULL, body {blob} NOT NULL)"
    )


def _leases(db: Connection) -> None:
    """Version 2: the lease, snapshots, archives. A controller of version 1 can't write any more: it knows no epoch."""
    db.exec_driver_sql("ALTER TABLE segments ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0")
    blob = "BYTEA" if db.dialect.name == "postgresql" else "BLOB"
    db.exec_driver_sql(
        "CREATE TABLE archives(first BIGINT PRIMARY KEY, last BIGINT NOT NULL, events BIGINT NOT NULL, name TEXT NOT NULL, "
        f"body {blob})"
    )
    db.exec_driver_sql(
        f"CREATE TABLE snapshots(seq BIGINT PRIMARY KEY, events BIGINT NOT NULL, key TEXT NOT NULL, body {blob} NOT NULL)"
    )
    db.exec_driver_sql(
        "CREATE TABLE lease(id INTEGER PRIMARY KEY, epoch BIGINT NOT NULL, beat BIGINT NOT NULL, holder TEXT, "
        "journal TEXT NOT NULL)"
    )
    db.execute(lease.insert().values(id=1, epoch=0, beat=0, holder=None, journal=secrets.token_hex(8)))


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_first, _leases)
"""MIGRATIONS[n] brings a database of version n to version n + 1. A step that has been released is never changed."""
VERSION = len(MIGRATIONS)


class Database:
    """A journal's database, opened and brought to the present version. `writes=False`: only to look at, nothing is changed.

    Raises:
        UserError: it can't be opened, is none of ours, or is of a newer version.
    """

    def __init__(self, where: Where, *, writes: bool = True) -> None:
        self.where, self.writes = where, writes
        self.label = str(where) if isinstance(where, Path) else where.render_as_string(hide_password=True)
        self.is_file = isinstance(where, Path)
        self.engine = self._open()
        made = (sa.text("UPDATE lease SET beat = beat + 1 WHERE epoch = :epoch"), segments.insert())
        self._beat, self._insert = (str(each.compile(dialect=self.engine.dialect)) for each in made)

    def _open(self) -> Engine:
        engine = None
        try:
            if isinstance(self.where, Path) and self.writes:
                _make(self.where)
            engine = _sqlite(self.where, self.writes) if isinstance(self.where, Path) else _postgres(self.where)
            with engine.connect() as db:
                self._check_ours(db)
                self._bring_up(db)
        except (OSError, SQLAlchemyError, sqlite3.Error, ImportError) as error:
            if engine is not None:
                engine.dispose()
            hint = "; move it away to begin anew" if self.is_file and self.writes and not _is_about_the_disk(error) else ""
            raise UserError(f"the journal can't be opened: {reason(error)}{hint}", file=self.label) from None
        except UserError:
            if engine is not None:
                engine.dispose()
            raise
        return engine

    def _check_ours(self, db: Connection) -> None:
        """Refuse a SQLite file of another program."""
        if not self.is_file:
            return
        with self.reading(db).begin():
            found = db.exec_driver_sql("PRAGMA application_id").scalar_one()
            objects = db.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
        if objects and found != APPLICATION_ID:
            raise UserError("this is not a Headway journal; move it away to begin anew", file=self.label)

    def _bring_up(self, db: Connection) -> None:
        """Take the steps from the version that is found to the present one, all of them or none."""
        with self.reading(db).begin():
            version = self._version(db)
        if version > VERSION:
            raise UserError(f"a journal of version {version}: this Headway knows up to {VERSION}; upgrade it", file=self.label)
        if version == VERSION:
            return
        if not self.writes:
            raise UserError("an older or empty journal; `headway up` brings it to the present form", file=self.label)
        with self.writing(db).begin():
            if db.dialect.name == "postgresql":
                db.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (APPLICATION_ID,))
                db.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA_NAME}")
            version = self._version(db)
            if version == VERSION:  # another process has just done it
                return
            for step in MIGRATIONS[version:]:
                step(db)
            schema_version.create(db, checkfirst=True)
            db.execute(schema_version.delete())
            db.execute(schema_version.insert().values(version=VERSION))
            if self.is_file:
                db.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")

    def _version(self, db: Connection) -> int:
        """The version of the tables; 0: there are none."""
        there = sa.inspect(db)
        if there.has_table("schema_version"):
            return int(db.execute(sa.select(schema_version.c.version)).scalar_one())
        return 1 if there.has_table("segments") else 0

    def reading(self, db: Connection) -> Connection:
        """The connection, for a transaction that only reads."""
        return db.execution_options(**READS)

    def writing(self, db: Connection) -> Connection:
        """The connection, for a transaction that writes."""
        return db.execution_options(headway_reads=False)

    def append(self, db: Connection, row: Mapping[str, Any]) -> bool:
        """Insert a segment and count the lease of its epoch up, in one transaction; it is on the disk then. False: the lease is
        that of another epoch, and nothing has been written.

        This is done over the driver itself: SQLAlchemy takes six times as long over it as the database.

        Raises:
            SQLAlchemyError: what the driver says.
        """
        driver = db.connection.dbapi_connection
        assert driver is not None
        try:
            with closing(driver.cursor()) as cursor:
                if self.is_file:
                    cursor.execute("BEGIN IMMEDIATE")
                cursor.execute(self._beat, {"epoch": row["epoch"]})
                if held := cursor.rowcount == 1:
                    cursor.execute(self._insert, row)
                    driver.commit()
                else:
                    driver.rollback()
                return held
        except BaseException as error:
            with suppress(Exception):
                driver.rollback()
            if isinstance(error, Exception):
                raise SQLAlchemyError(reason(error)) from error
            raise

    def close(self) -> None:
        self.engine.dispose()


def _make(path: Path) -> None:
    """An empty file for a new journal, since SQLite would make one that others can read. One that is there is not opened: closing
    it again would drop the locks that this process' connections hold on it, and another process would take its log away."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if os.statvfs(path).f_flag & os.ST_RDONLY:  # SQLite would only say that it can't open the file
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def _sqlite(path: Path, writes: bool) -> Engine:
    """A SQLite file: WAL, so that readers don't wait; FULL, so that each commit is on the disk and not only with the kernel."""

    def connect() -> sqlite3.Connection:
        mode = "rw" if writes else "ro"
        quoted = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        # `isolation_level=None`: transactions begin where SQLAlchemy says so (below), not where the driver guesses.
        return sqlite3.connect(
            f"file:{quoted}?mode={mode}", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )

    engine = sa.create_engine("sqlite+pysqlite://", creator=connect, poolclass=sa.NullPool, paramstyle="named")

    @sa.event.listens_for(engine, "connect")
    def settings(connection: Any, _: Any) -> None:
        found, objects = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "schema_version"))
        if writes and (found == APPLICATION_ID or not objects):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")

    @sa.event.listens_for(engine, "begin")
    def begin(db: Connection) -> None:
        # A writer that began as a reader could not wait for another: it would be refused.
        db.exec_driver_sql("BEGIN" if db.get_execution_options().get("headway_reads") or not writes else "BEGIN IMMEDIATE")

    return engine


def _postgres(url: URL) -> Engine:
    """A PostgreSQL database; what hangs ends in an error. A controller that is paused within a transaction loses it."""
    settings = {
        "search_path": SCHEMA_NAME, "synchronous_commit": "on", "statement_timeout": "60s", "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "3s",
    }  # fmt: skip
    options = " ".join(f"-c {key}={value}" for key, value in settings.items())
    asked = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
    return sa.create_engine(url, poolclass=sa.NullPool, connect_args={**asked, "options": options})


def parse_where(text: str) -> URL:
    """The address of a PostgreSQL database, as a person writes it.

    Raises:
        UserError: it is none. The message does not repeat what may hold a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise UserError("expected postgresql://USER@HOST/DATABASE", key="journal") from None
    if url.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        hint = did_you_mean(url.drivername, ["postgresql"])
        raise UserError(f"expected postgresql://USER@HOST/DATABASE, got {shown(url.drivername)}://…{hint}", key="journal")
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise UserError("PostgreSQL needs: pip install 'headway[postgres]'", key="journal") from None
    return url.set(drivername="postgresql+psycopg")


def reason(error: BaseException) -> str:
    """What a database or the system says, in one line."""
    if isinstance(error, DBAPIError):
        error = error.orig or error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error).strip()) or type(error).__name__


def is_busy(error: BaseException) -> bool:
    """Whether another process keeps the database locked."""
    text = reason(error)
    return "locked" in text or "lock timeout" in text


def _is_about_the_disk(error: BaseException) -> bool:
    """Whether the file itself may be sound: the disk is full, read-only or out of reach."""
    text = reason(error)
    words = ("full", "readonly", "read-only", "unable to open", "locked")
    return isinstance(error, OSError) or any(word in text for word in words)
