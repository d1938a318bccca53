"""A whole policy in plain Python, to be copied: the smallest gang first, nobody is stopped for another."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from headway.core import columns as c
from headway.core.columns import NodePhase, Phase, Reason
from headway.core.plan import Plan
from headway.core.view import ClusterView, gpus_of


@dataclass(frozen=True)
class SmallestFirst:
    name: str = "smallest-first"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        draft, J, T, N = view.draft(), view.state.J, view.state.T, view.state.N
        # What nobody wants on each node that is up: GPUs, cpus, memory.
        up = [node.number for node in view.nodes() if node.phase == NodePhase.UP]
        room = {
            n: [gpus_of(int(N[c.N_FREE_MASK, n])), *(N[[c.N_CPU_MAX, c.N_MEM_MAX], n] - N[[c.N_CPU, c.N_MEM], n])] for n in up
        }
        waiting = [job for job in view.jobs() if job.phase == Phase.QUEUED and not job.place]
        for job in sorted(waiting, key=lambda job: (-job.priority, job.gpus, job.id)):
            if J[c.J_HOLD, job.row]:  # its owner wants it to wait
                continue
            if J[c.J_NOT_BEFORE, job.row] > view.now_us:  # it has failed, and is to be tried again later
                draft.wake_at_us(int(J[c.J_NOT_BEFORE, job.row]))
                continue
            left, nodes, gpus = deepcopy(room), [], []
            first = J[c.J_TASK0, job.row]
            for task in T[:, first : first + job.tasks].T:
                need = -(-int(task[c.T_GPU]) // c.WHOLE)
                kinds = int(J[c.J_KIND_MASK, job.row]) if need else -1
                fits = [
                    n for n, (free, cpu, mem) in left.items()
                    if len(free) >= need and cpu >= task[c.T_CPU] and mem >= task[c.T_MEM] and kinds >> int(N[c.N_KIND, n]) & 1
                ]  # fmt: skip
                if not fits:
                    break
                node = min(fits, key=lambda n: (len(left[n][0]), n))  # the fullest node
                free, cpu, mem = left[node]
                left[node] = [free[need:], cpu - task[c.T_CPU], mem - task[c.T_MEM]]
                nodes.append(node)
                gpus.append(free[:need])
            if len(nodes) == job.tasks:  # the whole gang, or nobody
                draft.place(job, nodes, gpus)
                room = left
            else:
                draft.why(job, Reason.NO_ROOM, job.gpus)
        return draft.plan()
