"""Nodes that this manager sends to others: those that belong to jobs of others, and free ones that others lack.

A part of the manager. ``OtherManagers`` knows who the others are; without any, nothing here has an effect.
"""

from __future__ import annotations

from dataclasses import replace

from shoal.roles.events import Received
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import Appointments
from shoal.roles.manager.cluster_state import ClusterState, NodeRecord
from shoal.roles.manager.other_managers import IN_VAIN_WITHIN_S, STAYS_S, OtherManagers, kept_for_s
from shoal.wire.messages import AskCheckpoint, Dismiss, Hello, LeaderUnreachable, StepDown

#: Why a node has to let go of a job that another manager has.
_WORKS_HERE = "it works for a job of another manager"


class Referrals:
    def __init__(
        self, machine: Machine, cluster: ClusterState, appointments: Appointments, others: OtherManagers
    ) -> None:
        self._machine = machine
        self._cluster = cluster
        self._appointments = appointments
        self._others = others

    # Nodes of other managers' jobs -----------------------------------------------------------------------

    def takes(self, event: Received) -> bool:
        """Handle a message about a job of another manager. Return whether it is one.

        Its sender will go to that manager, and sends it there again. But a node that was appointed and does not lead
        yet did not mention the job in its hello. And a node that was silent while its job was given away came back
        without one.
        """
        if not self._others.has(str(getattr(event.message, "job", ""))):
            return False
        if isinstance(event.message, AskCheckpoint):
            self.on_ask_checkpoint(event.sender, event.message)
        elif isinstance(event.message, LeaderUnreachable):
            self._send_on(event.sender, event.message.job, or_say=Dismiss(job=event.message.job, reason=_WORKS_HERE))
        return True

    def on_ask_checkpoint(self, sender: str, ask: AskCheckpoint) -> None:
        self._send_on(sender, ask.job, or_say=StepDown(job=ask.job, term=ask.term, reason=_WORKS_HERE))

    def _send_on(self, sender: str, job: str, *, or_say: Dismiss | StepDown) -> None:
        """Send a node to the manager of this job, or have it let go of the job: one that works here stays, and a tab
        reaches no other manager."""
        node = self._cluster.nodes.get(sender)
        if node is not None and (node.job is not None or node.facts.browser):
            self._machine.send(sender, or_say)
        else:
            self._send_to_manager_of(job, sender)

    def refers(self, sender: str, hello: Hello) -> bool:
        """Send a node that belongs to another manager there. Return whether it does. A tab reaches no other manager."""
        has = (*(leads.job for leads in hello.leads), *hello.jobs)
        elsewhere = self._others.first(has, is_own=self._is_open_here)
        if elsewhere is None or hello.facts.browser:
            return False
        self._send_to_manager_of(elsewhere, sender)
        return True

    def note_arrival(self, node: NodeRecord, hello: Hello, *, restarted: bool) -> None:
        """Note that a node is here, also one that another manager sent."""
        now_s = self._machine.now_s
        if node.sent_s is not None:
            # One that was started again meanwhile was not idle there all the time, and may be of use by now.
            is_soon = now_s - node.sent_s < IN_VAIN_WITHIN_S and not restarted
            node.in_vain = node.in_vain + 1 if hello.is_referred and is_soon else 0
            node.kept_s = now_s + kept_for_s(node.in_vain) if node.in_vain else 0.0
        node.sent_to = ""
        node.goes_s = now_s + STAYS_S if hello.is_referred else 0.0

    def without_others(self, hello: Hello) -> Hello:
        """Return the hello without the jobs of other managers that the node leads."""
        return replace(hello, leads=tuple(leads for leads in hello.leads if not self._others.has(leads.job)))

    def free(self, node: str, hello: Hello) -> None:
        """Have a node that works for a job here leave those of other managers: it cannot be in two places."""
        for leads in hello.leads:
            if self._others.has(leads.job):
                self._machine.send(node, StepDown(job=leads.job, term=leads.term, reason=_WORKS_HERE))
        for job in filter(self._others.has, hello.jobs):
            self._machine.send(node, Dismiss(job=job, reason=_WORKS_HERE))

    def _is_open_here(self, job: str) -> bool:
        return (known := self._cluster.jobs.get(job)) is not None and known.is_open

    def _send_to_manager_of(self, job: str, node: str) -> None:
        endpoint = self._others.endpoint(job)
        reason = f"another manager has job {job}" if endpoint else f"no manager has job {job} at this moment"
        if (known := self._cluster.nodes.get(node)) is not None:
            known.sent_to = endpoint
        self._machine.send(node, Dismiss(job="", reason=reason, endpoint=endpoint))

    # Nodes that other managers lack --------------------------------------------------------------------------

    def send_helpers(self) -> None:
        """Send nodes that open the sums of other managers' jobs there: nobody else can take their place. A node that
        started again has forgotten its job, and a proxy may have brought it here."""
        own = {record.helper for record in self._cluster.open_jobs()} | {r.leader for r in self._cluster.open_jobs()}
        for job, name in self._others.helped():
            node = self._cluster.nodes.get(name)
            if node is None or name in own or not node.is_available or node.is_bound:
                continue
            if node.job is None:
                node.sent_s = self._machine.now_s
                self._machine.record("device.referred", f"{name}: it opens the sums of job {job} of another manager")
                self._send_to_manager_of(job, name)
            elif name not in self._cluster.called_back:
                self._cluster.called_back.add(name)
                reason = f"{name}: a job of another manager has it as its helper"
                self._machine.record("device.recalled", reason, job=node.job)
                self._appointments.release([name])

    def send_free(self, *, may_grow: bool) -> None:
        """Send free devices to managers whose jobs lack some, unless a job here is about to need them."""
        if not all(record.is_led for record in self._cluster.open_jobs()):
            return
        now_s = self._machine.now_s
        for endpoint, lacking in self._others.lacking(now_s, may_grow=may_grow):
            for _ in range(lacking):
                node = self._cluster.take_for_others(now_s)
                if node is None:
                    return
                node.sent_s, node.sent_to = now_s, endpoint
                self._others.on_sent(endpoint, now_s)
                reason = f"{node.node} is sent to the manager at {endpoint}, whose jobs lack devices"
                self._machine.record("device.referred", reason)
                self._machine.send(node.node, Dismiss(job="", reason="another manager has work", endpoint=endpoint))
