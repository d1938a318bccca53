"""How a controller's engine and a node's agent speak: lines of JSON over a Unix socket that only its owner can open.

An engine says `hello` first, with the version of this protocol; an agent of another one says so in words and hangs up. Then,
in any order and any number of times:

    engine: spawn   a gang's tasks on this node, by (epoch, job, attempt); asked again, nothing happens twice
            ping    answered by a pong
            end     the agent exits; the tasks run on
    agent:  look    something has become of an attempt: its truth is on the disk, as ever
            usage   what the live tasks use
            health  what is wrong with the node, or nothing any more
            pong
            error   why the last message was refused, in words

Nothing depends on any of these lines arriving: what is on the disk and which processes live decides.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

PROTOCOL = 1
LINE_BYTES_MAX = 64 * 1024 * 1024
"""The longest line: a gang's commands and environments."""
SOCKET = "socket"
LOCK = "lock"
CARD = "agent.json"
ERRORS = "agent.err"


class WireError(Exception):
    """The other side speaks otherwise; one sentence."""


def encoded(message: dict[str, Any]) -> bytes:
    """A message as a line. Names that are no UTF-8 (from file names, from environments) come through unharmed."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decoded(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises `WireError`."""
    try:
        message = json.loads(line)
    except ValueError:
        raise WireError("expected a line of JSON") from None
    if not isinstance(message, dict):
        raise WireError("expected a JSON object")
    return message


def version_fault(side: str, protocol: object, version: object) -> str:
    """Why these two can't work together, as `side` ("agent", "controller") is told it; empty if they can."""
    if protocol == PROTOCOL:
        return ""
    other = "controller" if side == "agent" else "agent"
    theirs = f"protocol {protocol!r}" + (f", Headway {version}" if version else "")
    return f"this {other} speaks protocol {PROTOCOL}, the {side} {theirs}: one of them is of another version of Headway"


def may_speak(connection: socket.socket) -> bool:
    """Whether who is at the other end is us, or root: by the kernel's word, not by theirs."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid in (0, os.geteuid())
