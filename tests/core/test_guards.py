"""Guard the guards: for each guard of `core` there is a case that fails without it.

A guard is a piece of a module's source and what it is replaced by. Each is run in a process of its own, on a copy of the package whose kernels are
plain Python, against a case of the other test files: the case passes on the sound copy and fails on the mutated one.
"""

# ruff: noqa: E501  (the list of guards is a table, and its sources are the lines of the modules)
from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from headway.core import columns as c

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "headway" / "core"

PLAIN_JIT = '''"""Kernels as plain Python, for tests that change their source."""
import struct

import numpy as np

np.seterr(over="ignore")


def kernel(function):
    return function


inner = kernel


def ctz(x):
    bits = int(x) & (2**64 - 1)
    return np.int64((bits & -bits).bit_length() - 1 if bits else 64)


def popcount(x):
    return (int(x) & (2**64 - 1)).bit_count()


def as_float(x):
    return struct.unpack("<d", struct.pack("<q", int(x)))[0]
'''

TABLE = "test_apply: test_the_table_of_transitions({!r}, K.{}, {}, {})"
WRONG = "test_apply: test_what_cannot_be_raises_with_the_sentence_and_the_story({!r})"
CHECK = "test_check: test_each_violation_and_its_neighbour({!r})"
CLAIM = "test_check: test_a_place_is_claimed_by_a_job_that_could_have_it_as_it_is({!r})"
NO_CLAIM = "test_check: test_what_is_no_claim({!r})"
STALE_ENTRY = "test_check: stale_case(lambda d: {}, {})"


def table(where: str, kind: str, after: str, a: int = 0) -> str:
    return TABLE.format(where, kind, a, after)


