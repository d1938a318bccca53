"""The conformance suite of policies: what every policy must do, whatever it ranks by.

    check_policy(lambda: MyPolicy(), starvation_free=True)

raises AssertionError with what is wrong and the seed at which it was seen. Views are random, from `views.random_case`.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind, NodePhase, Op, Phase
from headway.core.events import EventBatch
from headway.core.plan import Capabilities, Plan
from headway.core.policy import Memo, Policy, PolicyFault, remembers, teacher_memo, teacher_of
from headway.core.round import check, diff
from headway.core.state import State
from headway.core.view import ClusterView, gpus_of
from headway.sim.run import Simulation, StuckError, simulate
from headway.testing.builders import cluster, job, workload
from headway.testing.gantt import history
from headway.testing.scenarios import random_cluster, random_jobs
from headway.testing.views import Case, random_case, renamed, renumbered
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

Make = Callable[[], Policy]

ACTIONS = frozenset(
    {EventKind.START_REQUESTED, EventKind.STOP_REQUESTED, EventKind.WANTED, EventKind.UNWANTED, EventKind.FINISHED}
)
VIEWS = range(40)
SIMULATIONS = 12
"""How many of the seeds also become simulations, with and without skipped rounds."""
ROUNDS_MAX = 50_000
GANG_WAITS_S_MAX = 150.0
"""How long a gang of the whole cluster may wait in a stream of short jobs, where starvation is excluded."""


def check_policy(make: Make, *, seeds: Iterable[int] = VIEWS, starvation_free: bool = False) -> None:
    """Check a policy; `make` returns a new one each time.

    Never over capacity · gangs whole · the same view gives the same plan · the view is left as it was · every plan passes
    `check` ·
    a plan applied twice does nothing the second time · names of jobs, users, queues and nodes do not matter, numbers only
    by their
    order · skipping rounds changes no action · with `starvation_free`: every job ends, and a stream of short jobs does not keep a
    gang waiting.

    Raises:
        AssertionError: the first thing that does not hold.
    """
    numbers = list(seeds)
    for seed in numbers:
        _named(check_view, make, seed)
    for seed in numbers[:SIMULATIONS]:
        _named(check_skipping, make, seed)
        _named(check_renamed_run, make, seed)
    if starvation_free:
        for seed in numbers[:SIMULATIONS]:
            _named(check_all_end, make, seed)
        _named(check_no_starvation, make, 0)


def _named(one: Callable[[Make, int], None], make: Make, seed: int) -> None:
    try:
        one(make, seed)
    except AssertionError as error:
        raise AssertionError(f"policy {make().name}, {one.__name__}, seed {seed}: {error}") from error


def decided(policy: Policy, view: ClusterView, memo: Memo) -> Plan:
    """The plan of a round: the policy's, or its teacher's where it gives the round up."""
    try:
        return policy.decide(view, memo)
    except PolicyFault:
        teacher = teacher_of(policy)
        assert teacher is not None, "a policy without a teacher has given a round up"
        return teacher.decide(view, teacher_memo(policy, memo))


# -- one view -----------------------------------------------------------------------------------------------------
def check_view(make: Make, seed: int) -> None:
    """Everything that can be said of the plan for one random view."""
    case = random_case(seed)
    state, policy = case.state(), make()
    memo = memo_of(policy, case.journal)
    view = ClusterView(state, case.now_us, seed)
    before, memo_before = tables(state), pickle.dumps(memo)
    plan = decided(policy, view, memo).copy()
    assert tables(state) == before, "deciding has changed the view"
    assert pickle.dumps(memo) == memo_before, "deciding has changed the memo"
    check_dense(state, plan)
    _check_same_plan(make, policy, case, plan, seed)
    kept = plan.copy()
    violation = check(state, kept, Capabilities())
    assert violation is None, f"the plan is refused: {violation}"
    _check_applied_twice(state, plan, case.now_us)


def _check_same_plan(make: Make, policy: Policy, case: Case, plan: Plan, seed: int) -> None:
    """Again on the same view, after another view, by another policy object, on a copy of the state, and with other names."""
    state = case.state()
    view, memo = ClusterView(state, case.now_us, seed), memo_of(policy, case.journal)
    first = described(plan)
    assert described(decided(policy, view, memo)) == first, "the same view has given another plan the second time"
    other = random_case(seed + 1)
    decided(policy, ClusterView(other.state(), other.now_us, seed), memo_of(policy, other.journal))
    assert described(decided(policy, view, memo)) == first, "another view in between has changed the plan: the policy remembers"
    assert described(decided(make(), view, memo)) == first, "a new policy of the same kind gives another plan"
    twin = ClusterView(state.copy(), case.now_us, seed)
    assert described(decided(policy, twin, copy.deepcopy(memo))) == first, "a copy of the state has given another plan"
    changed = renamed(case)
    view = ClusterView(changed.state(), case.now_us, seed)
    assert described(decided(policy, view, memo_of(policy, changed.journal))) == first, "other names have given another plan"
    changed, job_of, node_of = renumbered(case, seed)
    view = ClusterView(changed.state(), case.now_us, seed)
    found = described(decided(policy, view, memo_of(policy, changed.journal)))
    assert found == described(plan, job_of, node_of), "other numbers in the same order have given another plan"


def _check_applied_twice(state: State, plan: Plan, now_us: int) -> None:
    seen = plan.seen
    state.apply(_own(diff(state, plan.copy(), now_us)))
    again = plan.copy()
    again.seen = seen
    violation = check(state, again, Capabilities())
    assert violation is None, f"the plan is refused the second time: {violation}"
    acts = [kind.name for kind in diff(state, again, now_us).kinds() if kind in ACTIONS]
    assert not acts, f"the plan applied a second time has done something: {acts}"


def _own(batch: EventBatch) -> EventBatch:
    return EventBatch(batch.records.copy(), batch.pool.copy(), batch.texts)


def memo_of(policy: Policy, journal: EventBatch) -> Any:
    """The policy's memo after a journal; folding twice must give the same."""
    if not remembers(policy):
        return None
    memo, again = (policy.fold(policy.start(), journal) for _ in range(2))
    assert pickle.dumps(again) == pickle.dumps(memo), "folding the same events twice has given two memos"
    return memo


