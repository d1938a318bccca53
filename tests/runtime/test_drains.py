"""Why nodes take no jobs: an operator, sickness, quarantine; each is a hold of its own, over losses and new controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.app import operate
from headway.core import columns as c
from headway.core.columns import NEVER, EventKind, NodePhase, Phase, Reason
from headway.core.errors import UserError
from headway.core.events import EventBuffer
from headway.core.state import State
from headway.engines.base import NodeBack, NodeHealth, NodeInfo, NodeLost
from headway.runtime.drains import OPERATOR, QUARANTINE, SICK, Drains, Trust
from headway.runtime.inventory import inventory_events

from .fake import US, World, job

FULL = "the disk of the state directory is full (3 MiB left)"
MINUTE = 60 * US


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal.db")


async def tell(world: World, *events: Any) -> None:
    for event in events:
        if isinstance(event, (NodeLost, NodeBack)):
            back = isinstance(event, NodeBack)
            world.engine.nodes = tuple(
                replace(node, reachable=back) if node.name == event.node else node for node in world.engine.nodes
            )
        world.engine.stream.put(event)
    await world.drain()


async def order(world: World, what: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(what)
    await world.drain()
    await task


async def again(world: World) -> None:
    """The controller ends, and another one starts on what it has left."""
    await world.controller.close()
    await world.start()


def node(world: World, number: int = 1) -> tuple[NodePhase, list[str]]:
    return NodePhase(int(world.controller.state.N[c.N_PHASE, number])), world.controller.drains.reasons(number)


async def test_a_sick_node_that_is_well_again_takes_jobs_also_under_the_next_controller(world: World) -> None:
    await world.start()
    await tell(world, NodeHealth("n0", FULL), NodeHealth("n1", FULL))
    await again(world)
    assert node(world) == (NodePhase.DRAINING, [f"sick: {FULL}"])
    record = await world.submit(job())
    assert record.first_started_us is None
    await tell(world, NodeHealth("n1", ""))
    assert node(world) == (NodePhase.UP, [])
    await world.to(2 * US)
    assert record.phase == Phase.COMPLETED and record.nodes == ("n1",)


async def test_a_drained_node_stays_drained_over_sickness_loss_and_restart(world: World) -> None:
    await world.start()
    await order(world, operate.drain(world.controller, "n1", "new fans"))
    drained = (NodePhase.DRAINING, ["drained: new fans"])
    assert node(world) == drained
    await tell(world, NodeHealth("n1", FULL))
    assert node(world) == (NodePhase.DRAINING, ["drained: new fans", f"sick: {FULL}"])
    await tell(world, NodeHealth("n1", ""))
    assert node(world) == drained
    await tell(world, NodeLost("n1"))
    assert node(world) == (NodePhase.DOWN, ["drained: new fans"])
    await again(world)
    assert node(world) == (NodePhase.DOWN, ["drained: new fans"])
    await tell(world, NodeBack("n1"))
    assert node(world) == drained
    await again(world)
    assert node(world) == drained
    await order(world, operate.undrain(world.controller, "n1"))
    assert node(world) == (NodePhase.UP, [])


async def test_undrain_leaves_a_sick_node_sick(world: World) -> None:
    await world.start()
    await tell(world, NodeHealth("n1", FULL))
    await order(world, operate.drain(world.controller, "n1"))
    await order(world, operate.undrain(world.controller, "n1"))
    assert node(world) == (NodePhase.DRAINING, [f"sick: {FULL}"])
    await again(world)
    assert node(world) == (NodePhase.DRAINING, [f"sick: {FULL}"])


async def test_a_node_that_is_down_can_be_drained_and_does_not_come_up(world: World) -> None:
    await world.start()
    await tell(world, NodeLost("n1"))
    await order(world, operate.drain(world.controller, "n1", "broken"))
    assert node(world) == (NodePhase.DOWN, ["drained: broken"])
    await tell(world, NodeBack("n1"))
    assert node(world) == (NodePhase.DRAINING, ["drained: broken"])


async def test_orders_come_again_without_harm(world: World) -> None:
    await world.start()
    await order(world, operate.undrain(world.controller, "n1"))
    await order(world, operate.drain(world.controller, "n1", "a"))
    before = len(world.journal())
    await order(world, operate.drain(world.controller, "n1", "a"))
    assert len(world.journal()) == before
    await order(world, operate.drain(world.controller, "n1", "b"))
    assert node(world)[1] == ["drained: b"]


async def test_what_runs_on_a_drained_node_runs_on(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 20 * US}
    record = await world.submit(job(gpus=2, workers=2))
    await order(world, operate.drain(world.controller, "n1"))
    await world.to(30 * US)
    assert record.phase == Phase.COMPLETED and record.attempt == 1


async def test_an_unknown_node_is_refused(world: World) -> None:
    await world.start()
    with pytest.raises(operate.NoSuchNodeError, match=r"there is no node \"n10\" \(did you mean 'n1'\?\)"):
        await operate.drain(world.controller, "n10")
    with pytest.raises(UserError, match="reason: expected one line"):
        await operate.drain(world.controller, "n1", "a\nb")


async def test_a_sickness_told_with_other_figures_is_no_news(world: World) -> None:
    await world.start()
    await tell(world, NodeHealth("n1", FULL))
    before = len(world.journal())
    await tell(world, NodeHealth("n1", FULL.replace("3", "2")))
    assert len(world.journal()) == before


async def test_lost_and_sick_at_once_is_down_and_sick(world: World) -> None:
    await world.start()
    await tell(world, NodeLost("n1"), NodeHealth("n1", FULL))
    assert node(world) == (NodePhase.DOWN, [f"sick: {FULL}"])
    await tell(world, NodeBack("n1"), NodeHealth("n1", ""))
    assert node(world) == (NodePhase.UP, [])


# Quarantine


async def flap(world: World, times: int, every_us: int = MINUTE) -> None:
    for _ in range(times):
        await tell(world, NodeLost("n1"))
        await world.to(world.clock.us + every_us // 2)
        await tell(world, NodeBack("n1"))
        await world.to(world.clock.us + every_us // 2)


async def test_a_node_that_flaps_is_in_quarantine_until_it_has_been_quiet(world: World) -> None:
    await world.start()
    await flap(world, 2)
    assert node(world) == (NodePhase.UP, [])
    await flap(world, 1)
    assert node(world) == (NodePhase.DRAINING, ["quarantine: in trouble 3 times within 60 min"])
    lost_at = 2 * MINUTE
    await again(world)
    await world.to(lost_at + 30 * MINUTE - US)
    assert node(world)[0] == NodePhase.DRAINING
    await world.to(lost_at + 30 * MINUTE + US)
    assert node(world) == (NodePhase.UP, [])
    await flap(world, 2)
    assert node(world)[0] == NodePhase.UP, "the old losses are forgotten"


async def test_one_more_loss_makes_a_quarantine_longer(world: World) -> None:
    await world.start()
    await flap(world, 3)
    await world.to(20 * MINUTE)
    await flap(world, 1)
    assert node(world)[0] == NodePhase.DRAINING
    await world.to(45 * MINUTE)
    assert node(world)[0] == NodePhase.DRAINING
    await world.to(51 * MINUTE)
    assert node(world)[0] == NodePhase.UP


async def test_a_node_that_falls_sick_again_and_again_is_in_quarantine_too(world: World) -> None:
    await world.start()
    for _ in range(3):
        await tell(world, NodeHealth("n1", FULL), NodeHealth("n1", ""))
    assert [word.partition(":")[0] for word in node(world)[1]] == ["quarantine"]


async def test_undrain_ends_a_quarantine_and_the_operator_is_believed(world: World) -> None:
    await world.start()
    await flap(world, 3)
    await order(world, operate.undrain(world.controller, "n1"))
    assert node(world) == (NodePhase.UP, [])
    await flap(world, 2)
    assert node(world) == (NodePhase.UP, [])


async def test_the_end_of_a_quarantine_leaves_a_drained_node_drained(world: World) -> None:
    await world.start()
    await order(world, operate.drain(world.controller, "n1"))
    await flap(world, 3)
    assert [word.partition(":")[0] for word in node(world)[1]] == ["drained", "quarantine"]
    await world.to(40 * MINUTE)
    assert node(world) == (NodePhase.DRAINING, ["drained"])


# The fold


def state_of(nodes: int) -> State:
    state = State()
    state.apply(inventory_events(state, [NodeInfo(f"n{i}", 2, "gpu", 1000, 10**9) for i in range(nodes)], 0, Drains()))
    return state


def test_events_of_before_holds_were_told_apart_mean_what_they_meant() -> None:
    out, drains = EventBuffer(), Drains()
    out.add(1, EventKind.NODE_DRAINING, 0)
    out.add(1, EventKind.NODE_DRAINING, 1, a=Reason.NODE_LOST)
    out.add(1, EventKind.NODE_DRAINING, 2)
    out.add(2, EventKind.NODE_UP, 2)
    drains.fold(out.take())
    assert [drains.holds(n) for n in range(3)] == [OPERATOR, QUARANTINE, 0]


STEPS = st.lists(st.tuples(st.sampled_from(["drain", "undrain", "sick", "well", "lost", "back", "due"]), st.integers(0, 25)))


@given(STEPS)
def test_holds_are_those_that_were_given_and_a_snapshot_has_them_all(steps: list[tuple[str, int]]) -> None:
    """Against a plain model: who has drained it, whether it is sick, whether it is there."""
    state, drains = state_of(1), Drains(Trust(troubles_max=10**6))
    now, drained, sick, down = 0, False, False, False
    for what, minutes in steps:
        now += minutes * MINUTE
        out = EventBuffer()
        if what == "drain":
            drains.hold(state, 0, OPERATOR, now, out, "why")
            drained = True
        elif what == "undrain":
            drains.lift(state, 0, OPERATOR | QUARANTINE, now, out)
            drained = False
        elif what == "sick":
            drains.hold(state, 0, SICK, now, out, "ill")
            sick = True
        elif what == "well":
            drains.lift(state, 0, SICK, now, out)
            sick = False
        elif what == "lost":
            out.add(now, EventKind.NODE_DOWN, 0)
            down = True
        elif what == "back" and down:
            drains.back(0, now, out)
            down = False
        batch = drains.events(state, now) if what == "due" else out.take()
        state.apply(batch)
        drains.fold(batch)
        twin = Drains(drains.trust)
        twin.restore(drains.plain())
        assert twin.plain() == drains.plain() and twin.reasons(0) == drains.reasons(0)
        assert drains.holds(0) == OPERATOR * drained + SICK * sick
        expected = NodePhase.DOWN if down else NodePhase.DRAINING if drained or sick else NodePhase.UP
        assert state.N[c.N_PHASE, 0] == expected
    assert drains.next_us() == NEVER