# module -> (what the guard is, its source, what stands there instead, the case that must fail)
GUARDS: dict[str, list[tuple[str, str, str, str]]] = {
    "apply": [
        ("a report is of the present attempt", "(attempt != J[c.J_ATTEMPT, row] or phase == QUEUED)", "phase == QUEUED",
         "test_apply: test_a_report_of_another_attempt_changes_nothing('running', K.STOPPED, 0)"),
        ("a report is of a job with processes", "(attempt != J[c.J_ATTEMPT, row] or phase == QUEUED)", "attempt != J[c.J_ATTEMPT, row]",
         table("queued", "STOPPED", "STALE")),
        ("usage is a report too", "kind >= K_STARTED and kind <= K_USAGE", "kind >= K_STARTED and kind < K_USAGE",
         "test_apply: test_a_report_of_another_attempt_changes_nothing('running', K.USAGE, 0)"),
        ("only a starting gang comes up", "if phase == STARTING:", "if phase != RUNNING:",
         "test_apply: test_a_gang_that_comes_up_after_it_was_told_to_stop_goes_on_stopping()"),
        ("a gang comes up once", "if phase == STARTING:", "if phase == STARTING or phase == RUNNING:", table("running", "STARTED", "STALE")),
        ("a gang that is up cannot fail to start", "kind == K_START_FAILED and phase == RUNNING", "False",
         table("running", "START_FAILED", "IMPOSSIBLE")),
        ("time does not go back", "if t < C[c.C_NOW]:", "if False:", WRONG.format("time that goes back")),
        ("a job is known", "if row == -1 and slot >= 0:", "if False:", WRONG.format("an event of a job that was never submitted")),
        ("a job beyond the map is unknown", "row = R[slot] if slot >= 0 and slot < R.shape[0] else -1", "row = R[slot % R.shape[0]]",
         WRONG.format("an event of a job beyond the map")),
        ("a stop is of the present attempt", "if attempt != J[c.J_ATTEMPT, row]:\n            return WRONG_ATTEMPT", "if False:\n            return WRONG_ATTEMPT",
         WRONG.format("a stop of another attempt")),
        ("only a waiting job is given a place", "if phase != QUEUED and (phase != STOPPING or J[c.J_FINISHING, row]):", "if False:",
         table("running", "WANTED", "IMPOSSIBLE")),
        ("a job that is to end is given no place", "if phase != QUEUED and (phase != STOPPING or J[c.J_FINISHING, row]):",
         "if phase != QUEUED and phase != STOPPING:", table("finishing", "WANTED", "IMPOSSIBLE")),
        ("a new shape has room before anything is changed", "error = shape_room(J, T, X, C, row, e[c.E_B], servers)", "error = OK",
         "test_apply: test_a_wanted_place_for_which_the_task_table_has_to_grow()"),
        ("a place is given up by one who has it", "if not J[c.J_PLACED, row] or (phase != QUEUED and phase != STOPPING):", "if phase != QUEUED and phase != STOPPING:",
         table("queued", "UNWANTED", "IMPOSSIBLE")),
        ("a running job's place is given up by a stop only", "if not J[c.J_PLACED, row] or (phase != QUEUED and phase != STOPPING):", "if not J[c.J_PLACED, row]:",
         table("running", "UNWANTED", "IMPOSSIBLE")),
        ("a waiting job ends at once, no other", "if phase != QUEUED:\n            return IMPOSSIBLE\n        final", "final", table("running", "FINISHED", "IMPOSSIBLE")),
        ("a cancelled job must stop once", "if J[c.J_MUST_STOP, row] == 0:\n            C[c.C_MUST_STOP] += 1\n        J[c.J_MUST_STOP, row] = R_CANCELLED",
         "C[c.C_MUST_STOP] += 1\n        J[c.J_MUST_STOP, row] = R_CANCELLED",
         "test_apply: test_cancel_of_a_job_with_processes_stops_it('running')"),
        ("a place that is given up is not given up again", "J[c.J_MUST_STOP, row] = 0\n            C[c.C_MUST_STOP] -= 1\n        J[c.J_FINISHING, row] = R_CANCELLED",
         "pass\n        J[c.J_FINISHING, row] = R_CANCELLED",
         "test_apply: test_a_migrating_job_cancelled_at_the_instant_its_new_node_is_lost_just_stops()"),
        ("units do not go back", "if units > J[c.J_UNITS_DONE, row]:", "if units != J[c.J_UNITS_DONE, row]:", "test_apply: test_observations()"),
        ("a loss that was not told is none", "if loss != c.NOTHING:", "if True:", "test_apply: test_observations()"),
        ("a loss that rises is no drop", "drop = min(max(J[c.J_LOSS, row] - loss, 0), DROPS_MAX)", "drop = J[c.J_LOSS, row] - loss", "test_apply: test_observations()"),
        ("an accuracy that was not told is none", "if accuracy != c.NOTHING:", "if True:", "test_apply: test_observations()"),
        ("saved units do not go back", "if units >= J[c.J_UNITS_SAVED, row]:", "if units >= 0:",
         "test_apply: test_saved_units_never_go_back_and_a_stop_falls_back_to_them()"),
        ("usage is of a task that is there", "if task < 0 or task >= J[c.J_HELD_TASKS, row]:", "if False:",
         "test_apply: test_usage_moves_what_is_used_on_the_held_place_and_goes_with_it()"),
        ("no more parameters than there is room for", "min(e[c.E_POOL], F_PARAMS)", "e[c.E_POOL]", "test_apply: test_estimates()"),
        ("a change of a job is marked", "if changed:\n", "if False:\n", STALE_ENTRY.format("d.stop(0)", 0)),
        ("holding a job is a change of it", "J[c.J_HOLD, row] = e[c.E_A]\n        J[c.J_GENERATION, row] = C[c.C_SEQUENCE] + 1", "J[c.J_HOLD, row] = e[c.E_A]",
         "test_check: test_a_user_who_acts_while_the_policy_thinks_does_not_make_its_plan_wrong('held')"),
        ("so is the cancel of one that stops", "J[c.J_FINISHING, row] = R_CANCELLED\n        J[c.J_GENERATION, row] = C[c.C_SEQUENCE] + 1",
         "J[c.J_FINISHING, row] = R_CANCELLED",
         "test_check: test_a_user_who_acts_while_the_policy_thinks_does_not_make_its_plan_wrong('cancelled while it migrates')"),
        ("a queue changes while a job waits only", "if J[c.J_PHASE, row] != QUEUED or J[c.J_PLACED, row]:\n            return IMPOSSIBLE\n        if value", "if value",
         "test_apply: test_no_other_jobs_queue_changes('placed')"),
        ("a new queue is there", "if value < 0 or value >= C[c.C_QUEUES]:", "if False:", "test_apply: test_a_queue_that_there_is_not_is_no_update(-1)"),
        ("the queue that it leaves is told", "Q[c.Q_WAITING, J[c.J_QUEUE, row]] -= 1", "pass", "test_apply: test_a_queue_changes_while_a_job_waits()"),
        ("an estimate is kept", "if J[c.J_ESTIMATED_REMAINING, row] == J[c.J_ESTIMATE, row]:", "if True:", "test_apply: test_updates()"),
        ("nothing else is updated", "elif column != c.J_DEADLINE and column != c.J_URGENCY and column != c.J_TIME_LIMIT:", "elif False:",
         f"test_apply: test_nothing_else_is_updated({c.J_ID})"),
        ("a job that waits fails by its time limit", "final = FAILED if e[c.E_A] == R_TIME_LIMIT else COMPLETED", "final = COMPLETED",
         "test_apply: test_a_finished_or_rejected_job_keeps_the_reason_it_was_given()"),
        ("the fallback's mark ends no row of refusals", "if E[i, c.E_B] == 0:", "if True:", "test_round: test_the_fallback_stays_in_charge()"),
    ],
    "life": [
        ("a number is new", "if job <= C[c.C_LAST_ID]:", "if False:", WRONG.format("a number that is taken")),
        ("a job has room", "if row >= J.shape[1]:", "if False:", "test_apply: test_a_submission_that_does_not_fit_is_applied_once()"),
        ("a number has room", "if job - C[c.C_ID_BASE] >= R.shape[0]:", "if False:", "test_state: test_numbers_may_leave_gaps()"),
        ("tasks have room", "if C[c.C_TASKS] + task_room(J, row) > T.shape[1]:", "if False:", "test_apply: test_a_submission_that_does_not_fit_is_applied_once()"),
        ("edges have room", "if C[c.C_EDGES] + edge_room(J, row) > X.shape[1]:", "if False:", "test_apply: test_a_submission_that_does_not_fit_is_applied_once()"),
        ("another shape's tasks have room", "if C[c.C_TASKS] + data * partitions + servers > T.shape[1]:", "if False:",
         "test_apply: test_a_start_for_which_the_task_table_has_to_grow()"),
        ("another shape's edges have room", "partitions, data, to_servers) > X.shape[1]:", "partitions, data, to_servers) < 0:",
         "test_apply: test_a_start_for_which_the_edge_table_has_to_grow()"),
        ("only a waiting job starts", "if J[c.J_PHASE, row] != QUEUED:\n        return IMPOSSIBLE", "if False:\n        return IMPOSSIBLE",
         table("migrating", "START_REQUESTED", "IMPOSSIBLE")),
        ("a start is the next attempt", "if attempt != J[c.J_ATTEMPT, row] + 1:", "if False:", WRONG.format("a start of the attempt before")),
        ("no process of it is left", "if J[c.J_HELD_TASKS, row]:\n        return ALREADY_HELD", "if False:\n        return ALREADY_HELD",
         "test_apply: test_a_start_while_processes_are_left_is_found()"),
        ("only what runs is stopped", "elif phase != STARTING and phase != RUNNING:", "elif False:", table("queued", "STOP_REQUESTED", "IMPOSSIBLE", 1)),
        ("a stop is changed to an ending one only", "if phase == STOPPING and reason >= R_CANCELLED and reason <= R_TIME_LIMIT:", "if phase == STOPPING:",
         table("stopping", "STOP_REQUESTED", "IMPOSSIBLE", 1)),
        ("an ending stop ends", "if asked and J[c.J_FINISHING, row]:", "if False:",
         "test_apply: test_a_stop_with_an_ending_reason_ends_the_job_when_it_has_stopped(Reason.CANCELLED, Phase.CANCELLED, K.STOPPED, 'running')"),
        ("what was told to stop spends no retry", "failed = not asked and kind != K_STOPPED", "failed = kind != K_STOPPED",
         "test_apply: test_what_was_told_to_stop_spends_no_retry(K.FAILED)"),
        ("a stop spends no retry", "failed = not asked and kind != K_STOPPED", "failed = not asked",
         "test_apply: test_a_stop_that_nobody_asked_for_spends_no_retry()"),
        ("a cancelled job spends no retry", " and J[c.J_MUST_STOP, row] != R_CANCELLED", "",
         "test_apply: test_a_cancelled_job_that_fails_before_it_is_told_is_cancelled_whatever_its_retries()"),
        ("retries are spent", "if J[c.J_RETRIES, row] > J[c.J_RETRY_MAX, row]:", "if False:",
         "test_apply: test_no_retries_means_that_the_first_failure_is_the_end()"),
        ("the back-off stops growing", "min(J[c.J_RETRIES, row] - 1, 5)", "(J[c.J_RETRIES, row] - 1)",
         "test_apply: test_retries_back_off_and_are_spent(K.FAILED, Reason.EXIT_CODE)"),
        ("a migrating job keeps its new place", "if J[c.J_PLACED, row] and not asked:", "if J[c.J_PLACED, row]:",
         "test_apply: test_a_migrating_job_whose_old_node_is_lost_keeps_its_new_place()"),
        ("an attempt that is over gives its place up", "if J[c.J_PLACED, row] and not asked:", "if False:",
         "test_apply: test_a_stop_that_nobody_asked_for_spends_no_retry()"),
        ("a job that was cancelled does not queue again", "if reason == R_CANCELLED:\n            forget", "if False:\n            forget",
         "test_apply: test_a_cancelled_job_that_goes_by_itself_before_it_is_told(K.STOPPED)"),
        ("a new place on a lost node is given up", "if not J[c.J_PLACED, row]:\n            J[c.J_MUST_STOP, row] = 0", "if True:\n            J[c.J_MUST_STOP, row] = 0",
         "test_apply: test_a_migrating_job_that_stops_at_the_instant_its_new_node_is_lost_waits_again()"),
        ("progress that was not told stays", "if units >= 0:", "if True:", "test_apply: test_saved_units_never_go_back_and_a_stop_falls_back_to_them()"),
        ("saved progress does not go back", "max(units, J[c.J_UNITS_SAVED, row])", "units",
         "test_apply: test_saved_units_never_go_back_and_a_stop_falls_back_to_them()"),
        ("only a job that came up is served", "if J[c.J_STARTED_AT, row] >= 0:", "if True:", "test_apply: test_a_job_that_never_came_up_has_got_nothing()"),
        ("the waiting hint goes on", "if row == C[c.C_FIRST_WAITING]:", "if False:", "test_state: test_the_first_waiting_row_under_requeues()"),
        ("the waiting hint goes back", "C[c.C_FIRST_WAITING] = min(C[c.C_FIRST_WAITING], row)", "pass",
         "test_state: test_the_first_waiting_row_under_requeues()"),
        ("a block of an older shape dies", "if first >= 0 and first != J[c.J_TASK0, row]:", "if False:",
         "test_apply: test_a_running_job_keeps_the_block_of_its_old_shape_until_it_has_stopped()"),
        ("a block of the present shape does not", "if first >= 0 and first != J[c.J_TASK0, row]:", "if first >= 0:", table("running", "STOPPED", "Phase.QUEUED")),
        ("a block whose processes run stays", "if J[c.J_HELD_TASKS, row] and J[c.J_HELD_TASK0, row] == J[c.J_TASK0, row]:", "if False:",
         "test_apply: test_a_running_job_keeps_the_block_of_its_old_shape_until_it_has_stopped()"),
        ("who is forgotten need not stop", "if J[c.J_MUST_STOP, row]:\n        J[c.J_MUST_STOP, row] = 0\n        C[c.C_MUST_STOP] -= 1\n    J[c.J_PHASE, row], J[c.J_REASON, row] = phase",
         "J[c.J_PHASE, row], J[c.J_REASON, row] = phase", "test_apply: test_a_cancelled_job_that_goes_by_itself_before_it_is_told(K.COMPLETED)"),
        ("who is stopped need not be told again", "if J[c.J_MUST_STOP, row]:\n        J[c.J_MUST_STOP, row] = 0\n        C[c.C_MUST_STOP] -= 1\n    if J[c.J_PLACED",
         "if J[c.J_PLACED", "test_apply: test_cancel_of_a_job_with_processes_stops_it('running')"),
        ("what is below a millisecond counts", "return (dt // 1000) * milli + ((dt % 1000) * milli) // 1000", "return (dt // 1000) * milli",
         "test_apply: test_waiting_run_and_attained_by_hand()"),
    ],
    "booking": [
        ("a gang is placed whole", "if size != c.PLACE * tasks:", "if False:", WRONG.format("a gang that is too large")),
        ("cpus are not over-booked", "if N[c.N_CPU, node] > N[c.N_CPU_MAX, node]:", "if False:", WRONG.format("cpus that are taken")),
        ("memory is not over-booked", "if N[c.N_MEM, node] > N[c.N_MEM_MAX, node]:", "if False:", WRONG.format("memory that is taken")),
        ("the node has the GPU", "if bit >= N[c.N_GPUS, node]:", "if False:", WRONG.format("a GPU that the node does not have")),
        ("a GPU is not over-booked", "if G[c.G_BOOKED, g] > c.WHOLE:", "if False:", WRONG.format("a GPU that is taken")),
        ("cpus and memory are not given back twice", "if N[c.N_CPU, node] < 0 or N[c.N_MEM, node] < 0:", "if False:", "test_guards: given_back('N', c.N_CPU)"),
        ("a booking is not given back twice", "if G[c.G_BOOKED, g] < 0 or G[c.G_TASKS, g] < 0:", "if False:", "test_guards: given_back('G', c.G_BOOKED)"),
        ("a task on a GPU is not given back twice", "if G[c.G_BOOKED, g] < 0 or G[c.G_TASKS, g] < 0:", "if G[c.G_BOOKED, g] < 0:",
         "test_guards: given_back('G', c.G_TASKS)"),
        ("held cpus and memory are there", "if N[c.N_HELD_CPU, node] > N[c.N_CPU_MAX, node] or N[c.N_HELD_MEM, node] > N[c.N_MEM_MAX, node]:", "if False:",
         WRONG.format("held cpus")),
        ("held memory is there", "if N[c.N_HELD_CPU, node] > N[c.N_CPU_MAX, node] or N[c.N_HELD_MEM, node] > N[c.N_MEM_MAX, node]:",
         "if N[c.N_HELD_CPU, node] > N[c.N_CPU_MAX, node]:", WRONG.format("held memory")),
        ("a GPU is not held twice", "if G[c.G_HELD, g] > c.WHOLE:", "if False:", WRONG.format("a held GPU")),
        ("what is held on a node is not given back twice", "if N[c.N_HELD_CPU, node] < 0 or N[c.N_HELD_MEM, node] < 0:", "if False:",
         "test_guards: given_back('N', c.N_HELD_MEM)"),
        ("a hold is not given back twice", "if G[c.G_HELD, g] < 0 or G[c.G_HELD_TASKS, g] < 0:", "if False:", "test_guards: given_back('G', c.G_HELD)"),
        ("a GPU that another still holds stays held", "if G[c.G_HELD_TASKS, g] == 0:", "if True:", "test_apply: test_two_jobs_on_one_gpu()"),
        ("a GPU that another still wants is not free", "if G[c.G_TASKS, g] == 0:", "if True:", "test_apply: test_two_jobs_on_one_gpu()"),
        ("nothing starts on a lost node", "if N[c.N_PHASE, node] == DOWN:", "if False:", "test_apply: test_nothing_starts_on_a_lost_node()"),
        ("held cpus and memory stand in the way",
         "fits = N[c.N_HELD_CPU, node] <= N[c.N_CPU_MAX, node] and N[c.N_HELD_MEM, node] <= N[c.N_MEM_MAX, node]", "fits = True",
         "test_diff: test_pending_starts_compete_in_settle_by_job_number()"),
        ("a held GPU stands in the way", "fits = fits and G[c.G_HELD, g] <= c.WHOLE", "pass",
         "test_diff: test_a_place_that_is_being_freed_belongs_to_the_job_it_is_freed_for()"),
        ("what was tried is given back", "G[c.G_HELD, g] -= T[c.T_BOOK, t]", "pass", "test_diff: test_settle_gives_back_what_it_borrowed()"),
    ],
    "check": [
        ("a job's change is noticed", "stale = J[c.J_GENERATION, row] > seen", "stale = False", STALE_ENTRY.format("d.report(K.STOPPED, 0)", 0)),
        ("a node's change is noticed", "N[c.N_GENERATION, node] > seen", "False", STALE_ENTRY.format("d.emit(K.NODE_DOWN, 1)", 3)),
        ("a job's end is noticed", "stale = row < 0 and C[c.C_SEQUENCE] > seen", "stale = False", STALE_ENTRY.format("d.emit(K.CANCEL_REQUESTED, 5)", 5)),
        ("rows are looked up anew", "O[i, c.O_ROW] = row\n", "pass\n", "test_check: test_rows_are_looked_up_anew()"),
        ("the job is there", "if row < 0:\n        return V_ENDED", "if False:\n        return V_ENDED", CHECK.format("a job that is unknown")),
        ("only a place that is there is released", "return V_OK if J[c.J_PLACED, row] else V_NOT_PLACED", "return V_OK", CHECK.format("a place that is not there to release")),
        ("only an allowed rule", "return V_OK if rule == J[c.J_STOP_RULE, row] or (J[c.J_STOP_ALLOW, row] >> rule) & 1 else V_RULE", "return V_OK",
         CHECK.format("a stop rule that is not allowed")),
        ("only an operation that is there", "if op != OP_PLACE:\n        return V_OP", "if False:\n        return V_OP", CHECK.format("an operation that is not there")),
        ("a release is no move", "if O[i, c.O_REASON] == R_MIGRATED or O[i, c.O_REASON] == R_RESIZED:", "if False:", CHECK.format("a release for a migration")),
        ("who is to end gets no place", "if J[c.J_FINISHING, row] or J[c.J_MUST_STOP, row]:", "if J[c.J_MUST_STOP, row]:",
         CHECK.format("a place for a job that is finishing")),
        ("who must stop gets no place", "if J[c.J_FINISHING, row] or J[c.J_MUST_STOP, row]:", "if J[c.J_FINISHING, row]:",
         CHECK.format("a place for a job that must stop")),
        ("no more servers than allowed", "if servers > max(J[c.J_SERVERS, row], J[c.J_SERVERS_MAX, row]):", "if False:",
         CHECK.format("more servers than allowed")),
        ("only its own draining node", " or T[c.T_NODE, J[c.J_TASK0, row] + k] != node:", ":", CHECK.format("another draining node for a placed job")),
        ("a held job waits", "if J[c.J_HOLD, row] and not J[c.J_PLACED, row]:", "if False:", CHECK.format("a job that its user holds")),
        ("a placed job is not held", "if J[c.J_HOLD, row] and not J[c.J_PLACED, row]:", "if J[c.J_HOLD, row]:", CHECK.format("a job that its user holds")),
        ("a shape is not too small", "data < J[c.J_DATA_MIN, row] or ", "", CHECK.format("fewer replicas than allowed")),
        ("a shape is not too large", "data > J[c.J_DATA_MAX, row] or ", "", CHECK.format("more replicas than allowed")),
        ("a gang is whole", "if O[i, c.O_TASKS] != workers + servers:", "if False:", CHECK.format("half a gang")),
        ("the node is there", "if node < 0 or node >= C[c.C_NODES]:", "if False:", CHECK.format("a node beyond the last")),
        ("a server has no GPU", "if mask != 0:\n                return V_BAD_GPU", "if False:\n                return V_BAD_GPU", CHECK.format("a server on a GPU")),
        ("the GPU is there", "if N[c.N_GPUS, node] < 64 and mask >> N[c.N_GPUS, node] != 0:", "if False:", CHECK.format("a GPU that the node does not have")),
        ("as many GPUs as asked for", "return V_BAD_GPU if gpus != need else V_KIND", "return V_KIND", CHECK.format("too few GPUs")),
        ("the kind is asked for", "(gpus and not (kinds >> N[c.N_KIND, node]) & 1)", "False", CHECK.format("a kind that is not asked for")),
        ("the kind is among the alternatives", "if not (J[c.J_ALT_MASK, row] >> N[c.N_KIND, node]) & 1:", "if False:",
         CHECK.format("a kind that is not among the alternatives")),
        ("as many as the alternative asks for", "if other == 0 or gpus != other:", "if other == 0:", CHECK.format("another number than the alternative")),
        ("the share that was asked for", "if milli != demand:", "if False:", CHECK.format("another share than asked for")),
        ("an engine that cannot share", "if not fractions:", "if False:", "test_check: test_an_engine_without_fractions()"),
        ("a job that does not share", "if not J[c.J_SHARE, row]:", "if False:", CHECK.format("a whole GPU for a job that does not share and asks for a part")),
        ("an engine that wants even gangs", "return V_OK if uneven or is_even(OT, O[i, c.O_TASK0], workers) else V_UNEVEN", "return V_OK",
         "test_check: test_an_engine_without_uneven_gangs([0, 0, 0, 1], False)"),
        ("a job is named once", "if not bad and moves and seen[row]:", "if False:", CHECK.format("a job twice")),
        ("a reason beside a place is no second time", "if not bad and moves and seen[row]:", "if not bad and seen[row]:", CHECK.format("a job twice")),
        ("a queue's limit", "Q[c.Q_BOOKED, J[c.J_QUEUE, row]] + dQ[J[c.J_QUEUE, row]] > Q[c.Q_LIMIT, J[c.J_QUEUE, row]]:", "False:", CHECK.format("a queue's limit")),
        ("a queue that shrinks", " and dQ[J[c.J_QUEUE, row]] > 0:", ":", "test_check: test_an_over_full_queue_may_shrink_and_keep_but_not_grow()"),
        ("a place that is claimed", "borrows_from_claim(O, i, OT, J, N, Q, C, dQ, seen):", "False:", CHECK.format("a place that another queue claims")),
        ("one for one is no borrowing", "if quotas and more and dQ[J[c.J_QUEUE, row]] > 0 and", "if quotas and more and", NO_CLAIM.format("one for one")),
        ("a move is no borrowing", "more = not J[c.J_PLACED, row] or O[i, c.O_DATA] > J[c.J_DATA, row]", "more = True",
         "test_check: test_a_move_borrows_nothing_and_growing_does()"),
        ("growing is borrowing", "more = not J[c.J_PLACED, row] or O[i, c.O_DATA] > J[c.J_DATA, row]", "more = not J[c.J_PLACED, row]",
         "test_check: test_a_move_borrows_nothing_and_growing_does()"),
        ("a queue without a quota has a quota of none", "max(Q[c.Q_QUOTA, queue], 0)", "Q[c.Q_QUOTA, queue] * 0 + c.NEVER",
         "test_check: test_a_move_borrows_nothing_and_growing_does()"),
        ("a held job claims nothing", "able = J[c.J_HOLD, other] == 0 and J[c.J_GPUS, other] > 0", "able = J[c.J_GPUS, other] > 0", NO_CLAIM.format("held")),
        ("who is placed with it claims nothing", " or seen[other]:", ":", NO_CLAIM.format("placed with it")),
        ("the first of a queue claims", "J[c.J_PRIORITY, other] > J[c.J_PRIORITY, first]", "False", NO_CLAIM.format("behind a gang")),
        ("within the quota", "if after <= Q[c.Q_QUOTA, q] and (", "if (", "test_check: test_a_claim_of_more_than_the_quota()"),
        ("within the limit", "(Q[c.Q_LIMIT, q] < 0 or after <= Q[c.Q_LIMIT, q])", "True", NO_CLAIM.format("over its limit")),
        ("as many tasks", "J[c.J_WORKERS, one] <= workers and ", "", CLAIM.format("a gang")),
        ("as many GPUs", "J[c.J_GPU_TASK, one] <= J[c.J_GPU_TASK, other] and ", "", CLAIM.format("more GPUs")),
        ("a kind that it may use", " and kinds & ~J[c.J_KIND_MASK, one] == 0", "", CLAIM.format("another kind")),
        ("as many cpus", "J[c.J_CPU_TASK, one] <= J[c.J_CPU_TASK, other] and ", "", CLAIM.format("more cpus")),
        ("as much memory", " and J[c.J_MEM_TASK, one] <= J[c.J_MEM_TASK, other])", ")", CLAIM.format("more memory")),
        ("servers need a place too", "        or J[c.J_SERVERS, one]\n", "", CLAIM.format("with a server")),
        ("shares are not whole", "        or J[c.J_SHARE, one]\n", "", CLAIM.format("shares")),
        ("a node's cpus", "if dN[0, node] > 0 and N[c.N_CPU, node] + dN[0, node] > N[c.N_CPU_MAX, node]:", "if False:", CHECK.format("cpus")),
        ("a node's memory", "if dN[1, node] > 0 and N[c.N_MEM, node] + dN[1, node] > N[c.N_MEM_MAX, node]:", "if False:", CHECK.format("memory")),
        ("a GPU", "if G[c.G_BOOKED, g] + dG[0, g] > limit:", "if False:", CHECK.format("a GPU that is wanted already")),
        ("the share limit", "limit = c.WHOLE if G[c.G_TASKS, g] + dG[1, g] <= 1 else C[c.C_SHARE_LIMIT]", "limit = c.WHOLE", CHECK.format("shares over the limit")),
        ("what the plan gives back counts", "add_place(-1, T[c.T_NODE, t]", "add_place(0, T[c.T_NODE, t]", CHECK.format("a GPU whose job is not released")),
        ("differences are cleared", "clear_differences(O, i, OT, J, T, N, dG, dN, dQ, seen)\n    return bad", "pass\n    return bad", CHECK.format("a job twice")),
        ("a server's demand", "return J[c.J_SERVER_CPU, row], J[c.J_SERVER_MEM, row]", "return 0, 0", CHECK.format("cpus of one server more")),
    ],
    "diff": [
        ("the same node", "if T[c.T_NODE, t] != OT[o, 0] or ", "if ", "test_diff: test_a_job_with_processes_that_gets_another_place_is_stopped_for_it('running')"),
        ("the same GPUs", "T[c.T_MASK, t] != OT[o, 1] or ", "", "test_diff: test_another_gpu_on_the_same_node_and_another_share_are_other_places()"),
        ("the same share", " or T[c.T_BOOK, t] != OT[o, 2]", "", "test_diff: test_another_gpu_on_the_same_node_and_another_share_are_other_places()"),
        ("a place that is the same is kept", " and not same_place(O, i, OT, J, T, row)", "", "test_diff: test_the_same_place_again_is_nothing()"),
        ("a wanted place that is the same is kept", " or (J[c.J_PLACED, row] and same_place(O, i, OT, J, T, row)):", ":",
         "test_diff: test_the_same_place_again_is_nothing()"),
        ("held cpus and memory stand in the way",
         "fits = N[c.N_HELD_CPU, node] <= N[c.N_CPU_MAX, node] and N[c.N_HELD_MEM, node] <= N[c.N_MEM_MAX, node]", "pass",
         "test_diff: test_jobs_of_a_plan_compete_for_what_is_still_held()"),
        ("a held GPU stands in the way", "fits = fits and G[c.G_HELD, g] <= c.WHOLE", "pass",
         "test_diff: test_a_place_that_is_being_freed_belongs_to_the_job_it_is_freed_for()"),
        ("what did not fit is given back", "take_held(O, i, OT, J, T, N, G, row, done)", "pass", "test_diff: test_a_gang_counts_against_itself()"),
        ("what was tried is given back", "take_held(O, i, OT, J, T, N, G, O[i, c.O_ROW], O[i, c.O_TASKS])", "pass",
         "test_diff: test_a_free_place_is_started_at_once()"),
        ("a released job that runs is stopped", "K_STOP if runs else K_UNWANTED, job", "K_UNWANTED, job", "test_diff: test_release_in_each_phase()"),
        ("a rule in force is not set again", " and J[c.J_RULE_IN_FORCE, row] != O[i, c.O_A]", "", "test_plan: test_finish_and_rule_end_to_end()"),
        ("a reason with places is always news", "if news or O[i, c.O_TASKS]:", "if news:",
         "test_diff: test_a_reason_may_carry_the_places_of_an_incomplete_gang()"),
        ("the round mark stands where something moved", "if moved:\n", "if True:\n", "test_diff: test_the_round_mark_counts_the_overrides_and_stands_only_where_something_moved()"),
        ("a job that must go is stopped if it runs", "kind = K_STOP if runs else K_UNWANTED", "kind = K_UNWANTED",
         "test_apply: test_a_lost_node_stops_the_jobs_on_it('running')"),
        ("a job that must go gives its place up", "kind = K_STOP if runs else K_UNWANTED", "kind = K_STOP",
         "test_apply: test_a_placed_job_gives_its_place_on_a_lost_node_up_and_goes_on_waiting()"),
        ("a job that must go does not start", "or J[c.J_MUST_STOP, row] or not can_start(J, T, N, G, row)", "or not can_start(J, T, N, G, row)",
         "test_apply: test_a_wanted_place_whose_node_was_lost_is_given_up_though_it_is_back()"),
        ("only what can start starts", " or not can_start(J, T, N, G, row)", "", "test_diff: test_a_place_that_is_being_freed_belongs_to_the_job_it_is_freed_for()"),
        ("pending starts compete", "borrow(1, row, J, T, N, G)", "pass", "test_diff: test_pending_starts_compete_in_settle_by_job_number()"),
        ("what was borrowed is given back", "borrow(-1, row, J, T, N, G)", "pass", "test_diff: test_settle_gives_back_what_it_borrowed()"),
        ("only a starting job gives back", "in_starts(E, starts, n, J[c.J_ID, row])", "True", "test_diff: test_pending_starts_compete_in_settle_by_job_number()"),
    ],
    "round": [
        ("overrides go by job number", 'np.argsort(plan.overrides[:, c.O_ROW], kind="stable")', "np.arange(count)",
         "test_diff: test_stops_come_before_starts_each_by_job_number()"),
        ("a plan made on an older state", "if count and plan.seen != state.C.item(c.C_SEQUENCE):", "if False:", STALE_ENTRY.format("d.report(K.STOPPED, 0)", 0)),
        ("the fallback takes over", "state.C.item(c.C_REFUSED_IN_ROW) < REFUSALS_MAX", "True", "test_round: test_three_refusals_in_a_row_put_the_fallback_in_charge()"),
        ("a guarded policy's teacher decides", "return InCharge.TEACHER\n    return", "pass\n    return",
         "test_taught: test_under_the_guard_the_policy_is_not_asked_and_another_policy_is_not_guarded()"),
        ("the guard is of one policy", " and C.item(c.C_GUARD_OF) == mark_of(brains.policy)", "",
         "test_taught: test_under_the_guard_the_policy_is_not_asked_and_another_policy_is_not_guarded()"),
        ("probation ends", "good or now_us - C.item(c.C_REFUSED_AT) >= PROBATION_US", "good",
         "test_taught: test_after_three_in_a_row_the_policy_is_on_probation_and_comes_back()"),
        ("a teacher's plan is checked", "covered = fault is None and violation is not None", "covered = violation is not None",
         "test_taught: test_where_the_teacher_fails_too_keep_decides()"),
        ("strict raises", "if strict:", "if False:", "test_round: test_strict_lets_the_policys_exception_through()"),
        ("a policy that raises is refused", "if strict:", "if True:", "test_round: test_a_policy_that_fails_counts_as_refused(raises, 'scripted raised Zero')"),
        ("the keep policy's plan is checked", "if fault is not None:", "if False:", "test_round: test_a_keep_policy_whose_own_plan_does_not_hold_is_our_error()"),
        ("a refused round leaves no mark", "without_round(diff(state, kept, now_us))", "diff(state, kept, now_us)",
         "test_round: test_a_refused_plan_is_journalled_and_the_keep_policy_decides_that_round()"),
        ("a wake that is over", "return event_us if wake_us <= last_us else due", "return due", "test_round: test_when_the_next_round_is_due(0, 60, 80, 60, 80)"),
        ("never", "if due >= c.NEVER:", "if False:", "test_round: test_when_the_next_round_is_due(R, -1, NEVER, NEVER, NEVER)"),
        ("a round after the last", "max(grid, (last_us // interval_us + 1) * interval_us)", "grid", "test_round: test_when_the_next_round_is_due(R, 60, NEVER, 60, 120)"),
    ],
    "reconcile": [
        ("a waiting job has nothing to be told", "if phase == Phase.QUEUED:\n            continue", "if False:\n            continue",
         "test_reconcile: test_what_is_believed_against_what_is_found('queued', 'nothing')"),
        ("an older attempt is not the one", "seen is None or seen.attempt != attempt", "seen is None",
         "test_reconcile: test_what_is_believed_against_what_is_found('running', 'an older attempt that runs')"),
        ("a newer attempt is not the one either", "seen is None or seen.attempt != attempt", "seen is None or seen.attempt < attempt",
         "test_reconcile: test_a_newer_attempt_than_the_believed_one(False)"),
        ("only a gang that is up has started", "if phase == Phase.STARTING and seen.up:", "if phase == Phase.STARTING:",
         "test_reconcile: test_what_is_believed_against_what_is_found('starting', 'it runs and is not up yet')"),
        ("only a starting gang starts", "if phase == Phase.STARTING and seen.up:", "if seen.up:",
         "test_reconcile: test_what_is_believed_against_what_is_found('running', 'it runs and is up')"),
        ("what runs of an ended job is an orphan", "row is None or ", "",
         "test_reconcile: test_orphans_run_but_are_not_what_is_wanted(0, 1, True, True)"),
        ("what runs of a waiting job is an orphan", "in (Phase.QUEUED, Phase.STOPPING)", "in (Phase.STOPPING,)",
         "test_reconcile: test_what_is_believed_against_what_is_found('queued', 'it runs and is up')"),
        ("what still runs of a stopping job is told again", "in (Phase.QUEUED, Phase.STOPPING)", "in (Phase.QUEUED,)",
         "test_reconcile: test_a_stopping_job_that_still_runs_is_told_again('migrating')"),
        ("an older attempt that runs is an orphan", " or state.J[c.J_ATTEMPT, row] != found.attempt", "",
         "test_reconcile: test_what_is_believed_against_what_is_found('running', 'an older attempt that runs')"),
        ("only what runs is an orphan", "if f.runs and _must_stop(state, f)", "if _must_stop(state, f)",
         "test_reconcile: test_orphans_run_but_are_not_what_is_wanted(7, 1, False, False)"),
    ],
    "state": [
        ("a kind that is there", " and int(records[first, c.E_KIND]) in CLUSTER_KINDS", "", "test_apply: test_a_kind_that_is_not_there_is_an_invariant_too(0)"),
        ("a stopping job is left to stop", "if phase == Phase.STOPPING and row not in wanted:", "if False:",
         "test_apply: test_a_stopping_job_on_a_lost_node_is_left_to_stop()"),
        ("a migrating job whose new node is lost is not", "if phase == Phase.STOPPING and row not in wanted:", "if phase == Phase.STOPPING:",
         "test_apply: test_a_migrating_job_gives_up_the_place_on_a_lost_node_but_not_its_stop()"),
        ("a job must stop once", "if self.J[c.J_MUST_STOP, row] == 0:", "if True:", "test_apply: test_a_cancelled_job_on_a_lost_node_is_cancelled_in_either_order()"),
        ("a node leaves its bucket once", "if before != phase and before == NodePhase.UP:", "if before != phase:",
         "test_apply: test_draining_leaves_the_jobs_alone_and_takes_the_node_out_of_the_buckets()"),
        ("a node enters its bucket once", "if before != phase and phase == NodePhase.UP:", "if phase == NodePhase.UP:",
         "test_apply: test_draining_leaves_the_jobs_alone_and_takes_the_node_out_of_the_buckets()"),
        ("a copy has room for all queues", "twin.scratch.queues, twin.scratch.planned = np.zeros((2, twin.Q.shape[1]), np.int64)", "pass", "test_state: test_a_copy_has_room_for_all_queues()"),
        ("dead rows leave", "if dead > 256 and 2 * dead > C.item(c.C_ROWS):", "if False:", "test_state: test_dead_rows_leave_a_roomy_table_too()"),
        ("dead tasks leave", " or 2 * C[c.C_DEAD_TASKS] > C[c.C_TASKS]", "", "test_state: test_resizes_do_not_make_the_task_table_grow_for_ever()"),
        ("numbers are forgotten only below the oldest", "if drop > len(self.R) // 2:", "if True:", "test_state: test_the_map_of_numbers_doubles_while_an_old_job_lives()"),
    ],
    "codec": [
        ("a body has its length", "len(body) < size or ", "", "test_guards: short_body_with_its_own_checksum()"),
        ("a body has its checksum", " or _checksum(line[:-1], body) != checksum", "", "test_codec: test_a_flipped_bit_in_a_body_is_found()"),
        ("the magic word", "if magic != MAGIC.encode():", "if False:", "test_codec: test_what_is_not_a_journal(b'{\"magic\": \"other\"}\\n')"),
        ("a newer version", "if schema > SCHEMA:", "if False:", "test_codec: test_a_newer_journal_is_refused_with_one_clear_line()"),
    ],
}  # fmt: skip