def tables(state: State) -> tuple[bytes, ...]:
    """Everything of a state that a policy could change."""
    arrays = (state.J, state.T, state.X, state.F, state.N, state.G, state.Q, state.B, state.R, state.C)
    return (*(array.tobytes() for array in arrays), pickle.dumps((state.names, state.files)))


def described(plan: Plan, job_of: dict[int, int] | None = None, node_of: dict[int, int] | None = None) -> tuple[Any, ...]:
    """A plan as plain values, with jobs and nodes under other numbers if asked for."""
    jobs, nodes = job_of or {}, node_of or {}
    overrides = []
    for entry in plan.overrides.tolist():
        entry = list(entry)
        places: list[tuple[int, int, int]] = []
        if entry[c.O_OP] in (Op.PLACE, Op.WHY):
            first = entry[c.O_TASK0]
            places = [(nodes.get(n, n), mask, milli) for n, mask, milli in plan.places[first : first + entry[c.O_TASKS]].tolist()]
        entry[c.O_JOB] = jobs.get(entry[c.O_JOB], entry[c.O_JOB])
        overrides.append((*entry, *places))
    requests = [(r.estimator, jobs.get(r.job, r.job)) for r in plan.requests]
    return (*overrides, plan.wake_at_us, *requests)


def check_dense(state: State, plan: Plan) -> None:
    """What is wanted after the plan, counted for every node and GPU, without `core.check`."""
    places = {int(row): _wanted(state, int(row)) for row in state.live_rows() if state.J[c.J_PLACED, row]}
    named: set[int] = set()
    for entry in plan.overrides.tolist():
        row, number, op = entry[c.O_ROW], entry[c.O_JOB], entry[c.O_OP]
        if op in (Op.WHY, Op.RULE):
            continue
        assert state.row(number) == row, f"the plan names job {number}, which is not live"
        assert number not in named, f"the plan names job {number} twice"
        named.add(number)
        was_placed = places.pop(row, None) is not None
        if op == Op.PLACE:
            places[row] = plan.places[entry[c.O_TASK0] : entry[c.O_TASK0] + entry[c.O_TASKS]].tolist()
            _check_gang(state, row, entry, places[row], was_placed)
    booked: Counter[tuple[int, int]] = Counter()
    tasks: Counter[tuple[int, int]] = Counter()
    cpus: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    for row, place in places.items():
        first = int(state.J[c.J_TASK0, row])
        for k, (node, mask, milli) in enumerate(place):
            cpus[node] += int(state.T[c.T_CPU, first + k])
            memory[node] += int(state.T[c.T_MEM, first + k])
            for gpu in gpus_of(mask):
                booked[node, gpu] += milli
                tasks[node, gpu] += 1
    limit = int(state.C[c.C_SHARE_LIMIT])
    for (node, gpu), milli in booked.items():
        most = limit if tasks[node, gpu] > 1 else c.WHOLE
        assert milli <= most, f"GPU {gpu} of node {node} is wanted over capacity: {milli} of {most} thousandths"
    for node in range(int(state.C[c.C_NODES])):
        assert cpus[node] <= state.N[c.N_CPU_MAX, node], f"node {node} is over capacity: cpus"
        assert memory[node] <= state.N[c.N_MEM_MAX, node], f"node {node} is over capacity: memory"


