"""The always-on node: serves the cluster, keeps its state, and drives the manager and the leaders it appoints here.

Everything it decides is decided by roles; this file gives them messages, time and a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import Misuse, PeerViolation, Refused, ShoalError
from shoal.identity.chain import beside
from shoal.identity.identity import Identity, certificate_sha256
from shoal.identity.names import DEVICE_ROLES, RemoteIdentity
from shoal.identity.signing import check
from shoal.net.open_files import is_full
from shoal.roles.actions import (
    Action,
    Answer,
    DropFiles,
    DropJob,
    DropOldJobs,
    ForgetMember,
    GiveJob,
    Keep,
    Load,
    Record,
    Save,
    Store,
)
from shoal.roles.evaluation_rows import latest_within
from shoal.roles.events import (
    Asked,
    Event,
    JobGiven,
    LoadFailed,
    MemberHeld,
    PeerChanged,
    Received,
    Saved,
    SaveFailed,
    Stored,
    StoreFailed,
)
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.training_state import OURS
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.retention import evictions, megabytes
from shoal.roles.node.checkpoint_transfer import StoredVersion, packed, unpacked, version_of
from shoal.roles.node.doorway import LOOK_EVERY_S, Door
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HostRouter
from shoal.runtime import probe
from shoal.runtime.acts import AuditLog, act_of
from shoal.runtime.cluster_view import ClusterView, OwnView
from shoal.runtime.contents import Contents
from shoal.runtime.ended_jobs import CALLED_SHOWN, EndedJobs
from shoal.runtime.exports import Exports
from shoal.runtime.job_files import JobFiles
from shoal.runtime.job_retention import JobRetention
from shoal.runtime.journal import CLUSTER, Journal, JournalEvent
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.manager_memory import ManagerMemory
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.member_register import HELD, MemberRegister, RegisterCommand
from shoal.runtime.model_commands import ModelCommands
from shoal.runtime.pool import manager_pool
from shoal.runtime.publisher import Publisher
from shoal.runtime.role_host import RoleHost
from shoal.runtime.role_server import RoleServer, caller_of, make_leader
from shoal.runtime.seat_holder import Figures
from shoal.runtime.shared_jobs import SharedJobs
from shoal.runtime.stored_jobs import StoredJobs, view_of
from shoal.runtime.vitals import Vitals
from shoal.store.base import Away
from shoal.store.blobs import BlobStore
from shoal.store.depot import Depot, FolderDepot
from shoal.store.opening import StoreUsages
from shoal.store.registry import Registry
from shoal.store.remembered import Remembered
from shoal.store.rows import JobRow
from shoal.store.seat import Deposed
from shoal.wire import tensors as tensor_files
from shoal.wire.encoding import to_json
from shoal.wire.limits import MANAGERS_MAX
from shoal.wire.messages import (
    ApproveNode,
    AskActs,
    AskManager,
    AskModel,
    AskSpec,
    AskStatus,
    AskVersions,
    Assign,
    Blob,
    Checkpoint,
    CollectGarbage,
    Denied,
    Done,
    DrainManager,
    DrainNode,
    EvaluationView,
    EventView,
    ForgetNode,
    Heartbeat,
    Hello,
    JobSpec,
    JobView,
    LabelNode,
    Lane,
    Message,
    NodeView,
    PublishModel,
    RemoveJob,
    Renew,
    RevokeNode,
    RollBackModel,
    Status,
    StopJob,
    Submit,
    TransferJob,
    UndrainManager,
    UndrainNode,
    Welcome,
)

log = logging.getLogger("shoal")

#: An operator's command is answered within this time or fails.
ANSWER_TIMEOUT_S = 20.0

#: The nodes of one status: a reply does not grow with the fleet. An operator asks for the next ones.
NODES_SHOWN = 4000

#: The latest events of a job that one status holds.
EVENTS_SHOWN = 50

#: The latest evaluations that one status holds: a job without an end has ever more.
EVALUATIONS_SHOWN = 1000

#: How often the manager hears how its own node is: it may lead like any other.
HERE_EVERY_S = 5.0

#: How often the manager looks at its disk, where it has a quota. It looks when a job ends, too.
DISK_EVERY_S = 30.0

#: How often a manager looks what others did about members.
MEMBERS_EVERY_S = 1.0

#: How often a store that is away is tried again.
STORE_AGAIN_S = 0.5

#: A checkpoint holds the model, its momentum, its history and the state: what its first model does not predict.
CHECKPOINT_EXTRA_BYTES = 64 << 20

#: A blob of this size is worth another connection.
BY_URL_BYTES = 1 << 20


def _by_url(store: BlobStore, sha256: str) -> Blob | None:
    """Where a device is to download a blob; None: it comes from here, as a small one does."""
    url = store.url(sha256)
    facts = store.facts(sha256) if url else None
    if facts is None or facts.size_bytes < BY_URL_BYTES:
        return None
    return Blob(sha256=sha256, size_bytes=facts.size_bytes, url=url)


def _bare(word: str) -> str:
    return word.strip(",:;()")


_Result = TypeVar("_Result")


async def _with_store(
    act: Callable[..., _Result], *arguments: object, on_deposed: Callable[[Deposed], object]
) -> _Result:
    """Read or write, in a thread, what the manager decided to, however long its store is away: what follows from it
    waits. The manager decides nothing while a record of its own is written; heartbeats are answered elsewhere."""
    waits = False
    while True:
        try:
            result = await asyncio.to_thread(act, *arguments)
        except Deposed as error:
            # Nothing that this manager would do next counts: it ends.
            on_deposed(error)
            await asyncio.Event().wait()
        except Away as error:
            if not waits:
                log.warning("the manager waits for its store: %s", error)
            waits = True
            await asyncio.sleep(STORE_AGAIN_S)
        else:
            if waits:
                log.info("the manager's store is back")
            return result


class ManagerNode:
    """A service (see ``net.base``), the place of leaders that are at home, and the driver of the manager."""

    def __init__(
        self,
        identity: Identity,
        options: ManagerOptions,
        *,
        patience: Patience | None = None,
        registry: Registry | None = None,
        depot: Depot | None = None,
        is_shared: bool = False,
        remembered: Remembered | None = None,
        vitals: Vitals | None = None,
    ) -> None:
        """``registry`` and ``depot``: where its state is, if not in its home. ``is_shared``: another manager may have
        written there that was deposed since, so a checkpoint counts only if the registry names it. ``remembered``:
        notes what was written there. ``vitals``: what it says of itself."""
        self._identity = identity
        self._node = identity.node
        self._places = places = options.places
        self._patience = patience or Patience()
        self._vitals = vitals or Vitals(LoopWatch(), StoreUsages())
        #: Where devices find the managers of this cluster, told to each that connects; empty: this one is alone.
        self.managers: tuple[str, ...] = ()
        #: Another manager has taken over: this one is to end.
        self.on_deposed: Callable[[Deposed], object] = lambda error: None
        self._registry = registry or Registry(places.registry)
        #: A registry that was given is closed by its owner.
        self._owns_registry = registry is None
        self._depot = depot or FolderDepot(places.registry.parent)
        self._versions_kept = KeptVersions(self._depot, self._registry, is_shared=is_shared)
        self._blobs = self._depot.blobs
        self._exports = Exports(self._blobs)
        self._contents = Contents(self._blobs)
        self._journal = Journal(self._registry)
        self._acts = AuditLog(self._registry, manager=self._registry.holder or self._node)
        self._models = self._depot.models
        self._publisher = Publisher(self._registry, self._models, self._journal.add)
        self._files = JobFiles(places, self._registry, self._depot)
        self._models_asked = ModelCommands(
            self._registry,
            kept=self._versions_kept,
            blobs=self._blobs,
            publisher=self._publisher,
            exports=self._exports,
            spec=lambda job: self._ended.spec(job),
        )
        self._quota_bytes = options.disk_quota_bytes
        #: What was used when it was last measured, and uploaded since.
        self._used_bytes = 0
        self._disk_changed = asyncio.Event()
        #: Held while a job is submitted, and while files go that no job names.
        self._books = asyncio.Lock()
        self.register = MemberRegister(self._registry)
        self.register.guard = self._one_of_a_name
        self.register.on_alarm = functools.partial(self._journal.add, "", "alarm")
        self._memory = ManagerMemory(remembered, self._registry, self.register)
        self._router = HostRouter(node=self._node, patience=self._patience)
        self._role_server = RoleServer(self._router, self)
        #: The size of each first model that was asked for: what a hash names never changes.
        self._first_bytes: dict[str, int] = {}
        self._questions: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)
        stored = StoredJobs(self._registry, self._versions_kept, note=self._journal.add)
        self._manager = self._make_manager(options, stored)
        self._manager_host = RoleHost("manager", self._perform_manager, send=self._send)
        post = self._manager_host.post
        self._ended = EndedJobs(self._registry, stored, in_memory=self._manager.spec, post=post)
        self._keep_jobs = options.kept_jobs
        kept = (self._registry, self._files, self._acts, self._versions_kept, self._memory)
        self._retention = JobRetention(*kept, books=self._books, note=self._journal.add, post=post)
        #: Other managers and their jobs; None: this one is alone.
        self.shared = self._make_shared(stored) if self._registry.holder else None
        self._here = OwnView(self._manager, self._router.membership.heard_ago_s)
        #: What the other managers have; None: this one is alone.
        self.view = ClusterView(self._registry, self._here) if self._registry.holder else None
        self._journal.context = self._context_of
        self._exchange = manager_pool(held=self.register.held(), note=self._record)
        self._role_server.features["pool"] = self._exchange

    def _make_manager(self, options: ManagerOptions, stored: StoredJobs) -> Manager:
        return Manager(
            node=self._node,
            patience=self._patience,
            jobs=stored.records(),
            held=self.register.held(),
            cards=self.register.cards(),
            labels=self.register.labels(),
            members=self.register.devices(),
            cpus=os.cpu_count() or 1,
            prefers_devices=options.prefers_devices,
            check_in_s=options.check_in_s,
        )

    def _make_shared(self, stored: StoredJobs) -> SharedJobs:
        return SharedJobs(
            self._registry,
            knows=lambda job: self._manager.spec(job) is not None or self._manager.is_giving(job),
            post=self._manager_host.post,
            record_of=stored.record,
            on_ended=self._memory.on_ended,
            is_full=lambda: is_full(self._router.membership.present),
        )

    @property
    def listener(self) -> RoleServer:
        return self._role_server

    @property
    def registry(self) -> Registry:
        return self._registry

    def on_event(self, hear: Callable[[JournalEvent], None]) -> None:
        """``hear`` is told of every event from now on, and must not block."""
        self._journal.on_event = hear

    def note(self, kind: str, reason: str, *, job: str = "") -> None:
        """Write down what happened around the cluster, such as a hook that failed."""
        self._journal.add(job, kind, reason)

    @property
    def open_jobs(self) -> tuple[str, ...]:
        return tuple(view.job for view in self._manager.job_views() if view.state.is_open)

    async def start(self) -> None:
        self._manager_host.start(self._manager)
        self._role_server.spawn(self._role_server.watch(), "membership")
        self._role_server.spawn(self._journal.run(), "journal")
        self._role_server.spawn(self._tell_how_we_are(), "load")
        if self._quota_bytes:
            self._role_server.spawn(self._mind_the_disk(), "disk")
        if self._keep_jobs is not None:
            self._role_server.spawn(self._retention.run(self._keep_jobs), "retention")
        if self.shared is not None:
            self._role_server.spawn(self._mind_members(), "members")
        if self.view is not None:
            self._role_server.spawn(self.view.run(), "view")
        self._role_server.spawn(self._memory.run(), "memory")

    async def stop(self) -> None:
        """Let go of everything. Nothing is lost by not calling this: a crash is as good."""
        await self._manager_host.stop()
        await self._exchange.stop()
        await self._role_server.stop()
        await asyncio.to_thread(self._journal.flush)
        if self._owns_registry:
            self._registry.close()

    async def _tell_how_we_are(self) -> None:
        for seq in itertools.count(1):
            beat = Heartbeat(seq=seq, load=probe.load(), memory_free_mb=probe.memory_free_mb())
            self._manager_host.post(Received(sender=self._node, message=beat))
            await asyncio.sleep(HERE_EVERY_S)

    async def _mind_the_disk(self) -> None:
        while True:
            await self._measure_disk()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._disk_changed.wait(), DISK_EVERY_S)
            self._disk_changed.clear()

    async def _measure_disk(self, *, wanted: dict[str, int] | None = None, more_bytes: int = 0) -> int:
        """Tell the manager what its disk holds. How many bytes are too many, even without what ended jobs can give."""
        if not self._quota_bytes:
            return 0
        measure = functools.partial(
            self._files.measure, quota_bytes=self._quota_bytes, wanted=wanted, more_bytes=more_bytes
        )
        disk = await asyncio.to_thread(measure)
        self._used_bytes = disk.used_bytes
        self._manager_host.post(disk)
        over = disk.used_bytes - disk.quota_bytes
        return evictions(over, checkpoints=disk.checkpoints, contents=disk.contents)[1]

    # Peers --------------------------------------------------------------------------------------------

    async def _one_of_a_name(self, peer: RemoteIdentity, verb: str) -> str:
        """Why this process of a node may not open a stream; empty: it may. The one before it has a moment to speak."""
        if peer.role not in DEVICE_ROLES or verb not in (Lane.CONTROL, Lane.WORK):
            return ""
        doorway = self._router.doorway
        knock = doorway.knock(caller_of(peer))
        self._role_server.roles.carry(self._router.on_knock(knock.caller))
        while (answer := doorway.ask(knock))[0] is Door.WAIT:
            await asyncio.sleep(LOOK_EVERY_S)
        door, reason = answer
        if door is Door.SHUT and reason is not None:
            self.register.alarm(peer.node, peer.address, reason)
        return reason or ""

    async def before_hello(self, hello: Hello) -> None:
        if self.shared is not None:
            await self.shared.before_hello(hello)
        await self._ended.before_hello(hello)

    @property
    def figures(self) -> Figures:
        """What other managers are told of this one."""
        wants, starving = self._manager.needs
        return Figures(wants=wants, starving=starving, devices=self._router.membership.present)

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        self._journal.add("", "refused", f"{peer.node} {reason}")

    def checkpoint_limit(self, checkpoint: Checkpoint) -> int:
        """As large as the job's first model makes likely."""
        spec = self._manager.spec(checkpoint.job)
        if spec is None:
            return 0
        first_bytes = self._first_bytes.get(spec.initial)
        if first_bytes is None:
            facts = self._blobs.facts(spec.initial)
            if facts is None:
                return 0
            first_bytes = self._first_bytes[spec.initial] = facts.size_bytes
        return 3 * first_bytes + CHECKPOINT_EXTRA_BYTES

    def awaits_checkpoint(self, sender: str, checkpoint: Checkpoint) -> bool:
        return self._manager.awaits(sender, checkpoint)

    # The place of leaders at home -------------------------------------------------------------------------

    def to_manager(self, event: Event) -> None:
        self._manager_host.post(event)
        match event:
            case PeerChanged():
                self._exchange.changed(event)
            case Received(message=Hello() as hello):
                self._exchange.said_hello(event.sender, lends=hello.lends)
            case _:
                pass

    def say(self, to: str, message: Message) -> None:
        raise Misuse("the manager's node dials nobody")

    def record(self, job: str, record: Record) -> None:
        self._record(record)

    def set_up_leader(self, host: RoleHost, assign: Assign) -> None:
        self._role_server.spawn(self._set_up_leader(host, assign), f"lead {assign.job}")

    async def _set_up_leader(self, host: RoleHost, assign: Assign) -> None:
        try:
            leader = await _with_store(self._make_leader, assign, on_deposed=self.on_deposed)
        except Exception as error:
            if not isinstance(error, ShoalError | OSError | KeyError | ValueError):
                log.exception("job %s could not be started", assign.job)
            self._role_server.roles.fail(host, assign.job, str(error))
            return
        self._role_server.roles.begin(host, assign, leader)

    def resume(self, host: RoleHost, assign: Assign, checkpoint: Checkpoint) -> None:
        raise Misuse("a leader at home goes on from its disk")

    def _make_leader(self, assign: Assign) -> Leader:
        """Read the job's first model and its newest good checkpoint. Runs in a thread."""
        version = self._newest(assign.job)
        return make_leader(self._blobs.path(assign.spec.initial), assign, version, manager=self._node)

    async def open_door(self) -> str:
        raise Misuse("an aggregator is on a device")

    def save(self, host: RoleHost, job: str, save: Save) -> None:
        self._role_server.spawn(self._save(host, job, save), f"save {job}")

    async def _save(self, host: RoleHost, job: str, save: Save) -> None:
        try:
            await asyncio.to_thread(self._save_now, job, save)
        except (ShoalError, OSError) as error:
            host.post(SaveFailed(version=save.version, reason=str(error)))
        else:
            host.post(Saved(version=save.version))

    # What survives ----------------------------------------------------------------------------------------

    def _save_now(self, job: str, save: Save) -> None:
        version = version_of(save)
        with self._versions_kept.kept(job, version) as name:
            self._journal.commit(job, save, checkpoint=name)
        self._memory.on_version(job, name)
        self._weigh(job, version)

    def _newest(self, job: str) -> StoredVersion | None:
        """Where a job stands: its newest good checkpoint, and the history that belongs to it. Runs in a thread."""
        loaded = self._versions_kept.load(job)
        if loaded is None:
            return None
        for name, reason in loaded.skipped:
            told = f"{name} cannot be used ({reason}): the job goes on from version {loaded.version}, {loaded.which}"
            self._journal.add(job, "checkpoint", told)
        version = StoredVersion(version=loaded.version, tensors=loaded.tensors, state=dict(loaded.state))
        # A database that went back may list a batch under a version that was given up since.
        self._journal.restore(job, version, is_file_right=self._registry.is_shared)
        self._weigh(job, version)
        return version

    def _weigh(self, job: str, version: StoredVersion) -> None:
        """A version that is durable may be better than the one that is served. That it could not be published is no
        reason to train on without: it is tried again with the next."""
        spec = self._manager.spec(job)
        if spec is None:
            return
        try:
            self._publisher.weigh(job, spec.plan, version)
        except Exception as error:
            # Whatever it was, the checkpoint is durable, and its leader waits to hear so.
            if not isinstance(error, ShoalError | OSError):
                log.exception("version %d of %s could not be published", version.version, job)
            self._journal.add(job, "publish-failed", f"version {version.version}: {error}; trying again")

    async def _keep_sent(self, checkpoint: Checkpoint) -> None:
        """A leader elsewhere sent a version: it is answered once it is durable here."""
        job, term, at = checkpoint.job, checkpoint.term, checkpoint.version
        try:
            is_last = await asyncio.to_thread(self._keep_sent_now, checkpoint)
        except Exception as error:
            # Whatever it was, the manager must hear: until then nothing of this job is kept, and nobody else leads it.
            if isinstance(error, PeerViolation):
                self._journal.add(job, "refused", f"version {at} of its leader: {error.reason}")
            elif not isinstance(error, ShoalError | OSError):
                log.exception("version %d of %s could not be kept", at, job)
            self._manager_host.post(StoreFailed(job=job, term=term, version=at, reason=str(error)))
        else:
            self._manager_host.post(Stored(job=job, term=term, version=at, is_last=is_last))

    def _keep_sent_now(self, checkpoint: Checkpoint) -> bool:
        """Whether it is the job's last version."""
        version = unpacked(checkpoint)
        spec = self._manager.spec(checkpoint.job)
        if version is None or spec is None:
            raise Misuse("an empty checkpoint, or one of no job")
        first, _ = tensor_files.read(self._blobs.path(spec.initial), mmap=True)
        model = {name: array for name, array in version.tensors.items() if not name.startswith(OURS)}
        if {name: array.shape for name, array in model.items()} != {name: a.shape for name, a in first.items()}:
            raise PeerViolation("a checkpoint of another model than the job's")
        with self._versions_kept.kept(checkpoint.job, version) as name:
            self._journal.restore(checkpoint.job, version, checkpoint=name)
        self._memory.on_version(checkpoint.job, name)
        self._weigh(checkpoint.job, version)
        return bool(version.state.get("ending"))

    async def _load(self, load: Load) -> None:
        """Send the new leader of a job where it stands."""
        try:
            version = await _with_store(self._newest, load.job, on_deposed=self.on_deposed)
            message = await asyncio.to_thread(packed, version, job=load.job, term=load.term)
        except (ShoalError, OSError, KeyError, ValueError) as error:
            self._manager_host.post(LoadFailed(job=load.job, term=load.term, reason=str(error)))
            return
        self._role_server.roles.post(load.to, message)

    # The manager ----------------------------------------------------------------------------------------

    async def _perform_manager(self, host: RoleHost, action: Action) -> None:
        match action:
            case Keep():
                await _with_store(self._keep, action, on_deposed=self.on_deposed)
                if action.state.is_ended:
                    self._disk_changed.set()
            case ForgetMember():
                await _with_store(
                    functools.partial(self._registry.forget_node, now_s=time.time()),
                    action.node,
                    on_deposed=self.on_deposed,
                )
                self.register.refresh(action.node)
                await self._memory.on_revoked()
            case DropJob():
                self._versions_kept.let_go(action.job)
                await _with_store(self._files.drop_job, action.job, on_deposed=self.on_deposed)
                await self._memory.on_removed(action.job)
            case DropOldJobs():
                self._role_server.spawn(self._retention.drop(action), "old jobs")
            case DropFiles():
                await _with_store(self._drop_files, action, on_deposed=self.on_deposed)
            case Store():
                self._role_server.spawn(self._keep_sent(action.checkpoint), f"keep {action.checkpoint.job}")
            case GiveJob():
                host.post(await self._give(action))
            case Load():
                self._role_server.spawn(self._load(action), f"load {action.job}")
            case Answer():
                waiting = self._questions.pop(action.question, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(action.message)
            case Record():
                self._record(action)
            case _:
                raise Misuse(f"a manager does not ask for {type(action).__name__}")

    async def _give(self, give: GiveJob) -> JobGiven:
        assert self.shared is not None, "a manager that is alone gives no job away"
        # Events of the job are written while it is still this manager's.
        await asyncio.to_thread(self._journal.flush)
        while True:
            try:
                given = await _with_store(self.shared.give, give.job, give.endpoint, on_deposed=self.on_deposed)
            except (ShoalError, OSError) as error:
                # The role has forgotten the job and waits for the answer: without one, no manager would run it.
                log.warning("whether job %s is given away is not known yet, trying again: %s", give.job, error)
                await asyncio.sleep(STORE_AGAIN_S)
            else:
                self._versions_kept.let_go(give.job)
                return given

    def _send(self, to: str, message: Message) -> None:
        if isinstance(message, Welcome):
            # Roles know no clock, and a device without a battery does not know the time.
            managers = self.managers
            if self.shared is not None:
                managers = tuple(dict.fromkeys((*managers, *self.shared.addresses)))[:MANAGERS_MAX]
            message = replace(message, time_s=time.time(), managers=managers)
        self._role_server.roles.send(to, message)

    def _keep(self, keep: Keep) -> None:
        now_s = time.time()
        # It may have been written already, by an attempt that found the store gone later on.
        if keep.spec is not None and self._registry.job(keep.job) is None:
            spec_json = json.dumps(to_json(keep.spec))
            self._registry.add_job(job=keep.job, name=keep.spec.name, spec_json=spec_json, now_s=now_s)
        stored = self._registry.job(keep.job)
        while stored is not None and stored.term < keep.term:
            self._registry.next_term(keep.job)
            stored = self._registry.job(keep.job)
        if keep.terms is not None:
            self._registry.save_terms(keep.job, json.dumps(keep.terms))
        self._registry.set_job_state(keep.job, keep.state, now_s=now_s, reason=keep.reason, leader=keep.leader)
        progress = next((view.progress for view in self._manager.job_views(keep.job)), None)
        if progress is not None:
            self._registry.save_progress(keep.job, json.dumps(to_json(progress)))
        self._memory.on_kept(keep, now_s)

    def _context_of(self, job: str, reason: str) -> Mapping[str, Any]:
        """What the log says of an event besides its reason: the device that it names, the term and version of its
        job."""
        views = self._manager.job_views(job) if job else ()
        progress = views[0].progress if views else None
        return {
            "node": next((word for word in map(_bare, reason.split()) if self._manager.knows(word)), None),
            "term": views[0].term if views else None,
            "version": progress.version if progress is not None else None,
        }

    def _drop_files(self, drop: DropFiles) -> None:
        if drop.checkpoints:
            self._versions_kept.let_go(drop.job)
            self._files.remove_checkpoints(drop.job)
        if drop.contents:
            self._files.remove_contents(drop.job)

    def _record(self, record: Record) -> None:
        self._journal.add(record.job, record.kind, record.reason, record.traceback)

    # Operators and blobs ----------------------------------------------------------------------------------

    async def operate(self, peer: RemoteIdentity, message: Message) -> Message:
        is_about_members = isinstance(message, RegisterCommand)
        if not is_about_members and self.shared is not None:
            denied = await self.shared.elsewhere(message)
            if denied is not None:
                return denied
        act = act_of(message)
        if act is None:
            return await self._carry_out(peer, message)
        answer = await self._acts.carry_out(peer, act, lambda: self._carry_out(peer, message), run=asyncio.to_thread)
        if not isinstance(answer, Denied):
            self._journal.add(act.job, "operator", f"{peer.node}: {act.told}")
        return answer

    async def _carry_out(self, peer: RemoteIdentity, message: Message) -> Message:
        if isinstance(message, RegisterCommand):
            answer = await asyncio.to_thread(self.register.answer, message, by=peer.node)
            self._enact(message)
            if isinstance(message, RevokeNode):
                await self._memory.on_revoked()
            return answer
        match message:
            case AskManager():
                return self._vitals.view()
            case DrainManager() | UndrainManager():
                return await asyncio.to_thread(self._set_drained, message, peer.node)
            case AskActs():
                return await asyncio.to_thread(self._acts.page, message)
            case AskStatus():
                return await asyncio.to_thread(self._status, message)
            case AskModel() | PublishModel() | RollBackModel() | AskVersions():
                return await asyncio.to_thread(self._models_asked.answer, message)
            case AskSpec():
                return await asyncio.to_thread(self._ended.submitted, message)
            case CollectGarbage():
                return await self._collect_garbage(message)
            case ForgetNode():
                await asyncio.to_thread(self.register.check_forget, message.node)
            case Submit():
                await self._check_signature(message.spec)
                # Until the job is on the books, nothing that it names may go.
                async with self._books:
                    known = await asyncio.to_thread(self._ended.why_not_new, message.spec)
                    if known is not None:
                        return known
                    await asyncio.to_thread(self._check_blobs, message.spec)
                    need = await asyncio.to_thread(self._files.checkpoints_take, message.spec)
                    await self._measure_disk(wanted={message.spec.job: need})
                    return await self._ask_manager(message, by=peer.node)
            case StopJob() | TransferJob() | RemoveJob():
                await self._ended.look_up([message.job])
            case _:
                pass
        return await self._ask_manager(message, by=peer.node)

    def _set_drained(self, command: DrainManager | UndrainManager, by: str) -> Done:
        """Runs in a thread. The manager that is meant sees it with its next look at the store."""
        if self.shared is None:
            raise Refused(
                "this cluster has one manager, and its jobs have nowhere to go: several managers share a PostgreSQL and"
                " a bucket (`shoal up --store ... --blobs ...`)"
            )
        own = next((seat.address for seat in self._registry.seats() if seat.holder == self._registry.holder), "")
        manager = command.manager or own
        if isinstance(command, UndrainManager):
            self._registry.undrain_manager(manager)
            return Done(reason=f"the manager at {manager} takes jobs again")
        self._registry.drain_manager(manager, f"{by}: {command.reason}" if command.reason else by)
        return Done(
            reason=f"the manager at {manager} gives its jobs to others and takes no more; undo with"
            f" `shoal managers undrain {manager}`"
        )

    async def _collect_garbage(self, asked: CollectGarbage) -> Message:
        async with self._books:
            found = await asyncio.to_thread(self._files.garbage if asked.dry_run else self._files.collect)
        verb = "would go" if asked.dry_run else "went"
        count = len(found.blobs) + len(found.jobs)
        return Done(reason=f"{megabytes(found.size_bytes)} in {count} files and folders that no job names {verb}")

    async def _ask_manager(self, message: Message, *, by: str) -> Message:
        """Have the manager decide."""
        number = next(self._numbers)
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._questions[number] = waiting
        self._manager_host.post(Asked(question=number, message=message, by=by))
        try:
            return await asyncio.wait_for(waiting, ANSWER_TIMEOUT_S)
        except TimeoutError:
            return Denied(reason="the manager did not answer in time; look at its log")
        finally:
            self._questions.pop(number, None)

    def _enact(self, command: RegisterCommand) -> None:
        """What was decided about a member is durable: act on it at once."""
        if isinstance(command, ApproveNode | DrainNode | UndrainNode | LabelNode):
            self.heed(command.node)
        node = self.register.refresh(command.node) if isinstance(command, RevokeNode) else None
        if node is None:
            return
        for gone in (node, *self.register.shut_out_with(node.node)):
            reason = self.register.why_revoked(gone)
            self._journal.add("", "revoked", f"{gone.node} was {reason}")
            self._expel(gone.node, reason)

    def _expel(self, name: str, reason: str) -> None:
        """A member was revoked. Its leases return before its sessions end: nobody waits to see whether it comes
        back."""
        self._role_server.roles.carry(self._router.on_expelled(name, reason=reason))
        self._role_server.hang_up(name, reason)
        self._hold(MemberHeld(node=name, hold="revoked", reason=reason))

    async def _mind_members(self) -> None:
        """Act on what other managers decided about members."""
        while True:
            await asyncio.sleep(MEMBERS_EVERY_S)
            try:
                changed = await self.register.catch_up()
            except ShoalError as error:
                log.debug("members are not up to date: %s", error)
                continue
            for member in changed:
                if member.state == "revoked":
                    self._expel(member.node, self.register.why_revoked(member))
                else:
                    self.hold_or_employ(member.node)
            if any(member.state == "revoked" for member in changed):
                await self._memory.on_revoked()

    def heed(self, name: str) -> None:
        """A member's standing may have changed in the registry."""
        self.register.refresh(name)
        self.hold_or_employ(name)

    def hold_or_employ(self, name: str) -> None:
        """The manager gives a member work, or does not, by its standing."""
        node = self.register.member(name)
        if node is not None:
            hold = node.state if node.state in HELD else ""
            card = bytes.fromhex(node.card)
            self._hold(MemberHeld(node=name, hold=hold, reason=node.reason, card=card, labels=node.labels))

    def _hold(self, event: MemberHeld) -> None:
        self._manager_host.post(event)
        self._exchange.held(event)

    async def _check_signature(self, spec: JobSpec) -> None:
        """Devices will ask for it: what they would not run is not queued."""
        own = self._identity
        try:
            signer = await asyncio.to_thread(check, spec, ca_pem=own.ca_pem, cluster=own.cluster, now_s=time.time())
            shown = certificate_sha256(spec.signer_pem.encode())
            named = RemoteIdentity(
                node=signer,
                role="operator",
                cluster=own.cluster,
                certificate=shown,
                authorities=beside(shown, [spec.signer_pem.encode()]),
            )
            if self.register.role_now(named) != "operator":
                raise PeerViolation("the job's signer waits to be approved", peer=signer)
        except PeerViolation as error:
            raise Refused(f"the job was not taken: {error}") from error

    def _check_blobs(self, spec: JobSpec) -> None:
        base = (("frozen base", part) for part in spec.base)
        graphs = (("graphs", spec.graphs),) if spec.graphs else ()
        named = (("code", spec.bundle), ("first model", spec.initial), ("data", spec.train.manifest), *base, *graphs)
        shards = sorted(self._contents.all_of(spec) - {sha256 for _, sha256 in named} - {spec.test.manifest})
        for what, sha256 in (*named, *(("data", shard) for shard in shards)):
            if not self._blobs.has(sha256):
                raise Refused(f"the job's {what} ({sha256[:12]}…) was not uploaded: submit it with `shoal train`")

    def _node_page(self, after: str, now_s: float) -> tuple[tuple[NodeView, ...], str]:
        """The nodes of one status, by name, and the name of the last one if there are more."""
        elsewhere = self.view.node_names if self.view is not None else ()
        listed = self.register.listed((*self._manager.node_names, *elsewhere))
        names = heapq.nsmallest(NODES_SHOWN + 1, (name for name in listed if name > after))
        page = names[:NODES_SHOWN]
        views = self._here.nodes(page, now_s)
        if self.view is not None:
            views = self.view.with_others(views, page)
        return self.register.shown(views, page), page[-1] if len(names) > len(page) else ""

    def _status(self, ask: AskStatus) -> Status:
        now_s = time.monotonic()
        here = Status(cluster=self._identity.cluster, manager=self._node)
        if ask.called:
            return self._ended.counted(replace(here, jobs=self._jobs_called(ask.called, now_s)))
        if ask.ended_page:
            jobs, next_page = self._ended.page(ask.ended_page, now_s=time.time())
            return self._ended.counted(replace(here, jobs=jobs, next_ended_page=next_page))
        nodes, next_node = self._node_page(ask.after_node, now_s)
        if ask.after_node:
            return replace(here, nodes=nodes, next_node=next_node)
        if ask.tracebacks:
            events = self._registry.tracebacks(ask.job)
        else:
            events = self._registry.events_after(ask.job or CLUSTER, ask.after_event, limit=EVENTS_SHOWN)
        evaluations = self._registry.evaluations(ask.job, latest=EVALUATIONS_SHOWN) if ask.job else []
        return replace(
            here if ask.job else self._ended.counted(here),
            nodes=nodes,
            next_node=next_node,
            jobs=tuple(
                replace(view, served=self._publisher.served(view.job)) if ask.job else view
                for view in self._job_views(ask.job, now_s)
            ),
            events=tuple(
                EventView(seq=e.seq, at_s=e.at_s, kind=e.kind, reason=e.text, traceback=e.traceback) for e in events
            ),
            executors=self._exchange.views(),
            evaluations=tuple(
                EvaluationView(
                    version=e.version,
                    epoch=e.epoch,
                    accuracy=e.accuracy,
                    loss=e.loss,
                    examples=e.examples,
                    seconds=e.at_s,
                    metrics=e.metrics,
                )
                for e in evaluations[len(evaluations) - latest_within(evaluations, most=EVALUATIONS_SHOWN) :]
            ),
        )

    def _job_views(self, job: str, now_s: float) -> tuple[JobView, ...]:
        own = self._manager.job_views(job or None, now_s=now_s)
        if self.view is not None:
            own = self.view.named(own)
        if job:
            row = self._registry.job(job) if not own else None
            return own if row is None else (self._stored_view(row),)
        others = self.shared.rows(here={view.job for view in own}) if self.shared is not None else ()
        return (*self._ended.listed(own, now_s=time.time()), *map(self._stored_view, others))

    def _stored_view(self, row: JobRow) -> JobView:
        """A job that the manager role does not have."""
        return self.view.job(row) if self.view is not None else view_of(row, now_s=time.time())

    def _jobs_called(self, text: str, now_s: float) -> tuple[JobView, ...]:
        """The jobs that an operator may mean; if there are none, those that a status lists."""
        called = self._registry.called(text, limit=CALLED_SHOWN)
        found = [view for row in called for view in self._job_views(row.job, now_s)]
        return tuple(found) or self._job_views("", now_s)

    async def renew(self, peer: RemoteIdentity, message: Renew) -> Message:
        return await asyncio.to_thread(self.register.renew, peer, message)

    async def find_blob(self, peer: RemoteIdentity, blob: Blob) -> Path | Blob:
        """An operator may have any blob, models too; a device what the jobs that it has now are made of."""
        is_operator, specs = peer.role == "operator", tuple(self._manager.specs_of(peer.node))

        def find() -> Path | Blob | None:
            if is_operator or any(self._contents.include(spec, blob.sha256) for spec in specs):
                for store in (self._blobs, self._models) if is_operator else (self._blobs,):
                    if blob.takes_url and (answer := _by_url(store, blob.sha256)) is not None:
                        return answer
                    with contextlib.suppress(Misuse):
                        return store.path(blob.sha256)
            return None

        # In a thread: the blob may have to come from elsewhere first.
        found = await asyncio.to_thread(find)
        if found is not None:
            return found
        # The same words for an absent blob and for one that the caller may not have: asking for a hash tells nothing.
        raise Refused(
            f"no blob {blob.sha256[:12]}… for {peer.node}: a device fetches what the job it works for is made of;"
            " if it was given that job a moment ago, it tries again"
        )

    async def store_blob(self, peer: RemoteIdentity, blob: Blob, chunks: AsyncIterator[memoryview]) -> None:
        if self._quota_bytes and self._used_bytes + blob.size_bytes > self._quota_bytes:
            left = await self._measure_disk(more_bytes=blob.size_bytes)
            if left:
                raise Refused(
                    f"the disk quota of {megabytes(self._quota_bytes)} lacks {megabytes(left)} for this upload, even"
                    " without the files of ended jobs: remove jobs (`shoal jobs rm`), or start the manager with a"
                    " larger --disk-quota"
                )
        self._used_bytes += blob.size_bytes
        writer = self._blobs.writer(blob.sha256, blob.size_bytes)
        try:
            async for chunk in chunks:
                await asyncio.to_thread(writer.feed, chunk)
            await asyncio.to_thread(writer.commit)
        except BaseException:
            writer.abort()
            raise