# -- cases that no other file has ------------------------------------------------------------------------------------
def stale_case(happens: object, job: int) -> None:
    from tests.core import test_check

    test_check.test_an_entry_that_went_stale_is_dropped_alone(happens, job)  # type: ignore[arg-type]


def given_back(table: str, column: int) -> None:
    """A job ends whose booking has been taken off the books already."""
    from tests.core.test_apply import desk_with

    from headway.core.columns import EventKind
    from headway.core.state import InvariantError

    desk = desk_with("running")
    desk.audited = False
    getattr(desk.state, table)[column, 0] = 0
    with pytest.raises(InvariantError, match="given back twice"):
        desk.report(EventKind.COMPLETED, 0)


def short_body_with_its_own_checksum() -> None:
    import io

    from tests.core.test_codec import numbered, segment

    from headway.core.codec import encode, read

    header, body = encode(numbered(0, 3)).split(b"\n", 1)
    _, trouble = read(io.BytesIO(segment(json.loads(header.split(b" ", 2)[2]), body[:-8])))
    assert trouble is not None


CASES = (stale_case, given_back, short_body_with_its_own_checksum)


# -- running them ----------------------------------------------------------------------------------------------------
CASE_S_MAX = 15
"""A mutant may go round in circles; one that takes so long has failed."""


