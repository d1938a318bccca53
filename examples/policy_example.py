"""A whole policy in plain Python, to be copied: the smallest gang first, nobody is stopped for another."""

from headway.core.columns import Phase, Reason
from headway.core.plan import Plan
from headway.core.view import ClusterView


class SmallestFirst:
    name = "smallest-first"

    def decide(self, view: ClusterView, memo: object) -> Plan:
        draft, room = view.draft(), {node.number: node for node in view.nodes()}
        waiting = [job for job in view.jobs() if job.phase == Phase.QUEUED and not job.place and not job.hold]
        for job in sorted(waiting, key=lambda job: (-job.priority, job.gpus, job.id)):
            if job.retry_at_s is not None:  # it has failed, and is to be tried again later
                draft.wake_at(job.retry_at_s)
                continue
            left, place = dict(room), []
            for task in job.demands:
                node = min((n for n in left.values() if n.has_room_for(task)), key=lambda n: (n.free, n.number), default=None)
                if node is not None:  # the fullest that has room
                    place.append((node.number, node.free_gpus[: task.gpus]))
                    left[node.number] = node.less(task)
            if len(place) == job.tasks:  # the whole gang, or nobody
                draft.place(job, [node for node, _ in place], [gpus for _, gpus in place])
                room = left
            else:
                draft.why(job, Reason.NO_ROOM, job.gpus)
        return draft.plan()
