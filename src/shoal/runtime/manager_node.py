"""The always-on node: serves the cluster, keeps its state, and drives the manager and the leaders it appoints here.

Everything it decides is decided by roles; this file gives them messages, time and a disk.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import Misuse, Refused, ShoalError
from shoal.identity.identity import Identity
from shoal.identity.names import RemoteIdentity
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
from shoal.roles.events import (
    Event,
    JobGiven,
    LoadFailed,
    MemberHeld,
    PeerChanged,
    Received,
)
from shoal.roles.leader.leader import Leader
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.retention import megabytes
from shoal.roles.node.checkpoint_transfer import packed
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HostRouter
from shoal.runtime import probe
from shoal.runtime.acts import AuditLog, act_of
from shoal.runtime.blob_exchange import BlobExchange
from shoal.runtime.cluster_view import ClusterView, OwnView
from shoal.runtime.contents import Contents
from shoal.runtime.disk_quota import DiskQuota
from shoal.runtime.door_guard import DoorGuard
from shoal.runtime.ended_jobs import EndedJobs
from shoal.runtime.entry_intake import EntryIntake
from shoal.runtime.exports import Exports
from shoal.runtime.job_files import JobFiles
from shoal.runtime.job_retention import JobRetention
from shoal.runtime.job_versions import JobVersions
from shoal.runtime.journal import Journal, JournalEvent
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.manager_memory import ManagerMemory
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.member_register import MemberRegister, RegisterCommand
from shoal.runtime.model_commands import ModelCommands
from shoal.runtime.pool import manager_pool
from shoal.runtime.publisher import Publisher
from shoal.runtime.questions import Questions
from shoal.runtime.role_host import RoleHost
from shoal.runtime.role_server import RoleServer, make_leader
from shoal.runtime.seat_holder import Figures
from shoal.runtime.shared_jobs import SharedJobs
from shoal.runtime.standings import Standings
from shoal.runtime.status_pages import StatusPages
from shoal.runtime.stored_jobs import StoredJobs
from shoal.runtime.submissions import Submissions
from shoal.runtime.tab_offers import TabOffer, tab_offers
from shoal.runtime.vitals import Vitals
from shoal.runtime.with_store import with_store
from shoal.store.depot import Depot, FolderDepot
from shoal.store.opening import StoreUsages
from shoal.store.registry import Registry
from shoal.store.remembered import Remembered
from shoal.store.seat import Deposed
from shoal.wire.limits import MANAGERS_MAX
from shoal.wire.messages import (
    AskActs,
    AskContributions,
    AskManager,
    AskModel,
    AskSpec,
    AskStatus,
    AskVersions,
    Assign,
    Blob,
    Checkpoint,
    CollectGarbage,
    Contribute,
    Denied,
    Done,
    DrainManager,
    ForgetNode,
    Heartbeat,
    Hello,
    JobSpec,
    Message,
    PublishModel,
    RemoveJob,
    Renew,
    RollBackModel,
    SettleContributions,
    Status,
    StopJob,
    Submit,
    TransferJob,
    UndrainManager,
    Welcome,
)

log = logging.getLogger("shoal")

#: How often the manager hears how its own node is: it may lead like any other.
HERE_EVERY_S = 5.0


def _bare(word: str) -> str:
    return word.strip(",:;()")


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
        notes what was written there. ``vitals``: how well this manager works."""
        self._identity = identity
        self._node = identity.node
        self._places = places = options.places
        self._patience = patience or Patience()
        self._vitals = vitals or Vitals(LoopWatch(), StoreUsages())
        #: Where devices dial the managers of this cluster, sent to each that connects; empty if there is one manager.
        self.managers: tuple[str, ...] = ()
        #: Called when another manager has taken over: this one must end.
        self.on_deposed: Callable[[Deposed], object] = lambda error: None
        self.registry = registry or Registry(places.registry)
        #: A registry that was given is closed by its owner.
        self._owns_registry = registry is None
        self._depot = depot or FolderDepot(places.registry.parent)
        self._kept = KeptVersions(self._depot, self.registry, is_shared=is_shared)
        self._blobs = self._depot.blobs
        self._journal = Journal(self.registry)
        self._acts = AuditLog(self.registry, manager=self.registry.holder or self._node)
        self._publisher = Publisher(self.registry, self._depot.models, self._journal.add)
        self._files = JobFiles(places, self.registry, self._depot)
        #: Held while a job is submitted, and while files go that no job names.
        self._books = asyncio.Lock()
        self.register = MemberRegister(self.registry)
        self.register.on_alarm = functools.partial(self._journal.add, "", "key.misused")
        self._memory = ManagerMemory(remembered, self.registry, self.register)
        self._router = HostRouter(node=self._node, patience=self._patience)
        self._role_server = RoleServer(self._router, self)
        guard = DoorGuard(self._router, carry=self._role_server.roles.carry, alarm=self.register.alarm)
        self.register.guard = guard.why_not
        self._stored = StoredJobs(self.registry, self._kept, note=self._journal.add)
        self._manager = self._make_manager(options)
        self._manager_host = RoleHost("manager", self._perform_manager, send=self._send)
        post = self._manager_host.post
        self._questions = Questions(post)
        self._quota = DiskQuota(self._files, options.disk_quota_bytes, post=post)
        self._versions = self._make_versions()
        self._ended = EndedJobs(self.registry, self._stored, in_memory=self._manager.spec, post=post)
        self._model_commands = self._make_model_commands()
        self._keep_jobs = options.kept_jobs
        kept = (self.registry, self._files, self._acts, self._kept, self._memory)
        self._retention = JobRetention(*kept, books=self._books, note=self._journal.add, post=post)
        contents = Contents(self._blobs)
        self._submissions = self._make_submissions(contents)
        self._blob_exchange = BlobExchange(
            self._blobs, self._depot.models, contents=contents, quota=self._quota, specs_of=self._manager.specs_of
        )
        #: Other managers and their jobs, or None if this one is the only manager.
        self.shared = self._make_shared() if self.registry.holder else None
        own = OwnView(self._manager, self._router.membership.heard_ago_s)
        #: Nodes and jobs of other managers, or None if this one is the only manager.
        self.view = ClusterView(self.registry, own) if self.registry.holder else None
        self._contributions = self._make_contributions(options)
        self._exchange = manager_pool(held=self.register.held(), note=self._journal.record)
        self._role_server.features["pool"] = self._exchange
        self.standings = Standings(
            self.register, self._memory, tell=self._hold, disconnect=self._disconnect, note=self._journal.add
        )
        self._status = self._make_status(own)
        # Not before: it reads the manager role.
        self._journal.context = self._context_of

    def _make_manager(self, options: ManagerOptions) -> Manager:
        return Manager(
            node=self._node,
            patience=self._patience,
            jobs=self._stored.records(),
            held=self.register.held(),
            cards=self.register.cards(),
            labels=self.register.labels(),
            members=self.register.devices(),
            cpus=os.cpu_count() or 1,
            prefers_devices=options.prefers_devices,
            check_in_s=options.check_in_s,
        )

    def _make_versions(self) -> JobVersions:
        return JobVersions(
            self.registry,
            self._blobs,
            self._kept,
            self._journal,
            self._publisher,
            self._memory,
            spec=self._manager.spec,
            post=self._manager_host.post,
        )

    def _make_model_commands(self) -> ModelCommands:
        return ModelCommands(
            self.registry,
            kept=self._kept,
            blobs=self._blobs,
            publisher=self._publisher,
            exports=Exports(self._blobs),
            spec=self._ended.spec,
        )

    def _make_submissions(self, contents: Contents) -> Submissions:
        return Submissions(
            self._identity,
            self.register,
            self._blobs,
            contents=contents,
            files=self._files,
            ended=self._ended,
            quota=self._quota,
            books=self._books,
            questions=self._questions,
        )

    def _make_contributions(self, options: ManagerOptions) -> EntryIntake:
        return EntryIntake(
            self.registry,
            self._blobs,
            self.register,
            cluster=self._identity.cluster,
            quota_bytes=options.contribute_mb * 1_000_000,
            disk=self._quota,
            books=self._books,
            note=self._journal.add,
        )

    def _make_status(self, own: OwnView) -> StatusPages:
        return StatusPages(
            self.registry,
            self._manager,
            self.register,
            empty=Status(cluster=self._identity.cluster, manager=self._node),
            own=own,
            ended=self._ended,
            publisher=self._publisher,
            executors=self._exchange.views,
            shared=self.shared,
            others=self.view,
        )

    def _make_shared(self) -> SharedJobs:
        return SharedJobs(
            self.registry,
            knows=lambda job: self._manager.spec(job) is not None or self._manager.is_giving(job),
            post=self._manager_host.post,
            record_of=self._stored.record,
            on_ended=self._memory.on_ended,
            is_full=lambda: is_full(self._router.membership.present),
        )

    @property
    def listener(self) -> RoleServer:
        return self._role_server

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
        if self._quota.is_limited:
            self._role_server.spawn(self._quota.run(), "disk")
        if self._keep_jobs is not None:
            self._role_server.spawn(self._retention.run(self._keep_jobs), "retention")
        if self.shared is not None:
            self._role_server.spawn(self.standings.run(), "members")
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
            self.registry.close()

    async def _tell_how_we_are(self) -> None:
        for seq in itertools.count(1):
            beat = Heartbeat(seq=seq, load=probe.load(), memory_free_mb=probe.memory_free_mb())
            self._manager_host.post(Received(sender=self._node, message=beat))
            await asyncio.sleep(HERE_EVERY_S)

    # Peers --------------------------------------------------------------------------------------------

    async def before_hello(self, hello: Hello) -> None:
        if self.shared is not None:
            await self.shared.before_hello(hello)
        await self._ended.before_hello(hello)

    @property
    def figures(self) -> Figures:
        """Return what this manager tells the others about itself."""
        wants, starving = self._manager.needs
        return Figures(wants=wants, starving=starving, devices=self._router.membership.present)

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        self._journal.add("", "device.refused", f"{peer.node} {reason}")

    def checkpoint_limit(self, checkpoint: Checkpoint) -> int:
        return self._versions.most_bytes(checkpoint.job)

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
        self._journal.record(record)

    def set_up_leader(self, host: RoleHost, assign: Assign) -> None:
        self._role_server.spawn(self._set_up_leader(host, assign), f"lead {assign.job}")

    async def _set_up_leader(self, host: RoleHost, assign: Assign) -> None:
        try:
            leader = await with_store(self._make_leader, assign, on_deposed=self.on_deposed)
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
        version = self._versions.newest(assign.job)
        return make_leader(self._blobs.path(assign.spec.initial), assign, version, manager=self._node)

    async def open_door(self) -> str:
        raise Misuse("an aggregator is on a device")

    async def code_of(self, spec: JobSpec) -> bytes:
        # Also here: what lies in the registry may have been changed since the job was taken.
        check(spec, ca_pem=self._identity.ca_pem, cluster=self._identity.cluster, now_s=None)
        return await asyncio.to_thread(self._blobs.read, spec.bundle)

    def save(self, host: RoleHost, job: str, save: Save) -> None:
        self._role_server.spawn(self._versions.save(job, save, post=host.post), f"save {job}")

    async def _load(self, load: Load) -> None:
        """Send the new leader of a job where it stands."""
        try:
            version = await with_store(self._versions.newest, load.job, on_deposed=self.on_deposed)
            message = await asyncio.to_thread(packed, version, job=load.job, term=load.term)
        except (ShoalError, OSError, KeyError, ValueError) as error:
            self._manager_host.post(LoadFailed(job=load.job, term=load.term, reason=str(error)))
            return
        self._role_server.roles.post(load.to, message)

    # The manager ----------------------------------------------------------------------------------------

    async def _perform_manager(self, host: RoleHost, action: Action) -> None:
        match action:
            case Keep():
                await with_store(self._keep, action, on_deposed=self.on_deposed)
                if action.state.is_ended:
                    self._quota.on_job_ended()
            case ForgetMember():
                await with_store(
                    functools.partial(self.registry.forget_node, now_s=time.time()),
                    action.node,
                    on_deposed=self.on_deposed,
                )
                self.register.refresh(action.node)
                await self._memory.on_revoked()
            case DropJob():
                self._kept.let_go(action.job)
                await with_store(self._files.drop_job, action.job, on_deposed=self.on_deposed)
                await self._memory.on_removed(action.job)
            case DropOldJobs():
                self._role_server.spawn(self._retention.drop(action), "old jobs")
            case DropFiles():
                await with_store(self._drop_files, action, on_deposed=self.on_deposed)
            case Store():
                self._role_server.spawn(self._versions.keep(action.checkpoint), f"keep {action.checkpoint.job}")
            case GiveJob():
                host.post(await self._give(action))
            case Load():
                self._role_server.spawn(self._load(action), f"load {action.job}")
            case Answer():
                self._questions.on_answer(action)
            case Record():
                self._journal.record(action)
            case _:
                raise Misuse(f"a manager does not ask for {type(action).__name__}")

    async def _give(self, give: GiveJob) -> JobGiven:
        assert self.shared is not None, "a manager that is alone gives no job away"
        # Events of the job are written while it is still this manager's.
        await asyncio.to_thread(self._journal.flush)
        # The role has forgotten the job and waits for the answer: without one, no manager would run it.
        any_failure = (ShoalError, OSError)
        given = await with_store(
            self.shared.give, give.job, give.endpoint, on_deposed=self.on_deposed, waits_for=any_failure
        )
        self._kept.let_go(give.job)
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
        """Write the record of a job. Runs in a thread."""
        now_s = time.time()
        progress = next((view.progress for view in self._manager.job_views(keep.job)), None)
        self._stored.write(keep, progress, now_s=now_s)
        self._memory.on_kept(keep, now_s)

    def _context_of(self, job: str, reason: str) -> Mapping[str, Any]:
        """Return more about an event for the log: the device that it names, and the term and version of its job."""
        views = self._manager.job_views(job) if job else ()
        progress = views[0].progress if views else None
        return {
            "node": next((word for word in map(_bare, reason.split()) if self._manager.knows(word)), None),
            "term": views[0].term if views else None,
            "version": progress.version if progress is not None else None,
        }

    def _drop_files(self, drop: DropFiles) -> None:
        if drop.checkpoints:
            self._kept.let_go(drop.job)
            self._files.remove_checkpoints(drop.job)
        if drop.contents:
            self._files.remove_contents(drop.job)

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
            self._journal.add(act.job, "operator.acted", f"{peer.node}: {act.told}")
        return answer

    async def _carry_out(self, peer: RemoteIdentity, message: Message) -> Message:
        if isinstance(message, RegisterCommand):
            return await self.standings.carry_out(message, by=peer.node)
        match message:
            case AskManager():
                return self._vitals.view()
            case DrainManager() | UndrainManager():
                return await self._drain(message, by=peer.node)
            case AskActs():
                return await asyncio.to_thread(self._acts.page, message)
            case AskContributions():
                return await asyncio.to_thread(self._contributions.page, message)
            case SettleContributions():
                return await asyncio.to_thread(self._contributions.settle, message, by=peer.node)
            case AskStatus():
                return await asyncio.to_thread(self._status.answer, message)
            case AskModel() | PublishModel() | RollBackModel() | AskVersions():
                return await asyncio.to_thread(self._model_commands.answer, message)
            case AskSpec():
                return await asyncio.to_thread(self._ended.submitted, message)
            case CollectGarbage():
                return await self._collect_garbage(message)
            case ForgetNode():
                await asyncio.to_thread(self.register.check_forget, message.node)
            case Submit():
                return await self._submissions.take(message, by=peer.node)
            case StopJob() | TransferJob() | RemoveJob():
                await self._ended.look_up([message.job])
            case _:
                pass
        return await self._questions.ask(message, by=peer.node)

    async def _drain(self, command: DrainManager | UndrainManager, *, by: str) -> Done:
        if self.shared is None:
            raise Refused(
                "this cluster has one manager, and its jobs have nowhere to go: several managers share a PostgreSQL and"
                " a bucket (`shoal up --store ... --blobs ...`)"
            )
        return await asyncio.to_thread(self.shared.drain, command, by=by)

    async def _collect_garbage(self, asked: CollectGarbage) -> Message:
        async with self._books:
            found = await asyncio.to_thread(self._files.garbage if asked.dry_run else self._files.collect)
        verb = "would go" if asked.dry_run else "went"
        count = len(found.blobs) + len(found.jobs)
        return Done(reason=f"{megabytes(found.size_bytes)} in {count} files and folders that no job names {verb}")

    def _disconnect(self, name: str, reason: str) -> None:
        """End the sessions of a node that was revoked. Its leases return before that: nobody waits to see whether it
        comes back."""
        self._role_server.roles.carry(self._router.on_expelled(name, reason=reason))
        self._role_server.hang_up(name, reason)

    def _hold(self, event: MemberHeld) -> None:
        self._manager_host.post(event)
        self._exchange.held(event)

    async def renew(self, peer: RemoteIdentity, message: Renew) -> Message:
        return await asyncio.to_thread(self.register.renew, peer, message)

    async def offers_to_tabs(self) -> tuple[TabOffer, ...]:
        """Return the jobs that tabs may work for, with the bytes that each moves."""
        return await asyncio.to_thread(tab_offers, self._manager.open_jobs(), self._blobs)

    async def find_blob(self, peer: RemoteIdentity, blob: Blob) -> Path | Blob:
        return await self._blob_exchange.find(peer, blob)

    async def store_blob(self, peer: RemoteIdentity, blob: Blob, chunks: AsyncIterator[memoryview]) -> None:
        await self._blob_exchange.store(blob, chunks)

    async def take_entries(self, peer: RemoteIdentity, given: Contribute, chunks: AsyncIterator[memoryview]) -> Message:
        return await self._contributions.take(peer, given, chunks)