def mutate(module: ModuleType, source: str) -> None:
    """Give the functions of an imported module the code that they have in another source; who has imported them has the new code too."""
    changed: dict[str, Any] = {"__name__": module.__name__}
    different = 0
    exec(compile(source, f"mutated {module.__name__}", "exec"), changed)
    for name, new in changed.items():
        old = getattr(module, name, None)
        if isinstance(new, type) and new.__module__ == module.__name__:
            for attribute, function in vars(new).items():
                if isinstance(function, FunctionType) and attribute in vars(old):
                    different += vars(old)[attribute].__code__ != function.__code__
                    vars(old)[attribute].__code__ = function.__code__
        elif isinstance(new, FunctionType) and new.__module__ == module.__name__:
            different += old.__code__ != new.__code__  # type: ignore[union-attr]
            old.__code__ = new.__code__  # type: ignore[union-attr]
    assert different, "nothing has been changed"


def run_case(case: str) -> None:
    """Run `module: expression`, with the names of that test module and of the cases above."""
    name, _, call = case.partition(": ")
    scope = dict(vars(importlib.import_module(f"tests.core.{name}"))) if name != "test_guards" else {}
    scope["c"] = importlib.import_module("headway.core.columns")
    scope |= {own.__name__: own for own in CASES}
    eval(call, scope)


