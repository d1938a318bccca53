"""The slow simulator against cases worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from .model import Place
from .slow_sim import Entry, Fault, Job, Node, simulate

# Places of one task with one GPU on node 0.
GPU0: Place = ((0, 0, (0,)),)


def one_gpu(number: int, submit_s: int, work_s: int, **more: Any) -> Job:
    return Job(number, submit_s, work_s, 1, 1, **more)


def wide(number: int, submit_s: int, work_s: int, gpus: int, **more: Any) -> Job:
    """One task with several GPUs."""
    return Job(number, submit_s, work_s, 1, gpus, **more)


def spans(journal: list[Entry], number: int) -> list[tuple[int, int]]:
    """The (started, stopped or completed) times of a job."""
    starts = [e[0] for e in journal if e[1] == "started" and e[2] == number]
    ends = [e[0] for e in journal if e[1] in ("stopped", "completed") and e[2] == number]
    return list(zip(starts, ends, strict=True))


def places_given(journal: list[Entry], number: int) -> list[Place]:
    return [e[4] for e in journal if e[1] == "start-requested" and e[2] == number]


# Queues without preemption.


def test_fifo_head_blocks_the_queue() -> None:
    # Two GPUs. Job 1 takes one until 10. Job 2 wants both, so it waits until 10, and job 3, which would fit
    # beside job 1, is blocked by it until job 2 is done at 15.
    jobs = [one_gpu(1, 0, 10), wide(2, 1, 5, 2), one_gpu(3, 2, 3)]
    assert simulate(jobs, [Node(0, 2)], "fifo") == [
        (0, "submitted", 1, 0, ()),
        (0, "start-requested", 1, 1, GPU0),
        (0, "started", 1, 1, ()),
        (1, "submitted", 2, 0, ()),
        (2, "submitted", 3, 0, ()),
        (10, "completed", 1, 1, ()),
        (10, "start-requested", 2, 1, ((0, 0, (0, 1)),)),
        (10, "started", 2, 1, ()),
        (15, "completed", 2, 1, ()),
        (15, "start-requested", 3, 1, GPU0),
        (15, "started", 3, 1, ()),
        (18, "completed", 3, 1, ()),
    ]


def test_rounds_take_place_at_multiples_of_the_interval() -> None:
    # Rounds at 0, 4, 8, ...: job 1 comes at 1 and waits until 4; its GPU is free at 7, used again at 8.
    journal = simulate([one_gpu(1, 1, 3), one_gpu(2, 2, 1)], [Node(0, 1)], "fifo", round_s=4)
    assert spans(journal, 1) == [(4, 7)]
    assert spans(journal, 2) == [(8, 9)]


def test_fifo_blocks_only_jobs_that_could_use_the_same_kind() -> None:
    # Kind a has one GPU, kind b one. Job 2 is blocked on a. Job 3 (b) and job 4 (no GPU) go on; job 5 (any
    # kind) could use a GPU of kind a, so it is blocked although b's GPU is free again at 3.
    nodes = [Node(0, 1, 1000, kind="a"), Node(1, 1, 1000, kind="b")]
    jobs = [
        Job(1, 0, 9, 1, 1, kind="a"),
        Job(2, 1, 2, 1, 1, kind="a"),
        Job(3, 1, 2, 1, 1, kind="b"),
        Job(4, 1, 2, 1, 0, cpus_milli=1000),
        Job(5, 1, 2, 1, 1),
    ]
    journal = simulate(jobs, nodes, "fifo")
    assert [spans(journal, n)[0][0] for n in (1, 2, 3, 4, 5)] == [0, 9, 1, 1, 9]
    assert places_given(journal, 5) == [((0, 1, (0,)),)]


def test_higher_priority_ranks_first() -> None:
    jobs = [one_gpu(1, 0, 5), one_gpu(2, 0, 5, priority=60)]
    journal = simulate(jobs, [Node(0, 1)], "fifo")
    assert spans(journal, 2) == [(0, 5)]
    assert spans(journal, 1) == [(5, 10)]


def test_too_large_a_job_is_rejected_at_once() -> None:
    # Two nodes of two GPUs: a task of three GPUs fits nowhere, a gang of two times two does.
    jobs = [wide(1, 3, 5, 3), Job(2, 3, 5, 2, 2)]
    assert simulate(jobs, [Node(0, 2), Node(1, 2)], "fifo")[:4] == [
        (3, "submitted", 1, 0, ()),
        (3, "rejected", 1, 0, ()),
        (3, "submitted", 2, 0, ()),
        (3, "start-requested", 2, 1, ((0, 0, (0, 1)), (1, 1, (0, 1)))),
    ]


def test_backfill_may_not_delay_the_head() -> None:
    # Four GPUs. Job 1 holds 0 and 1 until 10. The head, job 2, needs all four: shadow time 10, all
    # reserved. Job 3 comes at 2. With an estimate of 8 it ends at 10 and may run; with 9 it would end at 11
    # and may not.
    for estimate, start in [(8, 2), (9, 15)]:
        jobs = [wide(1, 0, 10, 2), wide(2, 1, 5, 4), wide(3, 2, 8, 2, estimate_s=estimate)]
        journal = simulate(jobs, [Node(0, 4)], "fifo-backfill", {"depth": 5})
        assert spans(journal, 2) == [(10, 15)]
        assert spans(journal, 3)[0][0] == start


def test_backfill_beside_the_reservation() -> None:
    # Job 1 holds GPUs 0 and 1 until 10; the head needs three. When job 1 has left, all four are free, and
    # the head's are the lowest: 0, 1, 2. GPU 3 is not reserved, so the long job 3 takes it at once. Job 4
    # would need a reserved GPU for longer than until 10, so it waits; job 5 ends in time and takes GPU 2.
    jobs = [
        wide(1, 0, 10, 2),
        wide(2, 1, 5, 3),
        one_gpu(3, 2, 100),
        one_gpu(4, 3, 100),
        one_gpu(5, 4, 6),
    ]
    journal = simulate(jobs, [Node(0, 4)], "fifo-backfill", {"depth": 5})
    assert places_given(journal, 3) == [((0, 0, (3,)),)]
    assert spans(journal, 3)[0][0] == 2
    assert spans(journal, 5) == [(4, 10)]
    assert places_given(journal, 5) == [((0, 0, (2,)),)]
    assert spans(journal, 2) == [(10, 15)]
    assert spans(journal, 4)[0][0] == 15


def test_backfill_looks_at_depth_jobs_only() -> None:
    # Jobs 3 and 4 stand behind the head. Job 3 is too long. With depth 1 job 4 is not looked at.
    jobs = [one_gpu(1, 0, 10), wide(2, 1, 5, 2), one_gpu(3, 2, 50), one_gpu(4, 3, 2)]
    shallow = simulate(jobs, [Node(0, 2)], "fifo-backfill", {"depth": 1})
    deep = simulate(jobs, [Node(0, 2)], "fifo-backfill", {"depth": 2})
    assert spans(shallow, 4)[0][0] == 15
    assert spans(deep, 4) == [(3, 5)]


def test_backfill_believes_estimates_and_not_the_work() -> None:
    # Job 1 says 4 but works for 10. At 1 the head's shadow time is 4; at 5 it is overdue: its end is now. A
    # job of 1 s at 5 would end at 6, after the shadow time of 5, so it may not use the one other GPU, which
    # is reserved.
    jobs = [one_gpu(1, 0, 10, estimate_s=4), wide(2, 1, 5, 2), one_gpu(3, 5, 1)]
    journal = simulate(jobs, [Node(0, 2)], "fifo-backfill", {"depth": 5})
    assert spans(journal, 3) == [(15, 16)]


# Preemption.


def test_srtf_preempts_and_restores() -> None:
    # At 3 job 1 has 7 s left and job 2 needs 2: job 1 is stopped (nothing to save). Job 2 is given the GPU
    # that is still held, so it is wanted first, and starts within the same instant. At 5 job 1 starts
    # again, restores for 2 s and does its last 7 s: 14.
    jobs = [one_gpu(1, 0, 10, restore_s=2), one_gpu(2, 3, 2)]
    assert simulate(jobs, [Node(0, 1)], "srtf") == [
        (0, "submitted", 1, 0, ()),
        (0, "start-requested", 1, 1, GPU0),
        (0, "started", 1, 1, ()),
        (3, "submitted", 2, 0, ()),
        (3, "stop-requested", 1, 1, (), "preempted"),
        (3, "wanted", 2, 0, GPU0),
        (3, "stopped", 1, 1, ()),
        (3, "start-requested", 2, 1, GPU0),
        (3, "started", 2, 1, ()),
        (5, "completed", 2, 1, ()),
        (5, "start-requested", 1, 2, GPU0),
        (5, "started", 1, 2, ()),
        (14, "completed", 1, 2, ()),
    ]


def test_saving_delays_the_next_start() -> None:
    # As above, but job 1 saves for 2 s: job 2 starts at 5 and is done at 7; job 1 restores until 9, then 7
    # s: 16.
    jobs = [one_gpu(1, 0, 10, save_s=2, restore_s=2), one_gpu(2, 3, 2)]
    assert simulate(jobs, [Node(0, 1)], "srtf")[4:] == [
        (3, "stop-requested", 1, 1, (), "preempted"),
        (3, "wanted", 2, 0, GPU0),
        (5, "stopped", 1, 1, ()),
        (5, "start-requested", 2, 1, GPU0),
        (5, "started", 2, 1, ()),
        (7, "completed", 2, 1, ()),
        (7, "start-requested", 1, 2, GPU0),
        (7, "started", 1, 2, ()),
        (16, "completed", 1, 2, ()),
    ]


def test_a_wanted_place_is_given_up_for_a_better_job() -> None:
    # Job 1 saves from 3 to 8. Job 2 (5 s) wants the GPU from 3 on; at 4 comes job 3 (1 s): job 2 loses its
    # place. At 8 job 1 has stopped with a run time of 8 (saving counts) and so 12 s left, more than job 2's
    # 5. Job 3 runs 8 to 9, job 2 9 to 14, job 1 works off 17 s from 14.
    jobs = [one_gpu(1, 0, 20, save_s=5), one_gpu(2, 3, 5), one_gpu(3, 4, 1)]
    journal = simulate(jobs, [Node(0, 1)], "srtf")
    assert journal[3:11] == [
        (3, "submitted", 2, 0, ()),
        (3, "stop-requested", 1, 1, (), "preempted"),
        (3, "wanted", 2, 0, GPU0),
        (4, "submitted", 3, 0, ()),
        (4, "unwanted", 2, 0, ()),
        (4, "wanted", 3, 0, GPU0),
        (8, "stopped", 1, 1, ()),
        (8, "start-requested", 3, 1, GPU0),
    ]
    assert spans(journal, 2) == [(9, 14)]
    assert spans(journal, 1) == [(0, 8), (14, 31)]


def test_oracle_srtf_goes_by_the_work() -> None:
    # The estimates are the wrong way round.
    jobs = [one_gpu(1, 0, 9, estimate_s=1), one_gpu(2, 0, 2, estimate_s=99)]
    assert spans(simulate(jobs, [Node(0, 1)], "srtf"), 1) == [(0, 9)]
    assert spans(simulate(jobs, [Node(0, 1)], "oracle-srtf"), 2) == [(0, 2)]


def test_a_passed_over_job_leaves_room_for_smaller_ones() -> None:
    # Selection by count on three GPUs: job 1 (2 GPUs, 5 s), job 2 (2 GPUs, 6 s) does not fit beside it and is
    # passed over, job 3 (1 GPU, 9 s) is selected.
    jobs = [wide(1, 0, 5, 2), wide(2, 0, 6, 2), one_gpu(3, 0, 9)]
    journal = simulate(jobs, [Node(0, 3)], "srtf")
    assert [spans(journal, n)[0][0] for n in (1, 2, 3)] == [0, 5, 0]


def test_victims_are_taken_from_the_lowest_rank_and_released_whole() -> None:
    # Job 1 holds GPUs 0, 1 (10 s), job 2 holds 2, 3 (20 s). Job 3 (1 GPU, 1 s) comes at 1. Selected are 3
    # and 1; the victim is job 2, which is released whole; job 3 takes its lowest GPU.
    jobs = [wide(1, 0, 10, 2), wide(2, 0, 20, 2), one_gpu(3, 1, 1)]
    journal = simulate(jobs, [Node(0, 4)], "srtf")
    assert places_given(journal, 3) == [((0, 0, (2,)),)]
    assert spans(journal, 1) == [(0, 10)]
    # At 2 its GPUs are free again.
    assert spans(journal, 2) == [(0, 1), (2, 21)]


def test_a_victim_that_loses_nothing_keeps_running() -> None:
    # Two nodes of two GPUs. Cpus keep the gang of job 1 (10 s) to one task a node: GPU 0 of each. Job 2 (30
    # s) has GPU 1 of node 0. Job 3 (one task with 2 GPUs) comes at 1: selected are 3 and 1, the victim is
    # job 2. But even with job 2's GPU no node has two usable ones, so job 3 waits, and job 2 keeps running.
    # At 10 both GPUs of node 1 are unwanted.
    jobs = [Job(1, 0, 10, 2, 1, cpus_milli=600), one_gpu(2, 0, 30), wide(3, 1, 5, 2)]
    journal = simulate(jobs, [Node(0, 2, 1000), Node(1, 2, 1000)], "srtf")
    assert places_given(journal, 1) == [((0, 0, (0,)), (1, 1, (0,)))]
    assert places_given(journal, 3) == [((0, 1, (0, 1)),)]
    assert spans(journal, 3) == [(10, 15)]
    assert spans(journal, 2) == [(0, 30)]


def test_las_lets_equal_jobs_take_turns() -> None:
    # Quantum = R = 5 s on one GPU. At 5 job 1 has used a quantum and job 2 none; at 10 both have used one
    # and job 1 came first; at 15 it's job 2's turn; at 20 job 1 does its last 5 s, then job 2.
    jobs = [one_gpu(1, 0, 15), one_gpu(2, 0, 15)]
    journal = simulate(jobs, [Node(0, 1)], "las", {"quantum_s": 5}, round_s=5)
    assert spans(journal, 1) == [(0, 5), (10, 15), (20, 25)]
    assert spans(journal, 2) == [(5, 10), (15, 20), (25, 30)]


def test_las_counts_gpu_seconds() -> None:
    # Quantum 10 GPU·s. Job 1 on two GPUs has used a quantum at 5 and makes way for job 2 (one GPU). Job 2
    # has used one only at 15; then both stand at one quantum, and job 1 came first.
    jobs = [wide(1, 0, 10, 2), one_gpu(2, 1, 30)]
    journal = simulate(jobs, [Node(0, 2)], "las", {"quantum_s": 10})
    assert spans(journal, 1) == [(0, 5), (15, 20)]
    assert spans(journal, 2)[0] == (5, 15)


def test_tiresias_demotes() -> None:
    # Threshold 4 GPU·s. At 4 job 1 falls into queue 1 and job 2 (queue 0) takes over; at 8 both are in
    # queue 1 and job 1 came first; it does its last 6 s. Without promotion job 2 follows at 14.
    jobs = [one_gpu(1, 0, 10), one_gpu(2, 1, 10)]
    journal = simulate(jobs, [Node(0, 1)], "tiresias", {"threshold_s": 4, "promote": 0})
    assert spans(journal, 1) == [(0, 4), (8, 14)]
    assert spans(journal, 2) == [(4, 8), (14, 20)]


def test_tiresias_promotes() -> None:
    # As above with promote = 1. At 8 job 1 has waited 4 s, as long as it had run: it is promoted, and what
    # counts from then on is its service since 8, so it falls into queue 1 at 12. At 12 job 2 has waited 4 s
    # after 4 s of running: promoted, it takes over, and stays in queue 0 until it has got 4 GPU·s since 12,
    # although it has 8 by then. At 16 job 1 has waited 4 of the 8 s it would need, so both are in queue 1:
    # job 1's last 2 s, then job 2's.
    jobs = [one_gpu(1, 0, 10), one_gpu(2, 1, 10)]
    journal = simulate(jobs, [Node(0, 1)], "tiresias", {"threshold_s": 4, "promote": 1})
    assert spans(journal, 1) == [(0, 4), (8, 12), (16, 18)]
    assert spans(journal, 2) == [(4, 8), (12, 16), (18, 20)]


def test_tiresias_has_as_many_queues_as_asked() -> None:
    # Three queues: thresholds 2 and 4 (factor 2). Job 1 alone until 3 (queue 1). Job 2 comes at 3 in queue
    # 0; at 5 it is in queue 1 with job 1, which came first and falls into queue 2 at 6 (attained 4). Then
    # job 2 until 8.
    jobs = [one_gpu(1, 0, 10), one_gpu(2, 3, 10)]
    params = {"queues": 3, "threshold_s": 2, "factor": 2, "promote": 0}
    journal = simulate(jobs, [Node(0, 1)], "tiresias", params)
    assert spans(journal, 1)[:2] == [(0, 3), (5, 6)]
    assert spans(journal, 2)[:2] == [(3, 5), (6, 8)]


# Cpus and memory.


def test_held_cpus_delay_a_start() -> None:
    # Two GPUs, 1000 milli-cpus, one job of 1000 at a time. Job 2 (shorter) at 2 doesn't fit beside job 1
    # for its cpus. By count both are selected (two GPUs), so there is no victim, and job 2 waits for job 1
    # to complete.
    jobs = [one_gpu(1, 0, 10, cpus_milli=1000), one_gpu(2, 2, 3, cpus_milli=1000)]
    journal = simulate(jobs, [Node(0, 2, 1000)], "srtf")
    assert spans(journal, 2) == [(10, 13)]


def test_a_start_waits_for_the_cpus_of_a_stopping_job() -> None:
    # Three GPUs. Job 1 (50 s) holds GPUs 0, 1 and all cpus, and saves for 3 s. At 2 come job 2 (one GPU,
    # all cpus) and job 3 (one GPU). Selected are 2 and 3; the victim is job 1. Job 2 lacks only cpus: with
    # job 1 in the pool it takes GPU 2, which nobody wants, and job 1 is released for its cpus. Nobody holds
    # GPU 2, but the cpus are held until 5.
    jobs = [
        wide(1, 0, 50, 2, cpus_milli=1000, save_s=3),
        one_gpu(2, 2, 5, cpus_milli=1000),
        one_gpu(3, 2, 6),
    ]
    assert simulate(jobs, [Node(0, 3, 1000)], "srtf")[5:12] == [
        (2, "stop-requested", 1, 1, (), "preempted"),
        (2, "wanted", 2, 0, ((0, 0, (2,)),)),
        (2, "wanted", 3, 0, GPU0),
        (5, "stopped", 1, 1, ()),
        (5, "start-requested", 2, 1, ((0, 0, (2,)),)),
        (5, "start-requested", 3, 1, GPU0),
        (5, "started", 2, 1, ()),
    ]


def test_jobs_without_gpus_go_first_fit() -> None:
    # Four tasks of 600: one on node 0, two on node 1, one on node 2, whatever the kernel.
    nodes = [Node(0, 1, 1000), Node(1, 1, 1200), Node(2, 1, 5000)]
    journal = simulate([Job(1, 0, 2, 4, 0, cpus_milli=600)], nodes, "fifo", kernel="best-fit")
    assert places_given(journal, 1) == [((0, 0, ()), (1, 1, ()), (2, 1, ()), (3, 2, ()))]


# Lost nodes.


def test_a_lost_node_costs_what_was_not_checkpointed() -> None:
    # Checkpoints every 5 s. At 8 the node is lost: progress 8 falls back to 5. It is up again at 12: 1 s
    # restore and 15 s of work: 28.
    jobs = [one_gpu(1, 0, 20, every_s=5, save_s=3, restore_s=1)]
    assert simulate(jobs, [Node(0, 1)], "fifo", faults=[(8, 0, "down"), (12, 0, "up")])[3:] == [
        (8, "node-down", 0, 0, ()),
        (8, "stop-requested", 1, 1, (), "node-lost"),
        (8, "stopped", 1, 1, ()),
        (12, "node-up", 0, 0, ()),
        (12, "start-requested", 1, 2, GPU0),
        (12, "started", 1, 2, ()),
        (28, "completed", 1, 2, ()),
    ]


def test_a_lost_node_does_not_take_what_a_stop_has_saved() -> None:
    # SRTF. Job 1 stops at 7 for job 2 and saves progress 7; it starts again at 9. At 10 its progress is 8,
    # whose last checkpoint (5) is older than what the stop saved: it goes on from 7. Up at 11: 13 s left:
    # 24.
    jobs = [one_gpu(1, 0, 20, every_s=5), one_gpu(2, 7, 2)]
    journal = simulate(jobs, [Node(0, 1)], "srtf", faults=[(10, 0, "down"), (11, 0, "up")])
    assert spans(journal, 1) == [(0, 7), (9, 10), (11, 24)]


def test_a_gang_on_a_lost_node_moves_on_at_once() -> None:
    # Three nodes of one GPU, a gang of two on 0 and 1. Node 1 is lost at 4: the gang has no checkpoint, so
    # it starts from the beginning on 0 and 2 in the same instant.
    journal = simulate([Job(1, 0, 10, 2, 1)], [Node(n, 1) for n in range(3)], "fifo", faults=[(4, 1, "down")])
    assert journal[3:] == [
        (4, "node-down", 1, 0, ()),
        (4, "stop-requested", 1, 1, (), "node-lost"),
        (4, "stopped", 1, 1, ()),
        (4, "start-requested", 1, 2, ((0, 0, (0,)), (1, 2, (0,)))),
        (4, "started", 1, 2, ()),
        (14, "completed", 1, 2, ()),
    ]


def test_a_lost_node_ends_a_save_and_a_wanted_place() -> None:
    # Job 1 is saving from 3 to 8, and job 2 wants its GPU. At 4 the node is lost: job 1 has stopped and saved
    # nothing, so it starts from the beginning; job 2 has no place any more.
    jobs = [one_gpu(1, 0, 10, save_s=5), one_gpu(2, 3, 2)]
    journal = simulate(jobs, [Node(0, 1)], "srtf", faults=[(4, 0, "down"), (6, 0, "up")])
    assert journal[4:] == [
        (3, "stop-requested", 1, 1, (), "preempted"),
        (3, "wanted", 2, 0, GPU0),
        (4, "node-down", 0, 0, ()),
        (4, "stopped", 1, 1, ()),
        (4, "unwanted", 2, 0, ()),
        (6, "node-up", 0, 0, ()),
        (6, "start-requested", 2, 1, GPU0),
        (6, "started", 2, 1, ()),
        (8, "completed", 2, 1, ()),
        (8, "start-requested", 1, 2, GPU0),
        (8, "started", 1, 2, ()),
        (18, "completed", 1, 2, ()),
    ]


def test_a_requeued_job_keeps_its_place_in_the_queue() -> None:
    # Job 1 loses its node at 3; when the only GPU is back at 5 it goes before job 2, which came later.
    jobs = [one_gpu(1, 0, 6), one_gpu(2, 1, 6)]
    journal = simulate(jobs, [Node(0, 1)], "fifo", faults=[(3, 0, "down"), (5, 0, "up")])
    assert spans(journal, 1) == [(0, 3), (5, 11)]
    assert spans(journal, 2) == [(11, 17)]


def test_free_gpus_are_taken_before_held_ones() -> None:
    # Four GPUs. Job 1 (4 s) has GPUs 0, 1; job 2 (50 s, saves for 5 s) has 2, 3. Job 3 (one GPU) comes at
    # 2; the victim is job 2, and job 3 wants GPU 2. GPU 3 is unwanted but held until 7. At 4 job 1 is done.
    # Job 4 (one GPU) comes at 5: it takes GPU 0. Job 5 (two GPUs) at 5 takes GPU 1, which is free, and GPU
    # 3, so it starts at 7 only.
    jobs = [
        wide(1, 0, 4, 2),
        wide(2, 0, 50, 2, save_s=5),
        one_gpu(3, 2, 6),
        one_gpu(4, 5, 1),
        wide(5, 5, 3, 2),
    ]
    journal = simulate(jobs, [Node(0, 4)], "srtf")
    assert places_given(journal, 3) == [((0, 0, (2,)),)]
    assert places_given(journal, 4) == [GPU0]
    assert places_given(journal, 5) == [((0, 0, (1, 3)),)]
    assert [spans(journal, n)[0] for n in (3, 4, 5)] == [(7, 13), (5, 6), (7, 10)]


# Whatever the case, the bookkeeping holds (checked at every instant) and every job ends.


POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("fifo", {}),
    ("fifo-backfill", {"depth": 3}),
    ("srtf", {}),
    ("oracle-srtf", {}),
    ("las", {"quantum_s": 7}),
    ("sjf", {}),
    ("edf", {}),
    ("random", {"unfit": "skip"}),
    ("drf", {}),
    ("borg-fair", {}),
    ("tiresias", {"queues": 3, "threshold_s": 10, "factor": 3, "promote": 2}),
]


@pytest.mark.parametrize(("policy", "params"), POLICIES)
@pytest.mark.parametrize("kernel", ["first-fit", "best-fit", "consolidated", "topology"])
def test_every_job_ends(policy: str, params: dict[str, Any], kernel: str) -> None:
    for seed in range(4):
        dice = random.Random(seed)
        nodes = [Node(n, dice.randint(1, 4), 4000, 100, rack=n // 2) for n in range(4)]
        jobs = [random_job(n, dice) for n in range(12)]
        faults: list[Fault] = [
            (20, 1, "down"),
            (25, 1, "up"),
            (40, 0, "down"),
            (41, 2, "down"),
            (60, 0, "up"),
            (60, 2, "up"),
        ]
        journal = simulate(jobs, nodes, policy, params, kernel, dice.choice([1, 3]), faults)
        ended = [e[2] for e in journal if e[1] in ("completed", "rejected")]
        assert sorted(ended) == [job.number for job in jobs]
        for job in jobs:
            starts = [e for e in journal if e[1] == "started" and e[2] == job.number]
            assert [e[3] for e in starts] == list(range(1, len(starts) + 1))


def random_job(number: int, dice: random.Random) -> Job:
    return Job(
        number,
        dice.randint(0, 30),
        dice.randint(1, 25),
        dice.randint(1, 3),
        dice.randint(0, 2),
        cpus_milli=dice.choice([0, 500, 1000]),
        memory_bytes=dice.choice([0, 10, 30]),
        estimate_s=dice.randint(1, 40),
        priority=dice.choice([50, 50, 50, 60]),
        save_s=dice.randint(0, 3),
        restore_s=dice.randint(0, 3),
        every_s=dice.choice([0, 4]),
    )
