"""The settings in force as events: quotas and limits of queues, and the rest as one text."""

from __future__ import annotations

import json

from headway.core import columns as c
from headway.core.columns import WHOLE, EventKind, Name
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State
from headway.runtime.admit import Names
from headway.runtime.settings import Settings
from headway.workloads.cluster import Queue


def settings_events(state: State, names: Names, settings: Settings, t_us: int) -> EventBatch:
    """The events after which the tables and the journal say what these settings say.

    A queue that is not in them any more has no quota and no limit; its jobs stay.
    """
    out = EventBuffer(16, 16)
    numbers = {name: names.number(Name.QUEUE, name) for name in settings.queues}
    names.take_news(out, t_us)
    numbers |= {name: number for number, name in state.names[Name.QUEUE].items()}
    for name, number in sorted(numbers.items(), key=lambda item: item[1]):
        queue = settings.queues.get(name, Queue(name))
        parent = -1 if queue.parent is None else numbers[queue.parent]
        wanted = [_milli(queue.quota_gpus), _milli(queue.limit_gpus), queue.weight, parent]
        known = number < state.Q.shape[1] and number in state.names[Name.QUEUE]
        if not known or state.Q[[c.Q_QUOTA, c.Q_LIMIT, c.Q_WEIGHT, c.Q_PARENT], number].tolist() != wanted:
            out.add(t_us, EventKind.QUEUE_SET, number, payload=wanted)
    out.add(t_us, EventKind.SETTINGS_SET, text=settings_text(settings))
    return out.take()


def settings_text(settings: Settings) -> str:
    """What is in force, as the text of a SETTINGS_SET event. It holds no address and no password."""
    return json.dumps(settings.to_json(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _milli(gpus: int | None) -> int:
    return -1 if gpus is None else gpus * WHOLE
