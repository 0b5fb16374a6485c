"""Which node works for which job: who gets free nodes, who gives some up, and who is spared. A part of the manager.

Jobs are served in the order they came. A job is given nodes once its least number can be met: by free nodes, and by
nodes that others give up. Nodes that no job can begin with go to jobs that have their least, in order, up to their
most; what is left then waits in the first job that lacks its least, and is taken back as soon as another job can begin
with it. So two jobs never hold a part of what each of them needs.

A job that needs many nodes would never begin while small jobs follow each other. So the first job that has waited
``PATIENT_S`` may hold nodes below its least for ``RESERVES_S``, if enough nodes are here that could work for it. Then
it waits anew, so that nodes are not idle without end for jobs that others do not make room for.

A job that had its least and lost a node keeps the others for ``KEEPS_S``: most nodes come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from shoal.roles.events import Liveness
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import Appointments, assignment
from shoal.roles.manager.cluster_state import ClusterState, JobRecord, NodeRecord
from shoal.roles.manager.other_managers import OtherManagers
from shoal.roles.manager.preparation import MAY_RETURN_S, noted, why_hopeless
from shoal.wire.messages import Released, StopRequest, clip

#: Seconds for which a job that had its least number of nodes keeps the rest of them.
KEEPS_S = 60.0

#: Seconds that a job waits for its least before it may hold nodes below it, and for how long it may then.
PATIENT_S = 600.0
RESERVES_S = 600.0

#: The timer that gives out work again when a device is no longer spared, followed by the job.
AGAIN = "prepare-again"


@dataclass(slots=True)
class _Spare:
    """Nodes of a job, of which others may have so many."""

    names: list[str] = field(default_factory=list)
    most: int = 0


class Staffing:
    def __init__(
        self,
        machine: Machine,
        cluster: ClusterState,
        appointments: Appointments,
        others: OtherManagers,
        *,
        node: str,
        members: Iterable[str] = (),
        check_in_s: float = 0.0,
    ) -> None:
        """``members``: devices of the cluster, whether the manager has heard of them or not."""
        self._machine = machine
        self._cluster = cluster
        self._appointments = appointments
        self._others = others
        #: The manager's own node.
        self._node = node
        self._members = tuple(members)
        self._return_s = max(MAY_RETURN_S, 2 * check_in_s)
        self._return_by_s = -math.inf

    def await_members(self) -> None:
        """Devices have yet to come: the manager has started, or has another manager's job now."""
        self._return_by_s = self._machine.now_s + self._return_s

    # Giving nodes out ----------------------------------------------------------------------------------------

    def give_least(self, led: Sequence[JobRecord]) -> None:
        """Give each job its least number, if that can be met."""
        self._note_short(led)
        coming = self._coming
        first = self._reserving(led)
        for record in led:
            lacking = self._lacking(record)
            if not lacking:
                continue
            free = self._cluster.count_free(self._fits(record), most=lacking)
            if free + coming < lacking and record is not first:
                continue
            coming = max(0, coming - (lacking - free))
            self._staff(record, record.spec.plan.workers_least)

    def grow(self, led: Sequence[JobRecord]) -> None:
        """Give free nodes to jobs that have their least; the rest waits in the first job that lacks some."""
        for record in led:
            if not self._lacking(record):
                self._staff(record, record.spec.plan.workers_max)
        for record in led:
            if self._lacking(record):
                self._staff(record, record.spec.plan.workers_least)

    @property
    def _coming(self) -> int:
        """Nodes that are about to be free."""
        return len(self._cluster.called_back) + len(self._cluster.let_go)

    def _lacking(self, record: JobRecord) -> int:
        """How many workers a job lacks, once those that were called back are gone."""
        called_back = [self._cluster.nodes[name] for name in self._cluster.called_back if name != record.helper]
        leaving = sum(node.job == record.spec.job and not node.facts.is_hub for node in called_back)
        return max(0, record.spec.plan.workers_least - self._cluster.count(record.spec.job) + leaving)

    def _note_short(self, led: Sequence[JobRecord]) -> None:
        now_s = self._machine.now_s
        for record in led:
            if not self._lacking(record):
                record.met_s, record.short_s = now_s, None
            elif record.short_s is None or now_s - record.short_s >= PATIENT_S + RESERVES_S:
                record.short_s = now_s

    def _reserving(self, led: Sequence[JobRecord]) -> JobRecord | None:
        """The job that may hold nodes below its least: it waited long, and there are enough nodes for it."""
        now_s = self._machine.now_s
        for record in led:
            if record.short_s is not None and now_s - record.short_s >= PATIENT_S:
                least = record.spec.plan.workers_least
                if sum(1 for _ in islice(self._here(record), least)) >= least:
                    return record
        return None

    def _here(self, record: JobRecord) -> Iterator[NodeRecord]:
        """Nodes that could work for the job now, whichever job they work for."""
        return (node for node in self._cluster.nodes.values() if node.can_train and self._suits(node, record))

    def _suits(self, node: NodeRecord, record: JobRecord) -> bool:
        spared = record.unprepared.get(node.node)
        if spared is not None and spared.until_s > self._machine.now_s:
            return False
        return node.suits(record.spec) and self._cluster.reaches_leader(node, record, home=self._node)

    def _fits(self, record: JobRecord) -> Callable[[NodeRecord], bool]:
        return lambda node: self._suits(node, record)

    def _staff(self, record: JobRecord, wanted: int) -> None:
        """Give a job free nodes until it has as many workers as wanted."""
        have = self._cluster.count(record.spec.job)
        while have < wanted:
            node = self._cluster.take(self._fits(record))
            if node is None:
                break
            have += 1
            self.assign(node, record, f"worker {have} of up to {record.spec.plan.workers_max:,}")

    def give_hubs(self, led: Sequence[JobRecord]) -> None:
        """Free hubs go to the jobs whose updates may meet in a tree: each to the one that has the fewest."""
        for hub in self._cluster.free_hubs():
            short = [r for r in led if self._cluster.count_hubs(r.spec.job) < r.spec.plan.hubs_max]
            if not short:
                break
            wanting = [r for r in short if hub.is_wanted(r.spec)]
            if not wanting:
                continue
            record = min(wanting, key=lambda r: self._cluster.count_hubs(r.spec.job))
            self.assign(hub, record, f"hub {self._cluster.count_hubs(record.spec.job) + 1}")

    def assign(self, node: NodeRecord, record: JobRecord, reason: str) -> None:
        self._cluster.place(node, record.spec.job)
        # The manager that sent it here was right: once the node is free again, it may be sent on.
        node.goes_s = 0.0
        self._machine.record("device.assigned", f"{node.node}: {reason}", job=record.spec.job)
        self._appointments.admit(record, [node.node])
        self._machine.send(node.node, assignment(record, node.role, reason, card=node.card))

    # Taking nodes back ---------------------------------------------------------------------------------------

    def call_back(self, led: Sequence[JobRecord]) -> None:
        """No node is free, and a job lacks some: others give up nodes, as many as it lacks or none."""
        is_short = any(self._lacking(r) and self._machine.now_s >= r.devices_come_by_s for r in led)
        if not is_short and not self._others.starving(self._machine.now_s):
            # Most of the time: what a job could spare is not listed for nobody.
            return
        first, coming = self._reserving(led), self._coming
        # The last job to come is the first to give.
        spare = {record.spec.job: self._spare(record, first) for record in reversed(led)}
        for record in led:
            job, lacking = record.spec.job, self._lacking(record)
            if not lacking or self._machine.now_s < record.devices_come_by_s:
                continue
            own, spare[job] = spare[job], _Spare()
            coming, lacking = max(0, coming - lacking), max(0, lacking - coming)
            taken = self._useful(spare, self._fits(record), most=lacking)
            if len(taken) < lacking:
                # It cannot begin: what it has may serve a job that comes after it.
                spare[job] = own
            else:
                self._call(taken, spare)
        elsewhere = max(0, self._others.starving(self._machine.now_s) - coming)
        beyond = {record.spec.job: spare[record.spec.job] for record in reversed(led) if not self._lacking(record)}
        now_s = self._machine.now_s
        self._call(
            self._useful(beyond, lambda node: not (node.is_bound or node.kept_s > now_s), most=elsewhere), beyond
        )

    def _useful(self, spare: Mapping[str, _Spare], fits: Callable[[NodeRecord], bool], *, most: int) -> list[str]:
        """Nodes that others can spare and that would be of use: one without an engine for the job in need would only
        come back."""
        nodes, found = self._cluster.nodes, list[str]()
        for each in spare.values():
            useful = (name for name in each.names if fits(nodes[name]))
            found += islice(useful, min(each.most, most - len(found)))
        return found

    def _call(self, names: Sequence[str], spare: Mapping[str, _Spare]) -> None:
        for name in names:
            job = self._cluster.nodes[name].job
            assert job is not None
            spare[job].names.remove(name)
            spare[job].most -= 1
            self._cluster.called_back.add(name)
            self._machine.record("device.recalled", f"{name}: another job has fewer workers than it needs", job=job)
            self._appointments.release([name])

    def _spare(self, record: JobRecord, first: JobRecord | None) -> _Spare:
        """Nodes of a job that another may have: beyond its least, or all of them if it cannot begin."""
        workers, called_back = self._cluster.workers(record.spec.job), self._cluster.called_back
        kept = (record.leader, record.helper)
        names = [name for name in reversed(workers) if name not in kept and name not in called_back]
        # Those that were called back before are on their way out.
        left = sum(name not in called_back for name in workers if name != record.helper)
        if not self._lacking(record):
            return _Spare(names, max(0, left - record.spec.plan.workers_least))
        is_kept = record is first or self._machine.now_s - record.met_s < KEEPS_S
        return _Spare() if is_kept else _Spare(names, len(names))

    # Devices that cannot prepare a job -----------------------------------------------------------------------

    def on_released_unprepared(self, record: JobRecord, released: Released) -> None:
        """A leader let a device go because it could not prepare the job: other jobs get the device for a while."""
        now_s, job = self._machine.now_s, record.spec.job
        before = record.unprepared.get(released.node)
        note = noted(before, reason=released.failure, by_task=released.by_task, now_s=now_s)
        record.unprepared[released.node] = note
        told = f"{released.node} gets the job again in {note.until_s - now_s:.0f} s: {released.failure}"
        self._machine.record("preparation.deferred", told, job=job)
        self._watch(record)
        self._fail_if_hopeless(record)

    def is_given_again(self, node: NodeRecord, *, within_s: float) -> bool:
        """Whether a job that it could not prepare is given to it again so soon."""
        by_s = self._machine.now_s + within_s
        notes = ((record, record.unprepared.get(node.node)) for record in self._cluster.open_jobs())
        return any(note is not None and note.until_s < by_s and node.suits(record.spec) for record, note in notes)

    def on_again(self, job: str) -> None:
        """A device may be given a job again that it could not prepare."""
        record = self._cluster.jobs.get(job)
        if record is not None and record.is_open and record.unprepared:
            self._watch(record)
            self._fail_if_hopeless(record)

    def _watch(self, record: JobRecord) -> None:
        now_s = self._machine.now_s
        due_s = min((each.until_s for each in record.unprepared.values() if each.until_s > now_s), default=math.inf)
        if due_s < math.inf:
            self._machine.timer(f"{AGAIN} {record.spec.job}", due_s - now_s)

    def _fail_if_hopeless(self, record: JobRecord) -> None:
        if not record.is_led or self._others.are_any:
            # Devices of other managers may be able: this manager does not know them.
            return
        is_awaiting = self._machine.now_s < self._return_by_s
        if is_awaiting and any(name not in self._cluster.nodes and name != record.helper for name in self._members):
            # They have not come back yet, and may be able.
            return
        why = why_hopeless(record.unprepared, (node.node for node in self._possible(record)))
        if why is not None:
            self._appointments.tell_leader(record, StopRequest(job=record.spec.job, reason=clip(why), failed=True))

    def _possible(self, record: JobRecord) -> Iterator[NodeRecord]:
        """Devices that the job may be given to, now or soon."""
        now_s = self._machine.now_s
        for node in self._cluster.nodes.values():
            is_lost = node.state is Liveness.LOST and now_s - node.heard_s > MAY_RETURN_S
            has_engine = bool(node.facts.torch or node.facts.onnx) and not node.facts.is_hub
            is_free_to = node.held is None and node.node != record.helper
            reaches = self._cluster.reaches_leader(node, record, home=self._node)
            if has_engine and not is_lost and is_free_to and reaches and node.suits(record.spec):
                yield node
