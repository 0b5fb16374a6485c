"""The driver of a node that hosts roles: the sessions of the nodes that call it, and the hosts of its leaders and
aggregators. Only a device hosts aggregators.

The host router decides which role hears a message, and the table which host that is, as in the simulator.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import secrets
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.identity.names import RemoteIdentity
from shoal.net.base import BROKE_CONTRACT, Session
from shoal.roles.actions import Action, AskAlgorithm
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.events import AlgorithmAnswered, AlgorithmFailed, Event, Received
from shoal.roles.leader.gathering.private_sum import Normals
from shoal.roles.leader.leader import Leader
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.roles.node.doorway import Caller
from shoal.roles.node.host_router import HostRouter
from shoal.roles.node.role_table import NodeApi, RoleTable
from shoal.runtime.malloc import KEPT_BY_LARGE_BYTES, keep_freed_memory, return_freed_memory
from shoal.runtime.role_host import HEAVY_BYTES, RoleHost
from shoal.runtime.update_files import memory_in
from shoal.trainer.prepared_job import first_model
from shoal.trainer.protocol import TrainerError
from shoal.wire.limits import UPLOAD_SHARED_MAX_BYTES, VALUE_BYTES
from shoal.wire.messages import (
    NO_TENSORS,
    Assign,
    Checkpoint,
    Heartbeat,
    Hello,
    JobSpec,
    Lane,
    Message,
    Recipient,
    Reduce,
    SetUpAggregator,
    with_tensors,
)

if TYPE_CHECKING:
    from shoal.trainer.algorithm_host import AlgorithmHost

log = logging.getLogger("shoal")

#: How long a leader waits for its algorithm, also if the process has to be started.
ASK_S = 150.0

#: How long after a role's end its memory is returned, and once more: sessions may still send its last model.
LET_GO_S = (1.0, 4.0)


class ServerApi(NodeApi[RoleHost], Protocol):
    """The differences between the manager's node and a device that leads, in the runtime."""

    async def open_door(self) -> str:
        """Listen from now on; returns where others dial this node."""
        ...

    async def before_hello(self, hello: Hello) -> None:
        """A node is about to be heard: learn what its answer depends on."""
        ...

    def checkpoint_limit(self, checkpoint: Checkpoint) -> int:
        """The most bytes of tensors that may follow a checkpoint from the leader of a job elsewhere."""
        ...

    async def code_of(self, spec: JobSpec) -> bytes:
        """The bundle of a job whose algorithm is to run here. Raises ShoalError unless an operator signed the job."""
        ...

    def awaits_checkpoint(self, sender: str, checkpoint: Checkpoint) -> bool:
        """Whether the manager here can use the tensors of this checkpoint."""
        ...

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        """Write down that a peer broke the contract."""
        ...


class SessionFeature(Protocol):
    """Takes the sessions and messages of a feature beside training: of the messages, those for one recipient."""

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session, reason: str) -> None: ...

    async def received(self, session: Session, message: Message, size_bytes: int) -> None: ...

    def payload_limit(self, session: Session, message: Message) -> int: ...

    def awaits(self, session: Session, message: Message) -> bool: ...


