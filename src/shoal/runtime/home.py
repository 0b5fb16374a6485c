"""The always-on node: serves the cluster, keeps its state, and drives the manager and the leaders it appoints here.

Everything it decides is decided by roles; this file gives them messages, time and a disk.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from shoal.errors import Misuse, PeerViolation, Refused, ShoalError
from shoal.learning.layout import Layout
from shoal.roles.actions import Action, Answer, End, Keep, Record, Save, Send
from shoal.roles.course import OURS
from shoal.roles.events import Asked, MemberHeld, Received, Saved, SaveFailed
from shoal.roles.leader import Leader
from shoal.roles.manager import JobRecord, Manager
from shoal.roles.membership import Patience
from shoal.roles.switchboard import Delivery, HangUp, Lead, Switchboard, ToLeader, ToManager, ToPeer
from shoal.runtime.host import RoleHost
from shoal.runtime.journal import CLUSTER, Journal
from shoal.runtime.places import Places
from shoal.runtime.roll import HELD, Roll, RollCommand
from shoal.store.blobs import BlobStore
from shoal.store.checkpoints import CheckpointStore
from shoal.store.registry import Registry
from shoal.training.prepared import LAYOUT_NOTE
from shoal.transport.base import BROKE_CONTRACT, Session
from shoal.transport.identity import Identity, Peer
from shoal.wire import tensors as tensor_files
from shoal.wire.encoding import from_json, to_json
from shoal.wire.lanes import Lane, lane_of
from shoal.wire.messages import (
    ApproveNode,
    AskModel,
    AskStatus,
    Assign,
    Blob,
    Denied,
    DrainNode,
    EvaluationView,
    EventView,
    JobSpec,
    Message,
    Progress,
    Renew,
    RevokeNode,
    Status,
    Submit,
    UndrainNode,
    Update,
    Welcome,
)

log = logging.getLogger("shoal")

#: An operator's command is answered within this time or fails.
ANSWER_TIMEOUT_S = 20.0

#: The latest events of a job that one status holds.
EVENTS_SHOWN = 50


@dataclass(slots=True)
class _Led:
    """A job led on this node."""

    host: RoleHost
    update_max_bytes: int = 0
    checkpoints: CheckpointStore | None = None


class Home:
    """A service (see ``transport.base``) and the driver of the manager and of leaders."""

    def __init__(self, identity: Identity, places: Places, *, patience: Patience | None = None) -> None:
        self._identity = identity
        self._node = identity.node
        self._places = places
        self._patience = patience or Patience()
        self._registry = Registry(places.registry)
        self._blobs = BlobStore(places.blobs)
        self._journal = Journal(self._registry)
        self.roll = Roll(self._registry)
        self._switchboard = Switchboard(node=self._node, patience=self._patience)
        #: One thread for merging, one for the disk: neither holds up the event loop.
        self._merging = ThreadPoolExecutor(1, thread_name_prefix="shoal-merge")
        self._sessions: dict[tuple[str, Lane], Session] = {}
        self._led: dict[str, _Led] = {}
        self._questions: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._manager = Manager(
            node=self._node, patience=self._patience, jobs=self._stored_jobs(), held=self.roll.held()
        )
        self._manager_host = RoleHost("manager", self._perform_manager)

    @property
    def registry(self) -> Registry:
        return self._registry

    @property
    def open_jobs(self) -> tuple[str, ...]:
        return tuple(view.job for view in self._manager.job_views() if view.state in ("queued", "running", "stopping"))

    def _stored_jobs(self) -> list[JobRecord]:
        records = []
        for job in self._registry.jobs():
            spec = from_json(JobSpec, json.loads(job.spec_json))
            progress = from_json(Progress, json.loads(job.progress_json)) if len(job.progress_json) > 2 else None
            records.append(JobRecord(spec=spec, state=job.state, reason=job.reason, term=job.term, progress=progress))
        return records

    async def start(self) -> None:
        self._manager_host.start(self._manager)
        self._spawn(self._watch(), "membership")
        self._spawn(self._journal.run(), "journal")

    async def stop(self) -> None:
        """Let go of everything. Nothing is lost by not calling this: a crash is as good."""
        for led in list(self._led.values()):
            await led.host.stop()
        await self._manager_host.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._journal.flush)
        self._merging.shutdown(wait=True)
        self._registry.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Peers --------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        key = (session.peer.node, session.lane)
        older = self._sessions.get(key)
        self._sessions[key] = session
        if older is not None:
            older.close("the same node connected again")

    def closed(self, session: Session, reason: str) -> None:
        key = (session.peer.node, session.lane)
        if reason.startswith(BROKE_CONTRACT):
            self.turned_away(session.peer, reason)
        if self._sessions.get(key) is not session:
            return
        del self._sessions[key]
        if session.lane is Lane.CONTROL:
            self._carry(self._switchboard.closed(session.peer.node, time.monotonic(), reason=reason))

    def turned_away(self, peer: Peer, reason: str) -> None:
        self._journal.add("", "refused", f"{peer.node} {reason}")

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        node = session.peer.node
        if lane_of(message) is not session.lane:
            raise PeerViolation(f"{type(message).__name__} came on the {session.lane} stream", peer=node)
        event = Received(sender=node, message=message, size_bytes=size_bytes)
        for delivery in self._switchboard.received(event, time.monotonic()):
            match delivery:
                case ToLeader(event=Received()):
                    # Waited for, so that what is large is held back where it comes from.
                    await self._led[delivery.job].host.deliver(delivery.event)
                case _:
                    self._carry([delivery])

    def payload_limit(self, session: Session, message: Message) -> int:
        led = self._led.get(message.job) if isinstance(message, Update) else None
        return led.update_max_bytes if led else 0

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None

    def _carry(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            match delivery:
                case ToManager():
                    self._manager_host.post(delivery.event)
                case ToLeader():
                    self._led[delivery.job].host.post(delivery.event)
                case ToPeer():
                    session = self._sessions.get((delivery.node, lane_of(delivery.message)))
                    if session is not None:
                        session.post(delivery.message)
                case Lead():
                    self._lead(delivery.assign)
                case HangUp():
                    control = self._sessions.get((delivery.node, Lane.CONTROL))
                    if control is not None:
                        control.close(delivery.reason)

    def _send(self, to: str, message: Message) -> None:
        if isinstance(message, Welcome):
            # Roles know no clock, and a device without a battery does not know the time.
            message = replace(message, time_s=time.time())
        self._carry(self._switchboard.sent(to, message))

    async def _watch(self) -> None:
        """Ask who has been silent for too long, on time."""
        while True:
            await asyncio.sleep(self._switchboard.check_every_s)
            self._carry(self._switchboard.check(time.monotonic()))

    # The manager ----------------------------------------------------------------------------------------

    async def _perform_manager(self, host: RoleHost, action: Action) -> None:
        match action:
            case Send():
                self._send(action.to, action.message)
            case Keep():
                await asyncio.to_thread(self._keep, action)
            case Answer():
                waiting = self._questions.pop(action.question, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(action.message)
            case Record():
                self._record(action)
            case _:
                raise Misuse(f"a manager does not ask for {type(action).__name__}")

    def _keep(self, keep: Keep) -> None:
        now_s = time.time()
        if keep.spec is not None:
            spec_json = json.dumps(to_json(keep.spec))
            self._registry.add_job(job=keep.job, name=keep.spec.name, spec_json=spec_json, now_s=now_s)
        stored = self._registry.job(keep.job)
        while stored is not None and stored.term < keep.term:
            self._registry.next_term(keep.job)
            stored = self._registry.job(keep.job)
        self._registry.set_job_state(keep.job, keep.state, now_s=now_s, reason=keep.reason)  # type: ignore[arg-type]
        progress = next((view.progress for view in self._manager.job_views(keep.job)), None)
        if progress is not None:
            self._registry.save_progress(keep.job, json.dumps(to_json(progress)))

    def _record(self, record: Record) -> None:
        self._journal.add(record.job, record.kind, record.reason)

    # Leaders --------------------------------------------------------------------------------------------

    def _lead(self, assign: Assign) -> None:
        host = RoleHost(f"leader of {assign.job}", self._perform_leader, executor=self._merging)
        self._led[assign.job] = _Led(host)
        self._spawn(self._begin_leading(host, assign), f"start {assign.job}")

    async def _begin_leading(self, host: RoleHost, assign: Assign) -> None:
        try:
            leader = await asyncio.to_thread(self._make_leader, assign)
        except Exception as error:
            if not isinstance(error, ShoalError | OSError | KeyError | ValueError):
                log.exception("job %s could not be started", assign.job)
            reason = f"could not start: {error}"
            self._journal.add(assign.job, "failed", reason)
            failed = Progress(job=assign.job, term=assign.term, state="failed", reason=reason[:4000])
            self._led.pop(assign.job, None)
            self._switchboard.ended(assign.job)
            self._manager_host.post(Received(sender=self._node, message=failed))
            return
        host.start(leader)

    def _make_leader(self, assign: Assign) -> Leader:
        """Read the job's first model and its newest good checkpoint. Runs in a thread."""
        spec = assign.spec
        tensors, notes = tensor_files.read(self._blobs.path(spec.initial), mmap=True)
        layout = Layout.from_json(notes[LAYOUT_NOTE])
        model = np.empty(layout.size, dtype=np.float32)
        for name, view in layout.views(model).items():
            view[...] = tensors[name]
        model.flags.writeable = False
        leader = Leader(spec=spec, layout=layout, model=model, term=assign.term, manager=self._node)
        store = CheckpointStore(self._places.checkpoints(spec.job))
        led = self._led[spec.job]
        led.checkpoints = store
        led.update_max_bytes = layout.size * 4
        loaded = store.load()
        if loaded is None:
            return leader
        state = dict(loaded.state)
        for name, reason in loaded.skipped:
            self._journal.add(spec.job, "checkpoint", f"{name} was damaged ({reason}); using {loaded.which}")
        leader.restore(tensors=loaded.tensors, state=state)
        self._journal.restore(spec.job, loaded.tensors, state, loaded.version)
        return leader

    async def _perform_leader(self, host: RoleHost, action: Action) -> None:
        match action:
            case Send():
                self._send(action.to, action.message)
            case Record():
                self._record(action)
            case Save():
                job = str(action.state["job"])
                self._spawn(self._save(job, host, action), f"save {job}")
            case End():
                self._spawn(self._release(host), f"end {host.key}")
            case _:
                raise Misuse(f"a leader does not ask for {type(action).__name__}")

    async def _save(self, job: str, host: RoleHost, save: Save) -> None:
        led = self._led.get(job)
        if led is None or led.checkpoints is None:
            return
        try:
            await asyncio.to_thread(self._save_now, led.checkpoints, job, save)
        except (ShoalError, OSError) as error:
            host.post(SaveFailed(version=save.version, reason=str(error)))
        else:
            host.post(Saved(version=save.version))

    def _save_now(self, store: CheckpointStore, job: str, save: Save) -> None:
        """The file first, with the rows inside; then the table, which the file can always mend."""
        rows, names = self._journal.pack(save)
        store.save(version=save.version, tensors={**save.tensors, **rows}, state={**save.state, **names})
        self._journal.commit(job, save)

    async def _release(self, host: RoleHost) -> None:
        for job, led in list(self._led.items()):
            if led.host is host:
                del self._led[job]
                self._switchboard.ended(job)
        await host.stop()

    # Operators and blobs ----------------------------------------------------------------------------------

    async def operate(self, peer: Peer, message: Message) -> Message:
        if isinstance(message, RollCommand):
            answer = await asyncio.to_thread(self.roll.answer, message, by=peer.node)
            self._enact(message)
            return answer
        match message:
            case AskStatus():
                return await asyncio.to_thread(self._status, message)
            case AskModel():
                return await asyncio.to_thread(self._export, message.job)
            case Submit():
                self._check_blobs(message.spec)
            case _:
                pass
        number = next(self._numbers)
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._questions[number] = waiting
        self._manager_host.post(Asked(question=number, message=message))
        try:
            return await asyncio.wait_for(waiting, ANSWER_TIMEOUT_S)
        except TimeoutError:
            return Denied(reason="the manager did not answer in time; look at its log")
        finally:
            self._questions.pop(number, None)

    def _enact(self, command: RollCommand) -> None:
        """What was decided about a member is durable: act on it at once."""
        if isinstance(command, ApproveNode | DrainNode | UndrainNode):
            self.heed(command.node)
        node = self.roll.refresh(command.node) if isinstance(command, RevokeNode) else None
        if node is None:
            return
        reason = self.roll.why_revoked(node)
        self._journal.add("", "revoked", f"{node.node} was {reason}")
        # Its leases return before its sessions end: nobody waits to see whether it comes back.
        self._carry(self._switchboard.expelled(node.node, reason=reason))
        for lane in Lane:
            session = self._sessions.get((node.node, lane))
            if session is not None:
                session.close(reason)

    def heed(self, name: str) -> None:
        """A member's standing may have changed: the manager gives it work, or does not."""
        node = self.roll.refresh(name)
        if node is not None:
            hold = node.state if node.state in HELD else ""
            self._manager_host.post(MemberHeld(node=name, hold=hold, reason=node.reason))

    def _check_blobs(self, spec: JobSpec) -> None:
        for what, sha256 in (("code", spec.bundle), ("first model", spec.initial), ("data", spec.train.manifest)):
            if not self._blobs.has(sha256):
                raise Refused(f"the job's {what} ({sha256[:12]}…) was not uploaded: submit it with `shoal train`")

    def _status(self, ask: AskStatus) -> Status:
        now_s = time.monotonic()
        heard_ago_s = self._switchboard.membership.heard_ago_s
        nodes = tuple(replace(view, heard_s=heard_ago_s(view.node, now_s)) for view in self._manager.node_views())
        events = self._registry.events_after(ask.job or CLUSTER, ask.after_event, limit=EVENTS_SHOWN)
        evaluations = self._registry.evaluations(ask.job) if ask.job else []
        return Status(
            cluster=self._identity.cluster,
            manager=self._node,
            nodes=self.roll.shown(nodes),
            jobs=self._manager.job_views(ask.job),
            events=tuple(EventView(seq=e.seq, at_s=e.at_s, kind=e.kind, reason=e.text) for e in events),
            evaluations=tuple(
                EvaluationView(
                    version=e.version,
                    epoch=e.epoch,
                    accuracy=e.accuracy,
                    loss=e.loss,
                    examples=e.examples,
                    seconds=e.at_s,
                )
                for e in evaluations
            ),
        )

    def _export(self, job: str) -> Message:
        """The newest durable model, as a blob of its own without Shoal's bookkeeping."""
        if self._registry.job(job) is None:
            raise Refused(f"there is no job {job}")
        loaded = CheckpointStore(self._places.checkpoints(job)).load()
        if loaded is None:
            raise Refused(f"job {job} has no checkpoint yet: try again in a moment")
        model = {name: array for name, array in loaded.tensors.items() if not name.startswith(OURS)}
        with tempfile.NamedTemporaryFile(dir=self._places.home, prefix=".export-") as file:
            tensor_files.write(cast(BinaryIO, file), model, {"job": job, "version": str(loaded.version)})
            file.flush()
            path = Path(file.name)
            return Blob(sha256=self._blobs.put(path), size_bytes=path.stat().st_size)

    async def renew(self, peer: Peer, message: Renew) -> Message:
        return await asyncio.to_thread(self.roll.renew, peer, message)

    def blob_path(self, peer: Peer, blob: Blob) -> Path:
        if not self._blobs.has(blob.sha256):
            raise Refused(f"no blob {blob.sha256[:12]}… here")
        return self._blobs.path(blob.sha256)

    async def store_blob(self, peer: Peer, blob: Blob, chunks: AsyncIterator[memoryview]) -> None:
        writer = self._blobs.writer(blob.sha256, blob.size_bytes)
        try:
            async for chunk in chunks:
                await asyncio.to_thread(writer.feed, chunk)
            await asyncio.to_thread(writer.commit)
        except BaseException:
            writer.abort()
            raise
