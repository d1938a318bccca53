"""Compaction: the rows of jobs that have ended leave the tables; the others keep their order."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import QUEUED
from headway.core.jit import kernel


@kernel
def move_tasks(T: Table, OT: Table, first: int, count: int, to: int, row: int) -> None:
    """Copy a block of task rows from the old table to the new one."""
    for column in range(c.TASK_COLUMNS):
        for i in range(count):
            OT[column, to + i] = T[column, first + i]
    for i in range(count):
        OT[c.T_JOB, to + i] = row


@kernel
def compact(J: Table, T: Table, X: Table, F: Floats, R: Ints, C: Ints, OT: Table, OX: Table) -> None:
    """Close the gaps of the job table in place, and write the live tasks and edges into `OT` and `OX`, which are zero."""
    to, task, edge = 0, 0, 0
    C[c.C_PRIORITY_MIN], C[c.C_PRIORITY_MAX] = 1 << 30, -(1 << 30)
    C[c.C_FIRST_WAITING] = -1
    for row in range(C[c.C_ROWS]):
        if J[c.J_PHASE, row] > 3:
            continue
        if row != to:
            for column in range(c.JOB_COLUMNS):
                J[column, to] = J[column, row]
            for i in range(F.shape[0]):
                F[i, to] = F[i, row]
        first, tasks = J[c.J_TASK0, to], J[c.J_TASKS, to]
        move_tasks(T, OT, first, tasks, task, to)
        edges = J[c.J_EDGES, to]
        for i in range(edges):
            OX[0, edge + i], OX[1, edge + i] = X[0, J[c.J_EDGE0, to] + i], X[1, J[c.J_EDGE0, to] + i]
        shift = edge - J[c.J_EDGE0, to]
        for i in range(tasks):
            OT[c.T_EDGE0, task + i] += shift
        held, held_tasks = J[c.J_HELD_TASK0, to], J[c.J_HELD_TASKS, to]
        if held == first:
            J[c.J_HELD_TASK0, to] = task
        J[c.J_TASK0, to], J[c.J_EDGE0, to] = task, edge
        task += tasks
        edge += edges
        if held >= 0 and held != first:
            move_tasks(T, OT, held, held_tasks, task, to)
            J[c.J_HELD_TASK0, to] = task
            task += held_tasks
        R[J[c.J_ID, to] - C[c.C_ID_BASE]] = to
        C[c.C_PRIORITY_MIN] = min(C[c.C_PRIORITY_MIN], J[c.J_PRIORITY, to])
        C[c.C_PRIORITY_MAX] = max(C[c.C_PRIORITY_MAX], J[c.J_PRIORITY, to])
        if C[c.C_FIRST_WAITING] < 0 and J[c.J_PHASE, to] == QUEUED and J[c.J_PLACED, to] == 0:
            C[c.C_FIRST_WAITING] = to
        to += 1
    for column in range(c.JOB_COLUMNS):
        J[column, to : C[c.C_ROWS]] = 0
    for i in range(F.shape[0]):
        F[i, to : C[c.C_ROWS]] = 0.0
    C[c.C_ROWS], C[c.C_TASKS], C[c.C_EDGES] = to, task, edge
    C[c.C_DEAD], C[c.C_DEAD_TASKS], C[c.C_DEAD_EDGES] = 0, 0, 0
    if C[c.C_FIRST_WAITING] < 0:
        C[c.C_FIRST_WAITING] = to
