"""Archives: ranges of old segments, compressed, each a file of its own that is never changed.

An archive is a header line `headway-archive SHA256 JSON` and zlib-compressed bytes: the segments one after the other, exactly
as they were in the database. The JSON says which they are (`first`, `last`), how many `events` they hold, and the id of their
`journal`. SHA256 is that of the JSON, its line break and the compressed bytes. Beside a SQLite file they lie in a folder; on
PostgreSQL, where another machine must be able to go on, in the table of archives.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.codec import DamagedSegmentError, decode
from headway.core.errors import UserError, shown
from headway.core.events import EventBatch

MAGIC = b"headway-archive"
SUFFIX = ".segments"


class DamagedArchiveError(Exception):
    """An archive that is missing, cut short or altered."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Which segments an archive holds, and its bytes."""

    first: int
    last: int
    events: int
    journal: str
    content: bytes

    @property
    def name(self) -> str:
        """The file's name: the same for the same content only."""
        return f"{self.first:012}-{self.last:012}-{hashlib.sha256(self.content).hexdigest()[:12]}{SUFFIX}"

    @classmethod
    def of(cls, journal: str, first: int, bodies: Sequence[bytes], events: int) -> Archive:
        """An archive of segments that follow each other."""
        last = first + len(bodies) - 1
        header = json.dumps({"events": events, "first": first, "journal": journal, "last": last}, sort_keys=True).encode() + b"\n"
        body = zlib.compress(b"".join(bodies), 6)
        checksum = hashlib.sha256(header + body).hexdigest().encode()
        return cls(first, last, events, journal, b" ".join((MAGIC, checksum, header)) + body)

    @classmethod
    def parse(cls, content: bytes) -> Archive:
        """An archive from its bytes, whose checksum is verified.

        Raises:
            DamagedArchiveError: it is not whole.
        """
        line, _, _ = content.partition(b"\n")
        magic, _, rest = line.partition(b" ")
        checksum, _, header = rest.partition(b" ")
        signed = content[len(magic) + len(checksum) + 2 :]
        if magic != MAGIC or hashlib.sha256(signed).hexdigest().encode() != checksum:
            raise DamagedArchiveError("it is cut short or altered")
        found = json.loads(header)
        return cls(int(found["first"]), int(found["last"]), int(found["events"]), str(found["journal"]), content)

    def batches(self) -> Iterator[EventBatch]:
        """The batches of its segments, in order.

        Raises:
            DamagedArchiveError: they are not those that the header says.
        """
        body = self.content[self.content.index(b"\n") + 1 :]
        count = 0
        try:
            for batch in decode(io.BytesIO(zlib.decompress(body))):
                count += 1
                yield batch
        except (zlib.error, DamagedSegmentError) as error:
            raise DamagedArchiveError(str(error)) from None
        if count != self.last - self.first + 1:
            raise DamagedArchiveError(f"it holds {count} segments")


def save(archive: Archive, folder: Path) -> None:
    """Write an archive into its folder; it is on the disk when this returns. What is there already is never written over.

    Raises:
        OSError: it can't be written.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / archive.name
    if path.exists() and path.read_bytes() == archive.content:
        return  # A controller that died before it could say so in the database has written the very same.
    partial = folder / f".{archive.name}.{os.getpid()}"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(archive.content)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(folder)


def load(folder: Path, name: str, journal: str) -> Archive:
    """The archive of this name.

    Raises:
        DamagedArchiveError: it is missing, not whole, or another journal's.
    """
    try:
        return checked((folder / name).read_bytes(), name, journal)
    except OSError as error:
        raise DamagedArchiveError(f"the archive {folder / name} can't be read: {error.strerror or error}") from None


def checked(content: bytes, name: str, journal: str) -> Archive:
    """An archive from its bytes, if it is that of this name and journal; else `DamagedArchiveError`."""
    try:
        found = Archive.parse(content)
    except (DamagedArchiveError, ValueError, KeyError, TypeError) as error:
        raise DamagedArchiveError(f"the archive {name} is damaged: {error}") from None
    if found.name != name or found.journal != journal:
        raise DamagedArchiveError(f"the archive {name} is another journal's, or another range")
    return found


def read_archive(path: Path) -> Iterator[EventBatch]:
    """The batches of one archive file, without its journal.

    Raises:
        UserError: it can't be read or is damaged.
    """
    try:
        yield from Archive.parse(path.read_bytes()).batches()
    except OSError as error:
        raise UserError(f"can't be read: {error.strerror or error}", file=str(path)) from None
    except (DamagedArchiveError, ValueError, KeyError) as error:
        raise UserError(f"expected an archive of a journal; {shown(str(error))}", file=str(path)) from None


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
