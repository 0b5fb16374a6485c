"""Jobs that go from this manager to another one that lives: when, where to, and who is told. A part of the manager.

A drained manager gives all of its open jobs away, and a full one those that wait for devices. A job goes once nothing
of it is under way here: a leader on this manager's node hands over first, and a version that a device sent is durable
or refused. The store then names the other manager in one transaction, and that one goes on as after a takeover. A
device that leads the job keeps leading it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shoal.roles.actions import GiveJob
from shoal.roles.events import JobGiven, Liveness
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import Appointments
from shoal.roles.manager.cluster_state import ClusterState, JobRecord, LeadershipStage
from shoal.roles.manager.other_managers import OtherManagers
from shoal.states import JobState
from shoal.wire.messages import Dismiss

#: In these stages no node is set up as a leader, and none hands over.
_AT_REST = (LeadershipStage.VACANT, LeadershipStage.MISSED, LeadershipStage.LEADING, LeadershipStage.AWAY)

_DRAINED = "its manager is drained"
_FULL = "its manager holds as many devices as it can, and the job lacks some"

#: Seconds that a job lacks devices before a full manager gives it away.
WAITS_S = 60.0

#: Seconds before a job is offered again that another manager did not take. A look at the store comes before that.
AGAIN_S = 1.0

_AGAIN = "give"


class _Going(NamedTuple):
    """A job that is given away."""

    #: Where its new manager is dialled.
    to: str
    #: Its workers, its hubs and its leader.
    nodes: tuple[str, ...]
    leader: str | None


class Moving:
    def __init__(
        self,
        machine: Machine,
        cluster: ClusterState,
        appointments: Appointments,
        others: OtherManagers,
        *,
        node: str,
    ) -> None:
        self._machine = machine
        self._cluster = cluster
        self._appointments = appointments
        self._others = others
        #: The manager's own node.
        self._node = node
        #: Job that is given away, until that is durable.
        self._going: dict[str, _Going] = {}
        #: Job that another manager did not take -> when it may be offered again.
        self._again_s: dict[str, float] = {}
        #: Job that goes because this manager is full -> where to.
        self._chosen: dict[str, str] = {}

    def give_away(self) -> None:
        """Give away the jobs that should go and can go now. Called after everything that may change either."""
        is_drained = self._others.is_drained
        self._forget_ended()
        if not is_drained and not self._others.is_full and not self._chosen:
            return
        if not is_drained and self._others.is_full:
            self._choose()
        for key, group in self._groups().items():
            to = self._others.taker(key) if is_drained else self._chosen.get(group[0].spec.job)
            if to is None or self._waits(group):
                continue
            reason = _DRAINED if is_drained else _FULL
            for record in group:
                if record.leader == self._node and record.stage is LeadershipStage.LEADING and _may_move(record):
                    self._appointments.transfer(record, to=self._node, reason=reason)
            if all(self._may_go(record) for record in group):
                for record in group:
                    self._give(record, to, reason)

    def _choose(self) -> None:
        """Choose jobs that cannot get their least number of devices here, and where they go: one at a time, since the
        figures of others do not show it at once."""
        if self._chosen or self._going:
            return
        devices = sum(node.state is Liveness.ALIVE for node in self._cluster.nodes.values())
        to = self._others.emptiest(devices)
        if to is None:
            return
        for group in self._groups().values():
            if all(self._has_waited(record) and _may_move(record) for record in group):
                self._chosen = dict.fromkeys((record.spec.job for record in group), to)
                return

    def _has_waited(self, record: JobRecord) -> bool:
        """Whether the job has lacked devices for long, and none are on their way back to it."""
        now_s = self._machine.now_s
        has_waited = record.short_s is not None and now_s - record.short_s >= WAITS_S
        members = self._cluster.members(record.spec.job)
        # Tabs of browsers cannot follow it: elsewhere it would lack more.
        has_tabs = any(self._cluster.nodes[name].facts.browser for name in members)
        return record.is_led and has_waited and now_s >= record.devices_come_by_s and not has_tabs

    def _forget_ended(self) -> None:
        """Drop choices of jobs that ended before they could go."""
        for job in [
            job for job in self._chosen if job not in self._cluster.jobs or not self._cluster.jobs[job].is_open
        ]:
            del self._chosen[job]

    def _groups(self) -> dict[str, list[JobRecord]]:
        """Jobs that one device leads go together: a device is with one manager."""
        groups: dict[str, list[JobRecord]] = {}
        for record in self._cluster.open_jobs():
            device = record.leader if record.leader != self._node else None
            # No device has a name that begins with a space.
            groups.setdefault(device or f" {record.spec.job}", []).append(record)
        return groups

    def _may_go(self, record: JobRecord) -> bool:
        is_idle = record.storing is None and not record.claims and record.heir is None
        return _may_move(record) and is_idle and record.leader != self._node and record.stage in _AT_REST

    def _waits(self, group: Iterable[JobRecord]) -> bool:
        """Return whether another manager did not take one of these jobs a moment ago. The next look at the store shows
        why: that manager has ended, or is drained."""
        now_s = self._machine.now_s
        self._again_s = {job: at_s for job, at_s in self._again_s.items() if at_s > now_s}
        return any(record.spec.job in self._again_s for record in group)

    def _give(self, record: JobRecord, to: str, reason: str) -> None:
        """The job is not this manager's any longer: whatever is said of it here is for the other one to hear."""
        job = record.spec.job
        self._machine.record("job.given", f"the manager at {to} has it from here on: {reason}", job=job)
        leader = record.leader
        names = tuple(dict.fromkeys((*self._cluster.members(job), *([leader] if leader is not None else ()))))
        self._appointments.unwatch(LeadershipStage.AWAY, job)
        self._chosen.pop(job, None)
        self._part(names, record, reason)
        self._cluster.forget_job(job)
        self._others.on_given(job, to, self._machine.now_s)
        self._going[job] = _Going(to, names, leader)
        self._machine.act(GiveJob(job=job, endpoint=to))

    def _part(self, names: Iterable[str], record: JobRecord, reason: str) -> None:
        """These nodes go with their job, and get no other one here. A tab of a browser stays: it dials one origin. So
        does the leader of another job that is here."""
        job = record.spec.job
        for each in self._cluster.nodes.values():
            each.left_in.pop(job, None)
            each.leads -= {job}
        for name in names:
            node = self._cluster.nodes.get(name)
            if node is None:
                # It led the job at another manager, and has not said hello here.
                continue
            if node.job == job:
                self._cluster.place(node, None)
            if node.facts.browser:
                self._machine.send(name, Dismiss(job=job, reason=reason))
                self._cluster.look(node)
            elif node.state is not Liveness.LOST and (name == record.leader or not self._leads_another(name, job)):
                node.sent_s = self._machine.now_s

    def _leads_another(self, node: str, job: str) -> bool:
        """Return whether the node leads an open job of this manager beside this one."""
        return any(record.spec.job != job for record in self._cluster.led_by(node))

    def is_giving(self, job: str) -> bool:
        """Whether the job is given away, and that is not durable yet."""
        return job in self._going

    def on_given(self, event: JobGiven) -> None:
        """The job is the other manager's, and its nodes are sent there. Or it stays: they say anew what they do."""
        job = event.job
        going = self._going.pop(job)
        if event.record is None:
            self._others.on_given(job, going.to, self._machine.now_s)
            self._send(going, job, to=going.to, reason=f"another manager has job {job}")
        else:
            self._others.on_taken(job)
            self._again_s[job] = self._machine.now_s + AGAIN_S
            self._machine.timer(f"{_AGAIN} {job}", AGAIN_S)
            self._send(going, job, to="", reason=f"job {job} stays with this manager")

    def _send(self, going: _Going, job: str, *, to: str, reason: str) -> None:
        for name in going.nodes:
            node = self._cluster.nodes.get(name)
            if node is None or node.facts.browser:
                continue
            # A leader goes with its job, whatever else it does here: a device is with one manager.
            stays = node.job is not None or self._leads_another(name, job)
            if stays and name != going.leader:
                # It said hello meanwhile and has work here, or it leads another job that is here.
                self._machine.send(name, Dismiss(job=job, reason=reason))
                self._cluster.look(node)
                continue
            node.sent_to = to
            self._machine.send(name, Dismiss(job="", reason=reason, endpoint=to))


def _may_move(record: JobRecord) -> bool:
    """A job that is being stopped, or whose last version is kept, ends here in a moment."""
    return record.state is not JobState.STOPPING and not record.is_done