def _wanted(state: State, row: int) -> list[list[int]]:
    block = slice(state.J[c.J_TASK0, row], state.J[c.J_TASK0, row] + state.J[c.J_TASKS, row])
    places: list[list[int]] = state.T[[c.T_NODE, c.T_MASK, c.T_BOOK], block].T.tolist()
    return places


def _check_gang(state: State, row: int, entry: list[int], place: list[list[int]], was_placed: bool) -> None:
    """A gang is whole, on nodes that are up, each worker on as many GPUs of a kind as it asked for."""
    J, number = state.J[:, row], entry[c.O_JOB]
    workers = entry[c.O_DATA] * int(J[c.J_PIPELINE] * J[c.J_TENSOR])
    assert J[c.J_DATA_MIN] <= entry[c.O_DATA] <= J[c.J_DATA_MAX], f"job {number} is given a shape outside its limits"
    whole = workers + entry[c.O_SERVERS]
    assert len(place) == whole, f"the gang of job {number} is broken: {len(place)} of {whole} tasks have a place"
    assert not J[c.J_HOLD] or was_placed, f"job {number} is held by its user, and was placed"
    for k, (node, mask, milli) in enumerate(place):
        assert 0 <= node < state.C[c.C_NODES], f"job {number} is placed on a node that does not exist"
        up = state.N[c.N_PHASE, node] == NodePhase.UP
        assert up or (was_placed and state.N[c.N_PHASE, node] == NodePhase.DRAINING), f"job {number}: node {node} is not up"
        on = gpus_of(mask)
        assert all(gpu < state.N[c.N_GPUS, node] for gpu in on), f"job {number} is placed on a GPU that node {node} does not have"
        demand = int(J[c.J_GPU_TASK]) if k < workers else 0
        need = -(-demand // c.WHOLE)
        assert len(on) == need, f"the gang of job {number} is broken: a task has {len(on)} of {need} GPUs"
        assert not on or int(J[c.J_KIND_MASK]) >> int(state.N[c.N_KIND, node]) & 1, f"job {number} may not use that kind of GPU"
        shared = J[c.J_SHARE] and milli == demand
        assert not on or milli == c.WHOLE or shared, f"job {number} is given a share of a GPU that it did not ask for"


# -- whole runs ---------------------------------------------------------------------------------------------------
def _bounded(run: Simulation) -> None:
    assert run.rounds < ROUNDS_MAX, "jobs wait for ever"


def _small_run(seed: int) -> tuple[Cluster, Workload, int]:
    r = random.Random(seed)
    where = random_cluster(r)
    load = workload(random_jobs(r, where, r.randint(3, 12)), kinds=where.kinds, users=("ann", "bob"), queues=("one", "two"))
    return where, load, r.choice([1, 5, 10])


def _actions(make: Make, where: Cluster, load: Workload, interval_s: int, *, skip: bool) -> tuple[list[Any], EventBatch]:
    run = simulate(load, where, make(), interval_s=interval_s, skip=skip, keep_journal=True, watch=_bounded)
    assert run.journal is not None
    acts = [
        (*record[:5], *payload.tolist())
        for record, payload in zip(run.journal.records.tolist(), run.journal.payloads(), strict=True)
        if record[c.E_KIND] in ACTIONS
    ]
    return acts, run.journal


def check_skipping(make: Make, seed: int) -> None:
    """Rounds at which nothing can change may be left out: the actions are the same."""
    where, load, interval_s = _small_run(seed)
    try:
        skipped, _ = _actions(make, where, load, interval_s, skip=True)
    except StuckError as error:
        raise AssertionError(f"skipping rounds: {error}") from error
    every, _ = _actions(make, where, load, interval_s, skip=False)
    for one, other in zip(skipped, every, strict=False):
        assert one == other, f"skipping rounds has changed an action: {_told(one)} with, {_told(other)} without"
    assert len(skipped) == len(every), (
        f"skipping rounds has changed the number of actions: {len(skipped)} with, {len(every)} without"
    )


def _told(act: tuple[int, ...]) -> str:
    return f"{EventKind(act[1]).name.lower()} of job {act[2]} at {act[0] / 1e6:g} s"


def check_renamed_run(make: Make, seed: int) -> None:
    """Equal nodes under other names, jobs and users under other names: the same completion times and shapes of places."""
    where, load, interval_s = _small_run(seed)
    equal = replace(
        where, kinds=("gpu",), nodes=tuple(replace(where.nodes[0], name=f"n{n}", rack=0) for n in range(len(where.nodes)))
    )
    plain = replace(load, spec=_with(load.spec, c.J_KIND_MASK, -1))
    backwards = replace(equal, nodes=tuple(replace(node, name=f"z{9 - n}") for n, node in enumerate(equal.nodes)))
    other = replace(
        plain, job_names=tuple(f"x{i * 7 % 11}" for i in range(len(plain))), users=("zoe", "abe"), queues=("z", "a"),
        spec=_with(_with(plain.spec, c.J_USER, 1 - plain.spec[c.J_USER]), c.J_QUEUE, 1 - plain.spec[c.J_QUEUE]),
    )  # fmt: skip
    found = []
    for cluster_, jobs in ((equal, plain), (backwards, other)):
        journal = _actions(make, cluster_, jobs, interval_s, skip=True)[1]
        shapes = [
            (stay.job, stay.begin, stay.end, sorted(Counter(node for node, _ in stay.gpus).values()))
            for stay in history(journal).stays
        ]
        found.append(shapes)
    assert found[0] == found[1], "other names have given another schedule"


def _with(spec: Any, column: int, values: Any) -> Any:
    changed = spec.copy()
    changed[column] = values
    return changed


def check_all_end(make: Make, seed: int) -> None:
    """Every job of a finite workload ends."""
    where, load, interval_s = _small_run(seed)
    try:
        run = simulate(load, where, make(), interval_s=interval_s, watch=_bounded)
    except StuckError as error:
        raise AssertionError(f"starvation: {error}") from error
    ended = [run.state.ended_phase(number) for number in range(len(load))]
    assert all(phase in (Phase.COMPLETED, Phase.REJECTED) for phase in ended), f"jobs did not complete: {ended}"


def check_no_starvation(make: Make, seed: int) -> None:
    """Short jobs come faster than eight GPUs are ever empty together; a gang of eight must start all the same."""
    shorts = [job(f"s{i}", 1, 20, 3 * i) for i in range(400)]
    gang = job("gang", 8, 60, 91)
    jobs = sorted([*shorts, gang], key=lambda it: it.submit_s)
    number = jobs.index(gang)
    try:
        run = simulate(workload(jobs), cluster([4, 4]), make(), interval_s=1, keep_journal=True, watch=_bounded)
    except StuckError as error:
        raise AssertionError(f"starvation: {error}") from error
    assert run.journal is not None
    records = run.journal.records
    starts = records[(records[:, c.E_KIND] == EventKind.STARTED) & (records[:, c.E_ID] == number), c.E_T]
    waited_s = float(starts[0]) / 1e6 - gang.submit_s if len(starts) else float(np.inf)
    assert waited_s <= GANG_WAITS_S_MAX, f"starvation: a gang waited {waited_s:g} s while short jobs went on"
