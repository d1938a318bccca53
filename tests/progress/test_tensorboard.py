"""Event files: written here byte by byte from the format's description, cut at every place, several at once."""

import contextlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.progress.names import MetricNames
from headway.progress.tensorboard import EventFiles, owner_of
from headway.progress.tfevents import NoEventFile, Records, Scalar, masked_crc, scalars
from headway.progress.told import Merge, Point, Told


def crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(step: int, tag: str, value: float, form: str = "simple") -> bytes:
    tensor = {
        "simple": b"\x15" + struct.pack("<f", value),
        "floats": field(8, b"\x08\x01" + field(5, struct.pack("<f", value))),
        "content": field(8, b"\x08\x01" + field(4, struct.pack("<f", value))),
        "double": field(8, b"\x08\x02" + field(6, struct.pack("<d", value))),
    }[form]
    value_message = field(1, tag.encode()) + tensor
    return b"\x09" + struct.pack("<d", 1e9) + b"\x10" + varint(step) + field(5, field(1, value_message))


VERSION = record(b"\x09" + struct.pack("<d", 1e9) + field(3, b"brain.Event:2"))


def test_the_checksum_is_crc_32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the CRC catalogue
    assert struct.pack("<I", masked_crc(b"123456789")) == masked(b"123456789")


@pytest.mark.parametrize("form", ["simple", "floats", "content", "double"])
def test_scalars_in_all_their_forms(form: str) -> None:
    assert scalars(event(300, "loss", 0.5, form)) == [Scalar("loss", 300, 0.5)]


def test_a_file_that_is_cut_at_every_byte_and_grows_on() -> None:
    data = VERSION + record(event(1, "loss", 0.5)) + record(event(2, "loss", 0.25)) + record(event(3, "loss", 0.125))
    expected = [Scalar("loss", 1, 0.5), Scalar("loss", 2, 0.25), Scalar("loss", 3, 0.125)]
    for cut in range(len(data) + 1):
        records = Records()
        assert [each for one in records.feed(data[:cut]) + records.feed(data[cut:]) for each in scalars(one)] == expected


def test_damage() -> None:
    good = record(event(1, "loss", 0.5))
    bad_data, bad_length = bytearray(good), bytearray(good)
    bad_data[20] ^= 1
    bad_length[2] ^= 1
    records = Records()
    assert records.feed(bytes(bad_data) + good) == [event(1, "loss", 0.5)]
    with pytest.raises(NoEventFile):
        records.feed(bytes(bad_length))


def test_a_large_record_is_passed_by_in_pieces() -> None:
    data = record(b"x" * 200_000)
    data = data[:-4] + b"0000" + record(event(1, "loss", 0.5))
    records, found = Records(), []
    for at in range(0, len(data), 7777):
        found += records.feed(data[at : at + 7777])
    assert found == [event(1, "loss", 0.5)]


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    scalars(data)
    with contextlib.suppress(NoEventFile):
        Records().feed(data)


# -- files --------------------------------------------------------------------------------------------------------------


def files(place: Path, *, shared: bool = False, since_s: float = 0.0) -> EventFiles:
    return EventFiles([place], MetricNames(), since_s, (7, 1), lambda: shared)


def points(found: EventFiles, merge: Merge) -> list[Point]:
    out: list[Told] = []
    found._walk_at = 0.0
    found.poll(1 << 20, out)
    return [point for told in out if (point := merge.take(told)) is not None]


def add(path: Path, *events: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if not file.tell():
            file.write(VERSION)
        for each in events:
            file.write(record(each))


def test_files_that_grow_and_new_files(tmp_path: Path) -> None:
    found, merge = files(tmp_path), Merge()
    assert points(found, merge) == []
    add(tmp_path / "runs" / "a" / "events.out.tfevents.1.host.1.0", event(1, "Train/Loss", 0.5), event(1, "lr", 0.1))
    assert points(found, merge) == [Point(1, 0.5, None)]
    add(tmp_path / "runs" / "a" / "events.out.tfevents.1.host.1.0", event(2, "Train/Loss", 0.25))
    add(tmp_path / "runs" / "a" / "events.out.tfevents.2.host.1.1", event(3, "Train/Loss", 0.125), event(3, "val_accuracy", 0.75))
    assert points(found, merge) == [Point(2, 0.25, None), Point(3, 0.125, None), Point(3, None, 0.75)]


def test_two_writers_of_one_tag(tmp_path: Path) -> None:
    """Keras writes `epoch_loss` into `train` and into `validation`: the loss is the training's, the accuracy the validation's."""
    for name, loss, accuracy in (("validation", 2.0, 0.5), ("train", 1.0, 0.875)):
        add(tmp_path / "logs" / name / "events.out.tfevents.1.host", event(0, "epoch_loss", loss, "content"))
        add(tmp_path / "logs" / name / "events.out.tfevents.1.host", event(0, "epoch_accuracy", accuracy, "content"))
    merge, found = Merge(), files(tmp_path)
    points(found, merge)
    for name, loss, accuracy in (("validation", 1.5, 0.625), ("train", 0.5, 1.0)):
        add(tmp_path / "logs" / name / "events.out.tfevents.1.host", event(1, "epoch_loss", loss, "content"))
        add(tmp_path / "logs" / name / "events.out.tfevents.1.host", event(1, "epoch_accuracy", accuracy, "content"))
    got = points(found, merge)
    assert [each.loss for each in got if each.loss is not None] == [0.5]
    assert [each.accuracy for each in got if each.accuracy is not None] == [0.625]


def test_whose_file(tmp_path: Path) -> None:
    """A writer that lives says itself whose it is; of a dead one the time and the neighbours decide."""
    add(tmp_path / "events.out.tfevents.1.elsewhere.1.0", event(1, "loss", 0.5))
    assert points(files(tmp_path, shared=True), Merge()) == []
    assert points(files(tmp_path, since_s=4e9), Merge()) == []
    host = os.uname().nodename
    writers = []
    for job in ("7", "8"):
        env = {"HEADWAY_JOB": job, "HEADWAY_ATTEMPT": "1"}
        writers.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env))
        add(tmp_path / f"events.out.tfevents.1.{host}.{writers[-1].pid}.0", event(int(job), "loss", 0.5))
    try:
        while owner_of(writers[1].pid) != (8, 1):
            pass
        assert owner_of(writers[0].pid) == (7, 1) and owner_of(os.getpid()) == (-1, 0)
        assert points(files(tmp_path, shared=True), Merge()) == [Point(7, 0.5, None)]
    finally:
        for writer in writers:
            writer.communicate(b"\n")