class RoleServer:
    """A listener (see ``net.base``) to the nodes that call this one."""

    def __init__(self, router: HostRouter, place: ServerApi) -> None:
        self._router = router
        self._place = place
        #: The leaders and aggregators here.
        self.roles: RoleTable[RoleHost] = RoleTable(router, place, self)
        #: Recipient of messages -> the feature that takes them.
        self.features: dict[Recipient, SessionFeature] = {}
        #: One thread for merging: it does not hold up the event loop.
        self._merging = ThreadPoolExecutor(1, thread_name_prefix="shoal-merge")
        #: The algorithms of leaders here, each in its own process.
        self._algorithms: dict[RoleHost, AlgorithmHost] = {}
        self._sessions: dict[tuple[str, Lane], Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def watch(self) -> None:
        """Look for nodes that have been silent for too long, on time, and at once: silence counts from a look on."""
        while True:
            self.roles.carry(self._router.check(time.monotonic()))
            await asyncio.sleep(self._router.check_every_s)

    async def stop(self) -> None:
        for host in self.roles.hosts:
            await host.stop()
        for algorithm in self._algorithms.values():
            await algorithm.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._merging.shutdown(wait=True)

    # Nodes that call ------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        for feature in self.features.values():
            feature.opened(session)
        if session.peer.role == "operator":
            # An operator is no member of the cluster's membership: it sends no heartbeats.
            return
        key = (session.peer.node, session.lane)
        older = self._sessions.get(key)
        self._sessions[key] = session
        if session.lane is Lane.CONTROL:
            self._router.doorway.on_entered(caller_of(session.peer))
        if older is not None:
            older.close("the same node connected again")

    def closed(self, session: Session, reason: str) -> None:
        for feature in self.features.values():
            feature.closed(session, reason)
        if reason.startswith(BROKE_CONTRACT):
            self._place.turned_away(session.peer, reason)
        key = (session.peer.node, session.lane)
        if self._sessions.get(key) is not session:
            return
        del self._sessions[key]
        if session.lane is Lane.CONTROL:
            self.roles.carry(self._router.on_closed(session.peer.node, time.monotonic(), reason=reason))

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        """Route a message. Returns once its role has read it: a large message is held back at its sender, and the
        memory that its tensors lie in is used again after that."""
        if type(message) is Heartbeat and session.lane is Lane.CONTROL:
            # Most of what is heard, and nothing of it has to be waited for.
            beat = Received(sender=session.peer.node, message=message, size_bytes=size_bytes)
            self.roles.carry(self._router.on_received(beat, time.monotonic()))
            return
        feature = self._feature_of(message)
        if feature is not None:
            await feature.received(session, message, size_bytes)
            return
        node = session.peer.node
        if type(message) is Hello and bool(message.facts.browser) is not (session.peer.role == "browser"):
            # What it says of itself decides what it is given: only members that joined as tabs are tabs, and all are.
            raise PeerViolation("a tab and an agent say which of them they are", peer=node)
        if message.rule.lane is not session.lane:
            raise PeerViolation(f"{type(message).__name__} came on the {session.lane} stream", peer=node)
        if type(message) is Hello:
            # What else the node says waits behind it, on the same stream.
            await self._place.before_hello(message)
        if isinstance(message, Checkpoint):
            # It is written to disk after this has returned.
            message = owned(message)
        event = Received(sender=node, message=message, size_bytes=size_bytes)
        for delivery in self._router.on_received(event, time.monotonic()):
            if (reading := self.roles.reading(delivery)) is not None:
                await reading[0].deliver(reading[1])
            else:
                self.roles.carry([delivery])

    async def said_to_hosted(self, sender: str, message: Message) -> None:
        """A message over a line that this device dialled. Returns once its role has read it."""
        for delivery in self.roles.said_to_hosted(sender, message):
            if (reading := self.roles.reading(delivery)) is not None:
                await reading[0].deliver(reading[1])
            else:
                self.roles.carry([delivery])

    def payload_limit(self, session: Session, message: Message) -> int:
        feature = self._feature_of(message)
        if feature is not None:
            return feature.payload_limit(session, message)
        if isinstance(message, Checkpoint):
            return self._place.checkpoint_limit(message)
        return self.roles.payload_limit(message)

    def awaits(self, session: Session, message: Message) -> bool:
        """A role refuses a node that has lost its lease or its term, and says why: the node may not know, and is no
        offender for it. But no memory is taken for its tensors."""
        feature = self._feature_of(message)
        if feature is not None:
            return feature.awaits(session, message)
        if isinstance(message, Checkpoint):
            return self._place.awaits_checkpoint(session.peer.node, message)
        return self.roles.awaits_tensors(session.peer.node, message)

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None

    def _feature_of(self, message: Message) -> SessionFeature | None:
        if not self.features:
            return None
        recipient = message.rule.to
        return self.features.get(recipient) if recipient is not None else None

    # What the table asks --------------------------------------------------------------------------------

    def post(self, node: str, message: Message) -> None:
        session = self._sessions.get((node, message.rule.lane))
        if session is not None:
            session.post(message)

    def hang_up(self, node: str, reason: str) -> None:
        for lane in Lane:
            session = self._sessions.get((node, lane))
            if session is not None:
                session.close(reason)

    def end(self, host: RoleHost) -> None:
        host.ended = True
        self.spawn(self._end(host), f"end {host.key}")

    async def _end(self, host: RoleHost) -> None:
        await host.stop()
        if (algorithm := self._algorithms.pop(host, None)) is not None:
            await algorithm.close()
        del host
        for wait_s in LET_GO_S:
            await asyncio.sleep(wait_s)
            # The parts of a role refer to each other, so that only a collection frees its arrays.
            gc.collect()
            await asyncio.to_thread(return_freed_memory)
        if not self.roles.hosts:
            keep_freed_memory()

    def leader_host(self, assign: Assign) -> RoleHost:
        # Where devices are compared or sums opened, whatever ends a version means work, not the last update alone.
        trust = assign.spec.plan.believes
        compares = trust.rule == "nearest" or trust.sealed is not None
        return RoleHost(
            f"leader of {assign.job}",
            functools.partial(self._ask, assign.spec),
            send=self.roles.send,
            at_once=functools.partial(self._perform_leader, assign.job),
            executor=self._merging,
            is_heavy=(lambda _: True) if compares else None,
        )

    def _perform_leader(self, job: str, host: RoleHost, action: Action) -> bool:
        if isinstance(action, AskAlgorithm):
            return False
        self.roles.perform_leader(host, job, action)
        return True

    async def _ask(self, spec: JobSpec, host: RoleHost, action: Action) -> Event:
        """Have the job's algorithm answer its leader, which handles nothing else meanwhile."""
        if not isinstance(action, AskAlgorithm):
            raise Misuse(f"{type(action).__name__} is carried out at once")
        # Few jobs have an algorithm, and a hub does without what trainers need.
        from shoal.trainer.algorithm_host import AlgorithmHost

        try:
            if host not in self._algorithms:
                code = await self._place.code_of(spec)
                self._algorithms[host] = AlgorithmHost(spec.plan, code, action.layout)
            async with asyncio.timeout(ASK_S):
                answer = await self._algorithms[host].ask(action.question, action.state)
        except TimeoutError:
            reason = f"the algorithm failed: it gave no answer within {ASK_S:.0f} s, with the start of its process"
        except Exception as error:
            # Whatever it is: without an answer the leader would wait for ever.
            if not isinstance(error, ShoalError | OSError):
                log.exception("job %s: its algorithm could not be asked", spec.job)
            reason = f"the algorithm failed: {error}"
            told = error.traceback if isinstance(error, TrainerError) else ""
            return AlgorithmFailed(number=action.number, reason=reason, traceback=told)
        else:
            return AlgorithmAnswered(number=action.number, answer=answer)
        return AlgorithmFailed(number=action.number, reason=reason)

    def aggregator_host(self, form: SetUpAggregator) -> RoleHost:
        return RoleHost(
            f"aggregator of {form.job} in formation {form.formation}",
            _wait_for,
            send=self.roles.send,
            at_once=functools.partial(self._perform_aggregator, form.job, form.formation),
            executor=self._merging,
            is_heavy=functools.partial(_is_heavy, part_bytes=VALUE_BYTES * (form.stop - form.start)),
        )

    def _perform_aggregator(self, job: str, formation: int, host: RoleHost, action: Action) -> bool:
        self.roles.perform_aggregator(job, formation, action)
        return True

    def set_up_aggregator(self, host: RoleHost, form: SetUpAggregator, leader: str) -> None:
        # The values of its part come to it when all members are there: the memory of these is used again.
        form = with_tensors(form, NO_TENSORS)
        host.start(Aggregator(form, node=self._router.node, leader=leader))
        self.spawn(self._open_to(host, form), f"second {form.job}")

    async def _open_to(self, host: RoleHost, form: SetUpAggregator) -> None:
        """Let the members of a formation in, and tell its leader where."""
        where: str | None = None
        reason: str | None = None
        try:
            where = await self._place.open_door() or None
        except (ShoalError, OSError) as error:
            reason = str(error)
        self.roles.formed(host, form, endpoint=where, reason=reason)


async def _wait_for(_: RoleHost, action: Action) -> Event | None:
    raise Misuse(f"{type(action).__name__} is carried out at once")


def _is_heavy(event: Event, *, part_bytes: int) -> bool:
    """For an aggregator: a few bytes may ask it to add up everything that it keeps."""
    match event:
        case Received(message=Reduce() as count):
            # To compare pieces takes as much as to sum each of them up several times.
            times = 8 if count.weigh else 1
            return times * part_bytes * (len(count.leases) + count.last) > HEAVY_BYTES
        case Received():
            return part_bytes > HEAVY_BYTES
        case _:
            return False


def caller_of(peer: RemoteIdentity) -> Caller:
    return Caller(node=peer.node, incarnation=peer.incarnation, address=peer.address)


def owned(message: Checkpoint) -> Checkpoint:
    """The same checkpoint in memory of its own."""
    whole: Checkpoint = with_tensors(message, {name: array.copy() for name, array in message.tensors.items()})
    return whole


def fresh_normals() -> Normals:
    """Chance that nobody can draw again, for the noise of one leader: its seed is the system's, and is kept nowhere."""
    generator = np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))
    return lambda size: generator.standard_normal(size, dtype=np.float32)


def make_leader(initial: Path, assign: Assign, version: StoredVersion | None, *, manager: str) -> Leader:
    """The leader of a job, from its first model or from where it stands. Reads a file."""
    layout, model = first_model(initial)
    model.flags.writeable = False
    if model.nbytes > UPLOAD_SHARED_MAX_BYTES:
        keep_freed_memory(KEPT_BY_LARGE_BYTES)
    leader = Leader(
        spec=assign.spec,
        layout=layout,
        model=model,
        term=assign.term,
        manager=manager,
        memory=memory_in(initial.parent),
        normals=fresh_normals(),
    )
    if version is not None:
        leader.restore(tensors=version.tensors, state=version.state)
    return leader
