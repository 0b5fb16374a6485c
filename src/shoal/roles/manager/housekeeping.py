"""The manager's housekeeping: jobs and members that go off its books, and files that a quota costs.

Decides what goes and says why; the driver deletes, and tells how much there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.roles.actions import Answer, DropFiles, DropJob, DropOldJobs, ForgetMember
from shoal.roles.events import DiskMeasured, JobsOutdated, Liveness
from shoal.roles.machine import Machine
from shoal.roles.manager.cluster_state import ClusterState
from shoal.roles.manager.retention import evictions, megabytes
from shoal.roles.node.failure_detector import Patience
from shoal.wire.messages import Denied, Done, ForgetNode, Message, RemoveJob

#: Of a disk quota, what is kept free where ended jobs have something to give.
KEPT_FREE = 0.1


class Housekeeping:
    def __init__(self, machine: Machine, cluster: ClusterState, *, patience: Patience, held: dict[str, str]) -> None:
        self._machine = machine
        self._cluster = cluster
        self._patience = patience
        #: Nodes that operators hold back, which the manager looks up when one connects.
        self._held = held
        self._started_s = 0.0
        #: The last measure, less what was let go since. None: there is no quota.
        self._disk: DiskMeasured | None = None
        self._is_full = False

    def on_started(self) -> None:
        self._started_s = self._machine.now_s

    # What operators take off the books ---------------------------------------------------------------------

    def on_remove_job(self, question: int, asked: RemoveJob, by: str) -> None:
        record = self._cluster.jobs.get(asked.job)
        if record is None:
            self._answer(question, Denied(reason=f"there is no job {asked.job}"))
            return
        if record.is_open:
            stop = f"`shoal jobs stop {asked.job}` ends it"
            self._answer(question, Denied(reason=f"job {asked.job} is {record.state}: only an ended job goes; {stop}"))
            return
        self._cluster.forget_job(asked.job)
        self._machine.act(DropJob(job=asked.job))
        self._machine.record("job.removed", f"{asked.job} ({record.state}): {by or 'an operator'} removed it")
        self._answer(question, Done(job=asked.job, reason=f"{asked.job} is removed, with its checkpoints and versions"))

    def on_outdated(self, event: JobsOutdated) -> None:
        """Ended jobs are kept no longer. One that is open here is not over, whatever the store shows."""
        reasons: dict[str, str] = {}
        for job, age_s in event.ages_s.items():
            record = self._cluster.jobs.get(job)
            if record is not None and record.is_open:
                continue
            if record is not None:
                self._cluster.forget_job(job)
            reasons[job] = event.keep.why_not(age_s)
        if reasons:
            self._machine.act(DropOldJobs(reasons=reasons))

    def on_forget_node(self, question: int, asked: ForgetNode, by: str) -> None:
        if (problem := self._why_not_forget(asked.node)) is not None:
            self._answer(question, Denied(reason=problem))
            return
        self._cluster.forget_node(asked.node)
        self._held.pop(asked.node, None)
        self._machine.act(ForgetMember(node=asked.node))
        self._machine.record("device.forgotten", f"{asked.node}: {by or 'an operator'} asked for it")
        told = f"{asked.node} is forgotten; if it comes back it needs a new line: `shoal join LINE --anew`"
        self._answer(question, Done(reason=told))

    def _why_not_forget(self, name: str) -> str | None:
        """Why this member stays; None: it may go. A member that may be alive is never shut out by this."""
        if led := self._cluster.led_by(name):
            job = led[0].spec.job
            return f"{name} leads job {job}: `shoal jobs transfer {job}` gives the job to another node first"
        node = self._cluster.nodes.get(name)
        if node is not None:
            if node.state is Liveness.LOST:
                return None
            way = f"switch it off, or shut it out with `shoal nodes revoke {name}`"
            return f"{name} is {node.state}: only a device that is lost or revoked is forgotten; {way}"
        left_s = self._started_s + self._patience.lost_after_s - self._machine.now_s
        if left_s > 0:
            return f"the manager started a moment ago and {name} may still connect: ask again in {left_s:.0f} s"
        return None

    # The disk ------------------------------------------------------------------------------------------------

    def on_disk(self, disk: DiskMeasured) -> None:
        """Let ended jobs' files go until the quota holds."""
        self._disk = disk if disk.quota_bytes else None
        # Open jobs write on until the next measure: a part of the quota is kept free for them.
        self._make_room(int(disk.quota_bytes * KEPT_FREE))
        left = max(0, self._disk.used_bytes - disk.quota_bytes) if self._disk is not None else 0
        if left and not self._is_full:
            self._machine.record(
                "quota.exceeded",
                f"{megabytes(left)} over the quota of {megabytes(disk.quota_bytes)}, and no ended job has anything left"
                " to give: remove jobs (`shoal jobs rm`), or start the manager with a larger --disk-quota",
            )
        self._is_full = left > 0

    def why_no_room(self, job: str) -> str | None:
        """Why a new job would not fit; None: it fits, perhaps because files of ended jobs went just now."""
        disk = self._disk
        wanted = disk.wanted.get(job, 0) if disk is not None else 0
        if disk is None or not wanted:
            return None
        over = disk.used_bytes + wanted - disk.quota_bytes
        _, left = evictions(over, checkpoints=disk.checkpoints, contents=disk.contents)
        if left:
            return (
                f"the job would not fit: it needs about {megabytes(wanted)} for its checkpoints, and the quota of"
                f" {megabytes(disk.quota_bytes)} lacks {megabytes(left)} of that, even without the files of ended jobs."
                " Remove jobs (`shoal jobs rm`), or start the manager with a larger --disk-quota"
            )
        self._make_room(wanted)
        return None

    def _make_room(self, wanted_bytes: int) -> None:
        """Let files of ended jobs go, as far as so many more bytes need it."""
        disk = self._disk
        if disk is None:
            return
        over = disk.used_bytes + wanted_bytes - disk.quota_bytes
        chosen, _ = evictions(over, checkpoints=disk.checkpoints, contents=disk.contents)
        for each in chosen:
            what = "checkpoints" if each.checkpoints else "code and data"
            self._machine.act(DropFiles(job=each.job, checkpoints=each.checkpoints, contents=not each.checkpoints))
            why = f"the disk quota of {megabytes(disk.quota_bytes)} lacks {megabytes(over)}"
            self._machine.record("files.removed", f"{what} ({megabytes(each.size_bytes)}): {why}", job=each.job)
            over -= each.size_bytes
        if chosen:
            gone = [(each.job, each.checkpoints) for each in chosen]
            self._disk = replace(
                disk,
                used_bytes=disk.used_bytes - sum(each.size_bytes for each in chosen),
                checkpoints=_without(disk.checkpoints, [job for job, is_checkpoints in gone if is_checkpoints]),
                contents=_without(disk.contents, [job for job, is_checkpoints in gone if not is_checkpoints]),
            )

    def _answer(self, question: int, message: Message) -> None:
        self._machine.act(Answer(question=question, message=message))


def _without(sizes: Mapping[str, int], jobs: list[str]) -> dict[str, int]:
    return {job: size for job, size in sizes.items() if job not in jobs}
