"""The engine's line to one node's agent: finds it, starts it where there is none, and starts it again when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from headway import __version__
from headway.engines import proc, wire

__all__ = ["AgentLink", "wait_for_children"]

log = logging.getLogger(__name__)

Message: TypeAlias = dict[str, Any]
PROGRAM = str(Path(__file__).with_name("__main__.py"))
KNOCK_S = 0.005
"""How often a starting agent is knocked at, in seconds: it takes some 50 ms to open."""
OPENING_S = 5.0
"""How long it may take before another is started."""
AGAIN_S_MAX = 5.0
PING_S = 2.0
ANSWER_S = 4.0
"""After so long without an answer an agent hangs, and is ended: its tasks run on, and the next finds them."""
_children: set[int] = set()
"""Agents that this process has started and not yet waited for."""


def wait_for_children() -> None:
    """Wait for agents of ours that have ended, so that none stays a zombie."""
    for pid in list(_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _children.discard(pid)


class AgentLink:
    """`heard` gets all that the agent says, hellos too; `silent_s()` tells for how long it has said nothing."""

    def __init__(self, root: Path, node: str, settings: Mapping[str, Any], heard: Callable[[str, Message], None]) -> None:
        self.node = node
        self.hello: Message = {}
        self.fault = ""
        """Why no agent can be had, in words; empty while one is being started."""
        self.known = asyncio.Event()
        """Set once the agent has answered, or can't."""
        self._root, self._dir = root, proc.node_dir(root, node)
        self._settings = {"version": __version__, **settings}
        self._heard = heard
        self._heard_s = time.monotonic()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._child = 0
        self._again_s = 0.0
        self._began_s = time.monotonic()

    def start(self) -> None:
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._heard_s = time.monotonic()
        self._task = asyncio.create_task(self._keep(), name=f"headway-agent-{self.node}")

    async def close(self) -> None:
        """Hang up. The agent stays for as long as tasks run."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    @property
    def up(self) -> bool:
        return self._writer is not None

    def silent_s(self) -> float:
        """For how many seconds nothing has been heard; 0 while the line stands."""
        return 0.0 if self.up else time.monotonic() - self._heard_s

    def send(self, message: Message) -> bool:
        """Say something, if the line stands. Whether it arrives is never certain: the disk tells."""
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(wire.encoded(message))
        return True

    # Keeping the line

    async def _keep(self) -> None:
        while True:
            try:
                async with self._connected() as reader:
                    self._again_s = 0.0
                    await self._listen(reader)
            except wire.WireError as error:
                self.fault = str(error)
                self.known.set()
                await asyncio.sleep(AGAIN_S_MAX)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                log.debug("node %s: %r", self.node, error)
            try:
                await self._see_to_an_agent()
            except OSError as error:
                self.fault = f"the agent of node {self.node} can't be started: {error}"
                self.known.set()

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[asyncio.StreamReader]:
        """The line, from the connection to its end, greetings exchanged."""
        self._replace_another_version()
        # By way of the directory's descriptor: its path may be longer than a socket's may.
        fd = os.open(self._dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            path = f"/proc/self/fd/{fd}/{wire.SOCKET}"
            reader, writer = await asyncio.open_unix_connection(path, limit=wire.LINE_BYTES_MAX)
        finally:
            os.close(fd)
        try:
            if not wire.may_speak(writer.get_extra_info("socket")):
                raise wire.WireError(f"the socket of node {self.node} belongs to another user")
            writer.write(wire.encoded({"op": "hello", "protocol": wire.PROTOCOL, "version": __version__}))
            try:
                async with asyncio.timeout(ANSWER_S):
                    hello = wire.decoded(await reader.readuntil(b"\n"))
            except TimeoutError:
                self._end_agent()
                raise
            if hello.get("event") == "error":
                raise wire.WireError(str(hello.get("error")))
            if fault := wire.version_fault("agent", hello.get("protocol"), hello.get("version")):
                raise wire.WireError(fault)
            self.hello, self.fault, self._writer = hello, "", writer
            self._heard_s = time.monotonic()
            self.known.set()
            self._heard(self.node, hello)
            yield reader
        finally:
            self._writer = None
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hear until the line breaks. `TimeoutError` (an `OSError`) if the agent hangs; then it is ended."""
        pinged = False
        while True:
            try:
                async with asyncio.timeout(ANSWER_S if pinged else PING_S):
                    line = await reader.readuntil(b"\n")
            except TimeoutError:
                if pinged:
                    log.warning("node %s: its agent does not answer, and is started again; its tasks run on", self.node)
                    self._end_agent()
                    raise
                self.send({"op": "ping"})
                pinged = True
                continue
            pinged = False
            self._heard_s = time.monotonic()
            message = wire.decoded(line)
            if message.get("event") == "error":
                log.warning("node %s: its agent says: %s", self.node, message.get("error"))
            self._heard(self.node, message)

    # Starting and ending it

    async def _see_to_an_agent(self) -> None:
        """See that there is one that can be connected to, or will be soon."""
        wait_for_children()
        agent = self._agent()
        if agent is None and self._child not in _children:
            await asyncio.sleep(self._again_s)
            self._again_s = min(max(2 * self._again_s, 0.05), AGAIN_S_MAX)
            self._child = self._spawn()
            self._began_s = time.monotonic()
        elif agent is not None and time.monotonic() - max(self._began_s, self._heard_s) > OPENING_S:
            proc.kill(agent, signal.SIGKILL)  # It lives, and can't be spoken to.
        await asyncio.sleep(KNOCK_S)

    def _spawn(self) -> int:
        library_path = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with contextlib.ExitStack() as opened:
            settings = opened.enter_context(open(os.memfd_create("headway-agent"), "w+b", buffering=0))
            settings.write(json.dumps(self._settings).encode())
            settings.seek(0)
            errors = opened.enter_context(open(self._dir / wire.ERRORS, "ab", buffering=0))
            null = opened.enter_context(open(os.devnull, "wb", buffering=0))
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-X", "utf8", PROGRAM, str(self._root), self.node],
                library_path,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, settings.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, null.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
                ],
                setsid=True,
            )
        _children.add(pid)
        return pid

    def _card(self) -> Message | None:
        """Who the agent is, by its own card."""
        card = proc.read_json(self._dir / wire.CARD)
        return card if card is not None and card.get("boot_id") == proc.boot_id() else None

    def _agent(self) -> proc.Process | None:
        """The node's agent, if it lives."""
        card = self._card()
        return proc.lives(int(card["pid"]), int(card["start_ticks"])) if card else None

    def _end_agent(self) -> None:
        """Its tasks run on."""
        found = self._agent()
        if found is not None:
            proc.kill(found, signal.SIGKILL)

    def _replace_another_version(self) -> None:
        """An agent of an older version makes room for ours. A newer one doesn't: raises `WireError`, with words."""
        card = self._card()
        protocol = int(card.get("protocol", 0)) if card else wire.PROTOCOL
        if card is None or protocol == wire.PROTOCOL or self._agent() is None:
            return
        fault = wire.version_fault("agent", protocol, card.get("version"))
        if protocol > wire.PROTOCOL:
            raise wire.WireError(f"node {self.node}: {fault}; use that one, or end process {card['pid']} (its tasks run on)")
        log.warning("node %s: %s; it is replaced, its tasks run on", self.node, fault)
        self._end_agent()
        raise ConnectionResetError("replaced")
