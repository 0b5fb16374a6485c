"""The simulated manager's node: one process, from its start to its end. Drives the manager, and keeps durable state.

The twin of the runtime's manager node; in both, the host router decides which role receives a message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from shoal.errors import Misuse, PeerViolation
from shoal.roles.actions import Action, Answer, GiveJob, Keep, Load, Record, Save, Store
from shoal.roles.events import Asked, Event, JobGiven, Received, Saved, SaveFailed, Stored, StoreFailed
from shoal.roles.manager.manager import Manager
from shoal.roles.node.checkpoint_transfer import StoredVersion, packed, unpacked, with_rows
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HostRouter
from shoal.sim.disk import AGAIN_S, Disk
from shoal.sim.disk import DiskCheckpoint as File
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.role_server import LOAD_S, SimRoleServer
from shoal.sim.jobs import SimulatedJob
from shoal.sim.process import Process
from shoal.wire.messages import Assign, Checkpoint, Hello, Message, StopJob, Submit, TransferJob, Welcome


class SimManagerApi(Protocol):
    def job(self, name: str) -> SimulatedJob: ...

    def led(self, term: int, host: Host, process: Process) -> None: ...

    def noise_seed(self, job: str, term: int) -> int: ...


class SimManagerNode:
    def __init__(
        self,
        process: Process,
        around: SimManagerApi,
        disk: Disk,
        *,
        patience: Patience,
        turn_hold_s: float,
        upload_budget_bytes: int,
        slow_factor: float = 1.0,
        prefers_devices: bool = False,
        check_in_s: float = 0.0,
    ) -> None:
        self.process = process
        #: The addresses of this cluster's managers, if it has several, and the function that shows this one the others.
        self.managers: tuple[str, ...] = ()
        self.show_others: Callable[[tuple[str, ...]], None] | None = None
        self._disk = disk
        self._questions = 0
        self.slow_factor = slow_factor
        self.role_server = SimRoleServer(
            process,
            around,
            self,
            HostRouter(node=process.node, patience=patience),
            manager=process.node,
            turn_hold_s=turn_hold_s,
            upload_budget_bytes=upload_budget_bytes,
        )
        self.manager = Manager(
            node=process.node,
            patience=patience,
            jobs=disk.stored_jobs(),
            prefers_devices=prefers_devices,
            check_in_s=check_in_s,
        )
        self._manager_host = Host(process, "manager", "", self._perform_manager, send=self._send)
        self._manager_host.start(self.manager)
        self.role_server.watch()

    # As an operator does --------------------------------------------------------------------------------

    def submit(self, job: SimulatedJob) -> None:
        self._ask(Submit(spec=job.spec))

    def stop(self, job: str) -> None:
        self._ask(StopJob(job=job))

    def transfer(self, job: str, node: str) -> None:
        """Move a job's leader to this node or, if it is empty, to the best placed one."""
        self._ask(TransferJob(job=job, node=node))

    def _ask(self, message: Message) -> None:
        self._questions += 1
        self._manager_host.post(Asked(question=self._questions, message=message))

    # The manager ---------------------------------------------------------------------------------------

    def to_manager(self, event: Event) -> None:
        if self.show_others is not None and isinstance(event, Received) and isinstance(event.message, Hello):
            hello = event.message
            has = (*hello.jobs, *(leads.job for leads in hello.leads))
            if has:
                self.show_others(has)
        self._manager_host.post(event)

    def _send(self, to: str, message: Message) -> None:
        if isinstance(message, Welcome) and self.managers:
            message = replace(message, managers=self.managers)
        self.role_server.roles.send(to, message)

    def _perform_manager(self, host: Host, action: Action) -> float:
        match action:
            case Keep():
                return self._disk.keep(action, functools.partial(self.process.now, host.resume))
            case Store():
                self._store(action)
            case GiveJob():
                return self._disk.give(action, functools.partial(self.process.now, self._given, host))
            case Load():
                # It is read while the manager continues.
                self.process.later(LOAD_S, self._load, action)
            case Answer():
                self.process.mark("answered", message=action.message)
            case Record():
                pass
            case _:
                raise Misuse(f"a manager does not ask for {type(action).__name__}")
        return 0.0

    def _given(self, host: Host, given: JobGiven) -> None:
        host.post(given)
        host.resume()

    def _store(self, store: Store) -> None:
        checkpoint = store.checkpoint
        try:
            version = unpacked(checkpoint)
        except PeerViolation as violation:
            self._not_stored(checkpoint, violation.reason)
            return
        assert version is not None, "a leader never asks for nothing to be kept"
        save = Save(
            version=version.version,
            tensors=version.tensors,
            state=version.state,
            after=version.after,
            applied=version.applied,
            evaluations=version.evaluations,
        )
        self._disk.write(
            checkpoint.job,
            save,
            functools.partial(self._stored, checkpoint, bool(version.state["ending"])),
            may_repeat=True,
        )

    def _stored(self, kept: Checkpoint, is_last: bool, is_durable: bool) -> None:
        if is_durable:
            stored = Stored(job=kept.job, term=kept.term, version=kept.version, is_last=is_last)
            self.process.now(self.to_manager, stored)
        else:
            self._not_stored(kept, "the disk is full")

    def _not_stored(self, sent: Checkpoint, reason: str) -> None:
        failed = StoreFailed(job=sent.job, term=sent.term, version=sent.version, reason=reason)
        self.process.now(self.to_manager, failed)

    def _load(self, load: Load) -> None:
        if self._disk.is_away:
            self.process.later(AGAIN_S, self._load, load)
            return
        loaded = self._disk.newest(load.job)
        version = _travelling(loaded) if loaded is not None else None
        self.role_server.roles.post(load.to, packed(version, job=load.job, term=load.term))

    # Leaders here --------------------------------------------------------------------------------------

    def set_up_leader(self, host: Host, assign: Assign) -> None:
        self.process.later(LOAD_S, self._begin, host, assign)

    def _begin(self, host: Host, assign: Assign) -> None:
        if self._disk.is_away:
            self.process.later(AGAIN_S, self._begin, host, assign)
            return
        loaded = self._disk.newest(assign.job)
        version = StoredVersion(version=loaded.version, tensors=loaded.tensors, state=loaded.state) if loaded else None
        self.role_server.begin(host, assign, version)

    def save(self, host: Host, job: str, save: Save) -> None:
        self._disk.write(job, save, functools.partial(self._saved, host, save.version))

    def _saved(self, host: Host, version: int, is_durable: bool) -> None:
        answer = Saved(version=version) if is_durable else SaveFailed(version=version, reason="the disk is full")
        self.process.now(host.post, answer)

    def record(self, job: str, record: Record) -> None:
        pass

    def say(self, to: str, message: Message) -> None:
        raise Misuse("the manager's node dials nobody")

    @property
    def endpoint(self) -> None:
        """Return None: every node has the manager's address."""

    def resume(self, host: Host, assign: Assign, checkpoint: Checkpoint) -> None:
        raise Misuse("a leader at home goes on from the disk")


def _travelling(file: File) -> StoredVersion:
    """Return a version as a leader elsewhere gets it, without the history before it."""
    rows, names = with_rows(())
    return StoredVersion(
        version=file.version,
        tensors={**file.tensors, **rows},
        state={**file.state, **names},
    )
