"""Urgency budgets: who has spent his gets the default, is told so, and nobody is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.api.jobviews import job_json
from headway.core import columns as c
from headway.core.columns import Phase, Reason
from headway.core.events import EventBuffer
from headway.core.state import State
from headway.engines.base import NodeInfo
from headway.runtime.admit import Names
from headway.runtime.board import Board
from headway.runtime.budgets import UrgencyBudgets
from headway.runtime.drains import Drains
from headway.runtime.intake import ConflictError, Intake, Submission
from headway.runtime.inventory import inventory_events

from .fake import US, World, job


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal.db")


async def start(world: World, default: int | None = None, **users: int | None) -> None:
    await world.start()
    world.controller.intake.budgets = UrgencyBudgets(users, default)


def urgencies(world: World) -> list[int]:
    """Of the live jobs, as the policies see them."""
    state = world.controller.state
    return [int(state.J[c.J_URGENCY, row]) for row in state.live_rows()]


async def test_a_job_beyond_the_budget_has_what_is_left_and_its_owner_is_told(world: World) -> None:
    await start(world, ann=7)
    records = [await world.submit(job("j", user="ann", urgency=u), f"j{i}") for i, u in enumerate((9, 10, 10, 6, 5, 2))]
    assert urgencies(world) == [r.urgency for r in records] == [9, 8, 5, 5, 5, 2], "7 points: 4, then 3, then none"
    assert [r.note for r in records] == [
        "",
        "urgency 8 instead of 10: 3 of the user's points above 5 were left",
        "urgency 5 instead of 10: none of the user's points above 5 were left",
        "urgency 5 instead of 6: none of the user's points above 5 were left",
        "",
        "",
    ]
    assert job_json(world.controller, records[1])["note"] == records[1].note
    assert job_json(world.controller, records[1])["urgency"] == 8


async def test_each_user_has_his_own_and_the_default_is_for_who_is_not_named(world: World) -> None:
    await start(world, 1, ann=0, bob=None)
    for user in ("ann", "bob", "bob", "cy", "cy", "di"):
        await world.submit(job("j", user=user, urgency=10))
    assert urgencies(world) == [5, 10, 10, 6, 5, 6]


async def test_without_budgets_all_have_what_they_ask_for(world: World) -> None:
    await world.start()
    for _ in range(3):
        await world.submit(job("j", user="ann", urgency=10))
    assert urgencies(world) == [10, 10, 10]


async def test_what_has_ended_gives_its_points_back_and_what_waits_keeps_them(world: World) -> None:
    await start(world, ann=5)
    world.engine.work_us = {1: 5 * US, 2: 50 * US}
    await world.submit(job("first", 2, 2, user="ann", urgency=10))
    await world.submit(job("waits", 2, 2, user="ann", urgency=10))
    await world.to(6 * US)
    third = await world.submit(job("third", user="ann", urgency=7))
    assert (third.urgency, urgencies(world)) == (7, [5, 7]), "the second keeps what it was given"
    await world.cancel("third-1")
    assert (await world.submit(job("fourth", user="ann", urgency=10))).urgency == 10


async def test_jobs_below_the_default_save_nothing_up(world: World) -> None:
    await start(world, ann=2)
    for urgency in (1, 1, 10):
        await world.submit(job("j", user="ann", urgency=urgency))
    assert urgencies(world) == [1, 1, 7]


async def test_jobs_handed_in_together_share_what_is_left_in_their_order(world: World) -> None:
    await start(world, ann=6)
    tasks = [asyncio.ensure_future(world.controller.submit(job("j", user="ann", urgency=9), f"j{i}")) for i in range(3)]
    await world.drain()
    assert [(await task)[0].urgency for task in tasks] == [9, 7, 5]


async def test_a_job_that_is_rejected_spends_nothing(world: World) -> None:
    await start(world, ann=5)
    record = await world.submit(job("huge", 9, user="ann", urgency=10))
    assert (record.phase, record.reason) == (Phase.REJECTED, Reason.LARGER_THAN_CLUSTER)
    assert (await world.submit(job("j", user="ann", urgency=10))).urgency == 10


async def test_the_same_job_may_be_handed_in_again(world: World) -> None:
    """What counts is what was handed in, not what it became; another urgency is another job."""
    await start(world, ann=1)
    spec = job("j", user="ann", urgency=10)
    first = await world.submit(spec, "mine")
    assert await world.submit(spec, "mine") is first and first.urgency == 6
    assert json.loads(first.spec)["urgency"] == 10
    with pytest.raises(ConflictError):
        await world.submit(job("j", user="ann", urgency=6), "mine")


async def test_it_is_in_the_journal_and_budgets_of_today_change_nothing_of_yesterday(world: World) -> None:
    await start(world, ann=1)
    await world.submit(job("a", user="ann", urgency=10))
    await world.controller.close()
    await start(world, ann=3)
    record = world.controller.find("a-1")
    assert (record.urgency, record.note, urgencies(world)) == (
        6,
        "urgency 6 instead of 10: 1 of the user's points above 5 was left",
        [6],
    )
    assert (await world.submit(job("b", user="ann", urgency=10))).urgency == 7
    await world.controller.close()
    await start(world, ann=0)
    assert (await world.submit(job("c", user="ann", urgency=10))).urgency == 5, "less than what is spent: nothing is left"


@settings(max_examples=25)
@given(st.integers(0, 30), st.lists(st.integers(1, 10), max_size=12))
def test_the_points_of_live_jobs_never_exceed_the_budget_and_none_is_wasted(budget: int, asked: list[int]) -> None:
    """Against the rule in plain words: each job in turn takes what it wants of what is left."""
    state, names = State(), Names()
    batch = inventory_events(state, (NodeInfo("n0", 64, "gpu", 10**6, 10**12),), 0, Drains())
    state.apply(batch)
    names.learn(batch)
    intake = Intake(state, names, Board(), Drains(), False, here=(0,), budgets=UrgencyBudgets({"ann": budget}))
    half = len(asked) // 2

    async def take() -> None:
        for part in (asked[:half], asked[half:]):
            out = EventBuffer()
            futures = [asyncio.get_running_loop().create_future() for _ in part]
            intake.admit_all(
                [Submission(job("j", user="ann", urgency=u), "", f) for u, f in zip(part, futures, strict=True)], 0, out
            )
            state.apply(out.take())

    asyncio.run(take())
    left, wanted = budget, []
    for urgency in asked:
        take_points = min(max(urgency - 5, 0), left)
        left -= take_points
        wanted.append(min(urgency, 5 + take_points))
    assert [int(state.J[c.J_URGENCY, row]) for row in state.live_rows()] == wanted


@pytest.mark.parametrize(
    ("budget", "order"),
    [(None, ["liar0", "liar1", "liar2", "ann0", "ann1", "ann2"]), (5, ["liar0", "ann0", "liar1", "ann1", "liar2", "ann2"])],
)
async def test_who_calls_all_his_jobs_urgent_goes_first_with_one_of_them(
    tmp_path: Path, budget: int | None, order: list[str]
) -> None:
    """Equal jobs of two people, by turns, on one GPU that is taken; only one of them says that everything is urgent."""
    world = World(tmp_path / "journal.db", "mlf-h", nodes=1, gpus=1)
    await start(world, budget)
    world.engine.work_us = {number: 5 * US for number in range(1, 8)}
    await world.submit(job("first", user="bob"))
    for n in range(3):
        for user, urgency in (("liar", 10), ("ann", 5)):
            await world.submit(job("j", user=user, urgency=urgency, estimate_s=5.0), f"{user}{n}")
    await world.to(120 * US)
    assert [launch.name for launch in world.engine.launches][1:] == order
