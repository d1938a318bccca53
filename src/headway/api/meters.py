"""What the API counts of itself, and how often one token may ask for something."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram

from headway.api.problems import TooManyError

STREAMS_MAX = 64
"""Answers of one token that go on at once: logs that are followed, events."""
WHO_MAX = 10_000
"""Of so many tokens rates are kept at once; those that have been quiet are forgotten first."""


class Meters:
    """Counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "headway_http_requests", "Requests by method, path and status", ["method", "path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "headway_http_request_seconds", "How long requests took, those that stream left out", registry=self.registry,
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
        )  # fmt: skip
        self.reports = Counter("headway_reports", "Reports of jobs that came in over HTTP", registry=self.registry)
        self.refused = Counter(
            "headway_rate_limited", "Requests refused because one token asked too often", ["what"], registry=self.registry
        )

    def count(self, method: str, path: str, status: int, took_s: float) -> None:
        """One request has been answered. `path`: as it is declared, so that no job's name becomes a label."""
        self.requests.labels(method if method in _METHODS else "other", path or "none", str(status)).inc()
        if path not in _STREAMS:
            self.seconds.observe(took_s)


_METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "HEAD", "PUT", "OPTIONS"})
_STREAMS = frozenset({"/v1/events", "/v1/jobs/{job_id}/logs"})


@dataclass(slots=True)
class Rates:
    """Token buckets: each holds one second's worth, and a request may overdraw it once."""

    meters: Meters
    now_s: Callable[[], float] = time.monotonic
    _left: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    _streams: dict[str, int] = field(default_factory=dict)

    def take(self, what: str, who: str, amount: float, per_s: int | None) -> None:
        """Count so many of something against a rate; None: there is none.

        Raises:
            TooManyError: too often.
        """
        if per_s is None:
            return
        now, key = self.now_s(), (what, who)
        left, at = self._left.get(key, (float(per_s), now))
        left = min(float(per_s), left + (now - at) * per_s)
        if left < 1 <= per_s or per_s == 0:
            self.meters.refused.labels(what).inc()
            raise TooManyError(f"too many {what}: at most {per_s} a second", (1 - left) / per_s if per_s else 60.0)
        self._left[key] = left - amount, now
        while len(self._left) > WHO_MAX:
            self._left.pop(next(iter(self._left)))

    def open_stream(self, who: str) -> None:
        """An answer that goes on begins. `TooManyError` if this token has too many already."""
        if self._streams.get(who, 0) >= STREAMS_MAX:
            self.meters.refused.labels("streams").inc()
            raise TooManyError(f"expected at most {STREAMS_MAX} answers that go on at once", 1.0)
        self._streams[who] = self._streams.get(who, 0) + 1

    def close_stream(self, who: str) -> None:
        """It has ended."""
        self._streams[who] -= 1
        if not self._streams[who]:
            del self._streams[who]
