"""An asyncio event loop in virtual time: nothing sleeps, and the same program gives the same course of events each time.

Whenever nothing is ready, time jumps to the next timer. What would run in a thread runs at once, and its result comes after
as many virtual seconds as `think_s` says: so a policy that thinks for long can be had without one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator, Mapping
from types import coroutine
from typing import Any, TypeVar

US = 1_000_000

Result = TypeVar("Result")


class StalledError(AssertionError):
    """Everybody waits for something that nobody will do."""


class _NoFiles(selectors.BaseSelector):
    """Waits for no file: a wait is a jump in time."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        self._jump = jump
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._map[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StalledError("nothing is ready, and no timer is set: everybody waits for ever")
        if timeout > 0:
            self._jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._map


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. It begins at second 0; `us` is the same time in whole microseconds."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self.think_s: Callable[[], float] = lambda: 0.0
        super().__init__(_NoFiles(self._jump))
        self._clock_resolution = 1e-7

    def time(self) -> float:
        return self._now_s

    @property
    def us(self) -> int:
        return round(self._now_s * US)

    def _jump(self, seconds: float) -> None:
        self._now_s += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        answer: asyncio.Future[Any] = self.create_future()

        def give(result: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        try:
            result, error = func(*args), None
        except Exception as raised:
            result, error = None, raised
        self.call_later(self.think_s(), give, result, error)
        return answer


def now_us() -> int:
    """The running virtual loop's time (µs)."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "this needs a virtual loop: use run_virtual"
    return loop.us


class VirtualClock:
    """The running virtual loop's time, as a controller's clock."""

    def now_us(self) -> int:
        return now_us()


def run_virtual(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run `main()` to its end in a virtual loop of its own; whatever it leaves running is cancelled."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


class Gate:
    """Whether a process may go on. One that is closed stops whoever passes it, as SIGSTOP does."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def closed(self) -> bool:
        """Whether whoever passes has to wait."""
        return not self._open.is_set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        await self._open.wait()


@coroutine
def pausable(inner: Coroutine[Any, Any, Result], gate: Gate) -> Generator[Any, Any, Result]:
    """`inner`, which stands still at whatever it awaits while the gate is closed; what happens to it meanwhile it learns then."""
    error: BaseException | None = None
    while True:
        try:
            waits_for = inner.send(None) if error is None else inner.throw(error)
        except StopIteration as done:
            result: Result = done.value
            return result
        error = None
        try:
            yield waits_for
        except BaseException as raised:
            error = raised
        while gate.closed:
            try:
                yield from gate.wait().__await__()
            except asyncio.CancelledError as raised:
                error = raised