def launched(case: str, module: str, source: str) -> tuple[int, int]:
    """A process that runs a case on a mutant, and where it will say how that went."""
    end, begin = os.pipe()
    child = os.fork()
    if child:
        os.close(begin)
        return child, end
    os.close(end)
    signal.alarm(CASE_S_MAX)
    passed, words = True, "it could not be changed"
    try:
        mutate(importlib.import_module(f"headway.core.{module}"), source)
        words = ""
        run_case(case)
    except BaseException:
        passed, words = words != "", traceback.format_exc()[-1500:]
    os.write(begin, json.dumps([passed, words]).encode())
    os._exit(0)


def outcomes(runs: Sequence[tuple[str, str, str]]) -> list[tuple[bool, str]]:
    """Whether each (case, module, source) passes, and its last words; as many at a time as there are processors."""
    found: list[tuple[bool, str]] = []
    going: list[tuple[int, int]] = []
    for at in range(len(runs) + (os.cpu_count() or 1)):
        if at < len(runs):
            going.append(launched(*runs[at]))
        if len(going) > (os.cpu_count() or 1) - 1 or (at >= len(runs) and going):
            child, end = going.pop(0)
            with os.fdopen(end, "rb") as stream:
                answer = stream.read()
            os.waitpid(child, 0)
            found.append(tuple(json.loads(answer)) if answer else (False, "the process died, or took too long"))
    return found


def main(core: Path) -> None:
    """Run every case on the sound copy and on its mutants; print what is wrong as JSON."""
    wrong: list[str] = []
    cases = sorted({case for guards in GUARDS.values() for *_, case in guards})
    for case in cases:
        try:
            run_case(case)
        except (Exception, pytest.fail.Exception):
            wrong.append(f"fails without any change: {case}\n{traceback.format_exc()[-1500:]}")
    sources = {module: (core / f"{module}.py").read_text("utf-8") for module in GUARDS}
    mutants = [(module, *guard) for module, guards in GUARDS.items() for guard in guards]
    runs = [(case, module, sources[module].replace(old, new)) for module, _, old, new, case in mutants]
    for (module, what, _, _, case), (passed, words) in zip(mutants, outcomes(runs), strict=False):
        if passed:
            wrong.append(f"nothing fails without this guard: {module}: {what} ({case}) {words}")
    print(json.dumps(wrong))


@pytest.mark.parametrize("module", GUARDS)
def test_every_guard_is_where_the_list_says(module: str) -> None:
    source = (CORE / f"{module}.py").read_text("utf-8")
    for what, old, new, _ in GUARDS[module]:
        assert source.count(old) == 1, f"{what}: {source.count(old)} × {old!r}"
        compile(source.replace(old, new), what, "exec")


@pytest.mark.slow
def test_for_each_guard_there_is_a_case_that_fails_without_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "headway", tmp_path / "headway", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "headway" / "core" / "jit.py").write_text(PLAIN_JIT, "utf-8")
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "headway" / "core")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrong: Sequence[str] = json.loads(done.stdout)
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
