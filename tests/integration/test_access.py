"""Who may call what and say what, cell by cell, over real sockets: certificates x roles x verbs x messages.

The tables here are written out by hand, so that the one in the code cannot be wrong in silence; and a verb or a message
that is new fails a test until someone has decided who may use it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import types
import typing
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from kit import run

from shoal.identity.identity import Authority, Identity, channel_credentials, channel_options
from shoal.identity.names import RemoteIdentity
from shoal.net.access import MAY_ANSWER, MAY_SAY, Access, AnyKey, may_answer
from shoal.net.base import BROKE_CONTRACT, Session
from shoal.net.grpc import SERVICE, GrpcServer
from shoal.plan import Plan
from shoal.roles.node.failure_detector import Patience
from shoal.runtime.dialer import Dialer
from shoal.runtime.leader_host import LeaderHost
from shoal.runtime.manager_node import ManagerNode
from shoal.runtime.manager_options import ManagerOptions
from shoal.trainer.package import plan_from, spec_of
from shoal.wire import contract, messages
from shoal.wire.frames import envelope_frame, read_opening
from shoal.wire.messages import (
    Admit,
    Assign,
    Blob,
    Checkpoint,
    Command,
    Dataset,
    Denied,
    Hello,
    Hop,
    JobSpec,
    Lane,
    Leads,
    MemberKey,
    Message,
    ModelShard,
    NeedOperand,
    PartialSum,
    PeerStatus,
    Progress,
    Revoke,
    RightOperand,
    Route,
    SetUpAggregator,
    TileTask,
)
from testbed.echo_job import echo_job

SHA = "0" * 64

#: Verb -> role -> what it may say there.
ALLOWED: dict[str, dict[str, str]] = {
    "Control": {
        "node": "Hello Heartbeat Leave Progress Released Leads SteppedDown LeaderUnreachable LogRecord",
        "browser": "Hello Heartbeat Leave",
        "worker": "Hello Heartbeat Leave",
        "pending": "Hello Heartbeat Leave",
        "peer": "PeerStatus Command Request",
    },
    "Work": {
        "node": "Ready Offer Update Evaluated Failed AggregatorReady UpdateReady Routed BadShard ReduceResult"
        " SealKey SealRefused Agreed Opened MaskSum AskCheckpoint Checkpoint Lend NeedOperand TileResult",
        "browser": "Ready Offer Update Evaluated Failed",
        "worker": "Ready Offer Update Evaluated Failed AggregatorReady UpdateReady Routed BadShard ReduceResult"
        " SealKey SealRefused Agreed Opened MaskSum UpdateShard",
        "pending": "",
        "peer": "PartialSum ModelTransfer",
        "operator": "AskPool TileTask RightOperand Caught Forget",
    },
    "Fetch": {"node": "Blob", "browser": "Blob", "operator": "Blob"},
    "Operate": {
        "operator": "Submit StopJob TransferJob AskStatus AskModel AskSpec AskVersions PublishModel RollBackModel"
        " MakeToken AskTokens RevokeToken RevokeNode ApproveNode DrainNode UndrainNode"
        " LabelNode ForgetNode RemoveJob CollectGarbage AskActs AskManager"
        " DrainManager UndrainManager AskContributions SettleContributions"
    },
    "Store": {"node": "Contribute", "operator": "Blob"},
    "Renew": {"node": "Renew", "operator": "Renew", "pending": "Renew"},
}
VERBS = tuple(ALLOWED)
STREAMS = ("Control", "Work")
#: Those a manager knows; one that works for a leader is a ``worker`` at its door, and nowhere else.
ROLES = ("node", "browser", "operator", "pending", "manager")

#: Stream -> the role of the side that was called -> what it may say there.
ANSWER: dict[str, dict[str, str]] = {
    "Control": {
        "manager": "Welcome HeartbeatSeen Assign Dismiss Release Admit Revoke StopRequest HandOver StepDown",
        "node": "Welcome HeartbeatSeen",
    },
    "Work": {
        "manager": "Work Wait Go UpdateRefused Finished SetUpAggregator Reduce RelayModel TearDown Route"
        " SealRoster Bind Unbind Agree Open AskMasks"
        " Checkpoint CheckpointKept CheckpointRefused Measure TileTask RightOperand Pool NeedOperand TileResult",
        "node": "Work Wait Go UpdateRefused Finished SetUpAggregator Reduce RelayModel TearDown Route"
        " SealRoster Bind Unbind Agree Open AskMasks ShardAck ModelShard",
    },
}
#: What is said in answer to a call that is no stream.
REPLIES = "Done Denied Status TokenMade TokenList Renewed VersionList SubmittedJob ActList ManagerView ContributionList"

#: A checkpoint goes up to be kept, and down to be gone on from; a scheduler passes on what a client and an executor
#: say to each other.
BOTH_WAYS = {"Checkpoint", "TileTask", "RightOperand", "NeedOperand", "TileResult"}


def may_say(role: str, verb: str, name: str) -> bool:
    return name in ALLOWED[verb].get(role, "").split()


def may_be_told(role: str, stream: str, name: str) -> bool:
    return name in ANSWER[stream].get(role, "").split()


# Every message there is ---------------------------------------------------------------------------

#: Those that name a part of a model, or the way to it or to a manager: what is simplest of each field would make none.
PARTS: dict[type[Message], Message] = {
    messages.Contribute: messages.Contribute(set="x", sha256=SHA, size_bytes=1),
    messages.SettleContributions: messages.SettleContributions(set="x", sha256s=(SHA,), approve=True),
    messages.ManagerView: messages.ManagerView(manager="x:1"),
    SetUpAggregator: SetUpAggregator(job="j", term=1, formation=1, kind="tree", version=1, start=0, stop=1),
    Route: Route(job="j", term=1, formation=1, hops=(Hop(node="x", endpoint="x:1", start=0, stop=1),)),
    ModelShard: ModelShard(job="j", term=1, formation=1, version=1, start=0, stop=1),
    PeerStatus: PeerStatus(plan=SHA),
    Progress: Progress(job="j", term=1, state="training"),
    Command: Command(term=1, number=1, kind="train"),
    PartialSum: PartialSum(term=1, coordinator="x", round=1, merge=1, of=("x",), weight=1.0),
    TileTask: TileTask(task=1, kind="tile", right=SHA, rows=1, inner=1, columns=1, deadline_s=1.0),
    RightOperand: RightOperand(right=SHA),
    NeedOperand: NeedOperand(right=SHA),
}


def sample(kind: Any) -> Any:
    """The simplest value of a class: what it requires, and nothing else."""
    if kind is JobSpec:
        data = Dataset(manifest=SHA, examples=1)
        return JobSpec(job="j", name="j", entry="t:T", bundle=SHA, initial=SHA, train=data, test=data, plan=Plan())
    if kind is Blob:
        return Blob(sha256=SHA)
    if kind in PARTS:
        return PARTS[kind]
    if kind is MemberKey:
        return MemberKey(node="x", public=bytes(32), nonce=bytes(16), signature=b"", certificate=b"")
    hints = typing.get_type_hints(kind)
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return kind(**{name: _simplest(hints[name]) for name in required})


def _simplest(hint: Any) -> Any:
    plain: dict[Any, Any] = {str: "x", bytes: b"", int: 1, float: 1.0, bool: True}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, types.UnionType):
        return None
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return next(iter(hint))
    return () if typing.get_origin(hint) is tuple else sample(hint)


MESSAGES: dict[str, Message] = {
    name: sample(getattr(messages, name)) for name in sorted(contract.ENVELOPE_FIELDS.values())
}


def test_every_message_is_said_by_someone_or_only_in_answer() -> None:
    said = {name for row in ALLOWED.values() for names in row.values() for name in names.split()}
    answers = {name for row in ANSWER.values() for names in row.values() for name in names.split()}
    answers |= set(REPLIES.split())
    assert said | answers == set(MESSAGES), "a new message needs a row in access.py, and in the tables above"
    assert said & answers == BOTH_WAYS


def test_every_verb_of_the_contract_has_a_row_and_there_are_no_others() -> None:
    service = contract._POOL.FindServiceByName(SERVICE)
    assert {method.name for method in service.methods} == set(MAY_SAY) == set(VERBS)
    assert {role for row in MAY_SAY.values() for role in row} <= {*ROLES, "worker", "peer"}
    assert {(stream, role) for stream, row in MAY_ANSWER.items() for role in row} == {
        (stream, role) for stream, row in ANSWER.items() for role in row
    }


class Held(AnyKey):
    """Every member has the role that a test gives it."""

    def __init__(self, role: str) -> None:
        self._role = role

    def role_now(self, peer: RemoteIdentity) -> str:
        return self._role


@pytest.mark.parametrize("role", [*ROLES, "worker", "peer", "", "root", "Node", "operator "])
def test_every_cell_of_the_table(role: str) -> None:
    peer = RemoteIdentity(node="pi", role="node", cluster="pond")
    access = Access(cluster="pond", members=Held(role))
    wrong = []
    for verb, name in itertools.product((*VERBS, "", "control", "Shutdown"), (*MESSAGES, "", "Unknown")):
        expected = verb in ALLOWED and may_say(role, verb, name)
        if (name in access.heard(peer, verb)) != expected:
            wrong.append((verb, name))
    assert not wrong


@pytest.mark.parametrize("role", [*ROLES, "worker", "peer", "", "root"])
def test_every_cell_of_the_table_of_answers(role: str) -> None:
    wrong = []
    for verb, name in itertools.product((*VERBS, "", "control"), (*MESSAGES, "", "Unknown")):
        expected = verb in ANSWER and may_be_told(role, verb, name)
        if (name in may_answer(role, verb)) != expected:
            wrong.append((verb, name))
    assert not wrong


def test_a_member_of_another_cluster_of_the_same_names_says_nothing() -> None:
    access = Access(cluster="pond")
    stranger = RemoteIdentity(node="pi", role="node", cluster="lake")
    for verb, name in itertools.product(VERBS, MESSAGES):
        with pytest.raises(Exception, match="belongs to cluster lake, not pond"):
            _ = name in access.heard(stranger, verb)


# Over sockets -------------------------------------------------------------------------------------


@dataclass
class Site:
    """A manager's two halves, without the rest of `shoal up`: its door and what is behind it."""

    authority: Authority
    elsewhere: Authority
    home: ManagerNode
    endpoint: str
    numbers: Iterator[int]

    def caller(self, role: str, state: str) -> Identity | None:
        """A certificate of this kind, under a name of its own: offences are counted by name."""
        name = f"{role}-{next(self.numbers)}"
        certified = "node" if role == "pending" else role
        made = (self.elsewhere if state == "wrong authority" else self.authority).identity(
            node=name,
            role=certified,
            now_s=time.time() - (100 * 86400 if state == "expired" else 0),
            valid_days=30,
        )
        if state != "unknown":
            listed = {"node": "operator", "browser": "node", "operator": "node", "manager": "node"}[certified]
            self._enlist(name, listed if state == "another's name" else certified, role, state)
        return None if state == "no certificate" else replace(made, ca_pem=self.authority.certificate_pem)

    def _enlist(self, name: str, listed: str, role: str, state: str) -> None:
        standing = "pending" if role == "pending" else "enrolled"
        registry = self.home.registry
        registry.upsert_node(node=name, role=listed, facts_json="{}", state=standing, now_s=time.time())
        if state == "revoked":
            registry.revoke_node(name, now_s=time.time(), reason="lost")
        self.home.register.refresh(name)

    @asynccontextmanager
    async def channel(self, identity: Identity | None) -> AsyncIterator[grpc.aio.Channel]:
        if identity is None:
            credentials = grpc.ssl_channel_credentials(root_certificates=self.authority.certificate_pem)
        else:
            credentials = channel_credentials(identity)
        options = [*channel_options("manager"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(self.endpoint, credentials, options=options) as channel:
            yield channel


@asynccontextmanager
async def site_in(directory: Path) -> AsyncIterator[Site]:
    authority = Authority.create(directory / "authority", "pond")
    elsewhere = Authority.create(directory / "elsewhere", "pond")
    identity = authority.identity(node="manager", role="manager")
    home = ManagerNode(identity, ManagerOptions(home=directory / "home"))
    home.register.sign_with(authority)
    server = GrpcServer(identity, home, members=home.register)
    await home.start()
    port = await server.start("127.0.0.1", 0)
    try:
        yield Site(authority, elsewhere, home, f"127.0.0.1:{port}", itertools.count(1))
    finally:
        await server.stop()
        await home.stop()


async def say(channel: grpc.aio.Channel, verb: str, message: Message | None) -> tuple[grpc.StatusCode, str]:
    """Call a verb and say this, or only hold a stream open; how the call ended. A denial is told in its details."""
    path = f"/{SERVICE}/{verb}"
    frame = envelope_frame(message or Blob(sha256=SHA))
    if verb in (*STREAMS, "Store"):
        kind = channel.stream_unary if verb == "Store" else channel.stream_stream
        call = kind(path)(timeout=60.0)
        if message is not None:
            try:
                await call.write(frame)
                await call.done_writing()
                # A status comes behind the answers: whoever does not read them does not hear it.
                while verb in STREAMS and await call.read() is not grpc.aio.EOF:
                    pass
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # it was refused: its status says why
        return await call.code(), await call.details()
    kind = channel.unary_stream if verb == "Fetch" else channel.unary_unary
    call = kind(path)(frame, timeout=60.0)
    code, details = await call.code(), await call.details()
    if verb != "Fetch" and code is grpc.StatusCode.OK:
        answer = read_opening(await call).message
        details = answer.reason if isinstance(answer, Denied) else details
    return code, details


#: State of a certificate -> how every call of everyone who has such a one ends, whatever the verb.
SHUT = {
    "no certificate": (grpc.StatusCode.UNAVAILABLE, ""),
    "wrong authority": (grpc.StatusCode.UNAVAILABLE, ""),
    "expired": (grpc.StatusCode.UNAVAILABLE, ""),
    "revoked": (grpc.StatusCode.PERMISSION_DENIED, "shut out: revoked on"),
    "unknown": (grpc.StatusCode.PERMISSION_DENIED, "shut out: this cluster does not know it"),
    "another's name": (grpc.StatusCode.PERMISSION_DENIED, "now and not"),
}


@pytest.mark.parametrize("state", SHUT)
def test_no_verb_is_open_to_one_whose_certificate_is_no_good(state: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            wrong = []
            for role, verb in itertools.product(ROLES, VERBS):
                async with site.channel(site.caller(role, state)) as channel:
                    code, details = await say(channel, verb, None)
                expected, words = SHUT[state]
                if code is not expected or words not in details:
                    wrong.append((role, verb, code, details))
            assert not wrong

    run(story())


@pytest.mark.parametrize("role", ROLES)
def test_every_verb_is_closed_to_the_roles_it_is_not_for(role: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            wrong = []
            for verb in (verb for verb in VERBS if role not in ALLOWED[verb]):
                async with site.channel(site.caller(role, "valid")) as channel:
                    code, details = await say(channel, verb, None)
                if code is not grpc.StatusCode.PERMISSION_DENIED or f"may not call {verb}" not in details:
                    wrong.append((verb, code, details))
            async with site.channel(site.caller(role, "valid")) as channel:
                code, _ = await say(channel, "Shutdown", None)
            assert code is grpc.StatusCode.UNIMPLEMENTED
            assert not wrong

    run(story())


@pytest.mark.parametrize("role", [role for role in ROLES if any(role in row for row in ALLOWED.values())])
def test_every_message_is_heard_from_those_who_may_say_it_and_from_nobody_else(role: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            wrong = []
            for verb in (verb for verb in VERBS if role in ALLOWED[verb]):
                for name, message in MESSAGES.items():
                    # Another one each time: who broke the contract too often would be refused for that.
                    caller = site.caller(role, "valid")
                    assert caller is not None
                    expected = may_say(role, verb, name)
                    if isinstance(message, messages.Hello):
                        message = replace(message, node=caller.node)
                    async with site.channel(caller) as channel:
                        code, details = await say(channel, verb, message)
                    heard = "may not be sent here" not in details
                    if heard != expected or code is grpc.StatusCode.PERMISSION_DENIED:
                        wrong.append((verb, name, code, details))
            assert not wrong

    run(story())


def test_standing_that_changes_is_felt_by_the_stream_that_is_open(tmp_path: Path) -> None:
    async def story() -> None:
        async with site_in(tmp_path) as site:
            pending = site.caller("pending", "valid")
            assert pending is not None
            async with site.channel(pending) as channel:
                control = channel.stream_stream(f"/{SERVICE}/Control")(timeout=60.0)
                await control.write(envelope_frame(messages.Hello(node=pending.node, incarnation="1")))
                assert isinstance(read_opening(await control.read()).message, messages.Welcome)
                call = channel.stream_stream(f"/{SERVICE}/Work")(timeout=60.0)
                site.home.registry.set_node_state(pending.node, "enrolled")
                site.home.register.refresh(pending.node)
                await call.write(envelope_frame(messages.Ready(job="j")))
                # Heard: it is told that nobody leads this job.
                answer = read_opening(await asyncio.wait_for(call.read(), 20.0)).message
                assert answer == messages.Finished(job="j", reason="this job is not led here")
                site.home.registry.revoke_node(pending.node, now_s=time.time(), reason="lost")
                site.home.register.refresh(pending.node)
                await call.write(envelope_frame(messages.Ready(job="j")))
                assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "shut out: revoked on" in await call.details()

    run(story())


# A leader's door ----------------------------------------------------------------------------------


class Around:
    """What an outpost asks of the agent around it: here a list, and a folder with the job's first model."""

    def __init__(self, identity: Identity, model: Path) -> None:
        self.identity = identity
        self._model = model
        self.told: list[Message] = []
        #: Fetches that a test holds up, in the order they began; None: none is.
        self.held: list[asyncio.Future[Path]] | None = None

    def send(self, to: str, message: Message) -> None:
        self.told.append(message)

    async def fetch(self, sha256: str) -> Path:
        if self.held is None:
            return self._model
        self.held.append(asyncio.get_running_loop().create_future())
        return await self.held[-1]

    async def says(self, kind: type[Message]) -> Any:
        """Wait for the first message of this kind."""
        async with asyncio.timeout(20.0):
            while not (said := [message for message in self.told if isinstance(message, kind)]):
                await asyncio.sleep(0.01)
        return said[0]


@dataclass
class Door:
    """A device that leads a job, and those who knock at its door."""

    authority: Authority
    others: dict[str, Authority]
    around: Around
    leader_host: LeaderHost
    spec: JobSpec
    endpoint: str
    numbers: Iterator[int]

    def caller(self, role: str, state: str) -> Identity | None:
        """Someone with a certificate of this kind, under a name of its own; admitted or not, as the state says."""
        name = f"{role}-{next(self.numbers)}"
        made = self.others.get(state, self.authority).identity(
            node=name, role=role, now_s=time.time() - (100 * 86400 if state == "expired" else 0), valid_days=30
        )
        if state != "not admitted":
            # The manager would admit none but nodes: even a manager that errs opens the door to nobody else.
            self.leader_host.tell(Admit(job=self.spec.job, term=1, nodes=(name,)))
        if state == "barred":
            self.leader_host.tell(Revoke(job=self.spec.job, term=1, node=name, reason="revoked"))
        return None if state == "no certificate" else replace(made, ca_pem=self.authority.certificate_pem)

    @asynccontextmanager
    async def channel(self, identity: Identity | None) -> AsyncIterator[grpc.aio.Channel]:
        if identity is None:
            credentials = grpc.ssl_channel_credentials(root_certificates=self.authority.certificate_pem)
        else:
            credentials = channel_credentials(identity)
        options = [*channel_options("lead"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(self.endpoint, credentials, options=options) as channel:
            yield channel


@asynccontextmanager
async def door_in(directory: Path) -> AsyncIterator[Door]:
    authority = Authority.create(directory / "authority", "pond")
    others = {
        "wrong authority": Authority.create(directory / "elsewhere", "pond"),
        # One authority that serves two clusters: only the name in the certificate tells them apart.
        "another cluster": Authority(
            cluster="lake", key_pem=authority._key_pem, certificate_pem=authority.certificate_pem
        ),
    }
    ready = echo_job(directory, values=20, batches=1000)
    spec = spec_of(ready, plan_from({**ready.prepared.plan, "until": {"epochs": 1}}), job="echo")
    around = Around(authority.identity(node="lead", role="node"), Path(ready.prepared.model))
    leader_host = LeaderHost(around, manager="manager", manager_endpoint="127.0.0.1:9")
    try:
        leader_host.tell(Assign(job="echo", role="leader", term=1, leader="lead", spec=spec))
        leader_host.tell(Checkpoint(job="echo", term=1, version=-1))
        leads = await around.says(Leads)
        yield Door(authority, others, around, leader_host, spec, leads.endpoint, itertools.count(1))
    finally:
        await leader_host.stop()


#: Who knocks, and how every call of theirs at a leader's door ends, whatever the verb and the role.
NOT_HERE = (grpc.StatusCode.PERMISSION_DENIED, "does not work for a job that is led here")
STRANGERS = {
    "no certificate": (grpc.StatusCode.UNAVAILABLE, ""),
    "wrong authority": (grpc.StatusCode.UNAVAILABLE, ""),
    "expired": (grpc.StatusCode.UNAVAILABLE, ""),
    "another cluster": (grpc.StatusCode.PERMISSION_DENIED, "belongs to cluster lake, not pond"),
    "not admitted": NOT_HERE,
    "barred": NOT_HERE,
}
CERTIFIED = ("node", "operator", "manager")


@pytest.mark.parametrize("state", STRANGERS)
def test_a_leaders_door_is_closed_to_whoever_was_not_admitted(state: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with door_in(tmp_path) as door:
            wrong = []
            for role, verb in itertools.product(CERTIFIED, VERBS):
                async with door.channel(door.caller(role, state)) as channel:
                    code, details = await say(channel, verb, None)
                expected, words = STRANGERS[state]
                if code is not expected or words not in details:
                    wrong.append((role, verb, code, details))
            assert not wrong

    run(story())


@pytest.mark.parametrize("role", CERTIFIED)
def test_a_leaders_door_opens_to_nodes_alone_and_serves_work_alone(role: str, tmp_path: Path) -> None:
    """Also where the manager itself, or an operator, shows its own certificate: neither works for this job."""

    async def story() -> None:
        async with door_in(tmp_path) as door:
            wrong = []
            for verb in (verb for verb in VERBS if role != "node" or "worker" not in ALLOWED[verb]):
                async with door.channel(door.caller(role, "admitted")) as channel:
                    code, details = await say(channel, verb, None)
                words = f"a worker may not call {verb}" if role == "node" else NOT_HERE[1]
                if code is not grpc.StatusCode.PERMISSION_DENIED or words not in details:
                    wrong.append((verb, code, details))
            async with door.channel(door.authority.identity(node="manager", role="manager")) as channel:
                assert await say(channel, "Control", None) == (NOT_HERE[0], f"manager: manager {NOT_HERE[1]}")
            assert not wrong

    run(story())


@pytest.mark.gate("a leader's door")
def test_every_message_at_a_leaders_door_is_heard_or_refused_by_the_table(tmp_path: Path) -> None:
    async def story() -> None:
        async with door_in(tmp_path) as door:
            wrong = []
            for verb, (name, message) in itertools.product(STREAMS, MESSAGES.items()):
                caller = door.caller("node", "admitted")
                assert caller is not None
                if isinstance(message, Hello):
                    message = replace(message, node=caller.node)
                async with door.channel(caller) as channel:
                    code, details = await say(channel, verb, message)
                heard = "may not be sent here" not in details
                ended = grpc.StatusCode.OK if heard else grpc.StatusCode.INVALID_ARGUMENT
                if heard != may_say("worker", verb, name) or code is not ended:
                    wrong.append((verb, name, code, details))
            assert not wrong

    run(story())


def test_nobody_speaks_for_another_at_a_leaders_door(tmp_path: Path) -> None:
    async def story() -> None:
        async with door_in(tmp_path) as door:
            one, other = door.caller("node", "admitted"), door.caller("node", "admitted")
            assert one is not None
            assert other is not None
            async with door.channel(one) as channel:
                code, details = await say(channel, "Control", Hello(node=other.node, incarnation="1"))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert details == f"{BROKE_CONTRACT}: Hello.node is {other.node}; its certificate is for {one.node}"

    run(story())


def test_one_that_works_for_another_job_led_there_has_no_say_in_this_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with door_in(tmp_path) as door:
            spec = replace(door.spec, job="other")
            door.leader_host.tell(Assign(job="other", role="leader", term=1, leader="lead", spec=spec))
            door.leader_host.tell(Checkpoint(job="other", term=1, version=-1))
            caller = door.authority.identity(node="guest", role="node")
            door.leader_host.tell(Admit(job="other", term=1, nodes=("guest",)))
            async with door.channel(caller) as channel:
                control = channel.stream_stream(f"/{SERVICE}/Control")(timeout=60.0)
                await control.write(envelope_frame(Hello(node="guest", incarnation="1")))
                assert isinstance(read_opening(await control.read()).message, messages.Welcome)
                work = channel.stream_stream(f"/{SERVICE}/Work")(timeout=60.0)
                await work.write(envelope_frame(messages.Ready(job="echo")))
                await work.write(envelope_frame(messages.Ready(job="other")))
                # What it asked of the job it does not work for is not even answered.
                answer = read_opening(await asyncio.wait_for(work.read(), 20.0)).message
                assert isinstance(answer, messages.Work)
                assert answer.job == "other"
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(work.read(), 0.3)

    run(story())


@pytest.mark.parametrize("how", ["barred", "not admitted anew"])
def test_one_that_is_barred_is_cut_off_within_a_heartbeat_and_stays_out(how: str, tmp_path: Path) -> None:
    """Also where the bar itself was lost: a leader that is back hears who works for it, and lets the others go."""

    async def story() -> None:
        async with door_in(tmp_path) as door:
            caller = door.caller("node", "admitted")
            assert caller is not None
            async with door.channel(caller) as channel:
                control = channel.stream_stream(f"/{SERVICE}/Control")(timeout=60.0)
                await control.write(envelope_frame(Hello(node=caller.node, incarnation="1")))
                assert isinstance(read_opening(await control.read()).message, messages.Welcome)
                work = channel.stream_stream(f"/{SERVICE}/Work")(timeout=60.0)
                await work.write(envelope_frame(messages.Ready(job="echo")))
                assert isinstance(read_opening(await asyncio.wait_for(work.read(), 20.0)).message, messages.Work)
                barred_s = time.monotonic()
                if how == "barred":
                    door.leader_host.tell(
                        Revoke(job="echo", term=1, node=caller.node, reason="revoked by the operator")
                    )
                else:
                    door.leader_host.tell(Admit(job="echo", term=1, nodes=("another",), anew=True))
                for stream in (control, work):
                    assert await asyncio.wait_for(stream.code(), 20.0) is grpc.StatusCode.PERMISSION_DENIED
                    assert NOT_HERE[1] in await stream.details()
                assert time.monotonic() - barred_s < Patience().heartbeat_s
                for stream in STREAMS:
                    code, details = await say(channel, stream, None)
                    assert code is NOT_HERE[0]
                    assert NOT_HERE[1] in details
                # Nor does it count against whoever has this name next.
                door.leader_host.tell(Admit(job="echo", term=1, nodes=(caller.node,)))
                code, _ = await say(channel, "Control", Hello(node=caller.node, incarnation="2"))
                assert code is grpc.StatusCode.OK

    run(story())


def test_the_door_is_closed_once_nothing_is_led_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.runtime.leader_host.LOOK_EVERY_S", 1.0)

    async def story() -> None:
        async with door_in(tmp_path) as door:
            caller = door.caller("node", "admitted")
            door.leader_host.tell(messages.StepDown(job="echo", term=1, reason="another leads"))
            async with door.channel(caller) as channel:
                # It may still be ajar; whoever knocks is nobody here any more.
                code, _ = await say(channel, "Control", None)
                assert code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE)
            host, _, port = door.endpoint.rpartition(":")
            is_open = True
            async with asyncio.timeout(20.0):
                while is_open:
                    await asyncio.sleep(0.05)
                    try:
                        _, writer = await asyncio.open_connection(host, int(port))
                    except ConnectionRefusedError:
                        is_open = False
                    except ConnectionResetError:
                        # It closed while this connection waited to be accepted: ask once more.
                        continue
                    else:
                        writer.close()

    run(story())


@pytest.mark.parametrize("end", ["sound", "broken"])
def test_a_leader_that_was_set_up_too_late_does_not_lead_under_the_next_term(end: str, tmp_path: Path) -> None:
    """It would have its old model kept under the new term, which nothing fences."""

    async def story() -> None:
        async with door_in(tmp_path) as door:
            around, tell = door.around, door.leader_host.tell
            model = await around.fetch(SHA)
            around.held = held = []

            async def appointed(term: int) -> None:
                tell(Assign(job="echo", role="leader", term=term, leader="lead", spec=door.spec))
                tell(Checkpoint(job="echo", term=term, version=-1))
                async with asyncio.timeout(20.0):
                    while len(held) < term - 1:
                        await asyncio.sleep(0.01)

            tell(messages.StepDown(job="echo", term=1, reason="another leads"))
            await appointed(2)
            tell(messages.StepDown(job="echo", term=2, reason="it was not set up in time"))
            await appointed(3)
            around.told.clear()
            if end == "sound":
                held[0].set_result(model)
            else:
                held[0].set_exception(OSError("the disk broke"))
            await asyncio.sleep(0.3)
            assert not around.told
            held[1].set_result(model)
            assert (await around.says(Leads)).term == 3
            progress = await around.says(messages.Progress)
            assert progress.term == 3

    run(story())


# Those who are dialled ----------------------------------------------------------------------------


class Caller:
    """A device at the near end of a line: writes down what it hears, and never beats."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.incarnation = "first"
        self.heard: list[Message] = []

    def dialer_opened(self, line: Dialer) -> None: ...

    def dialer_beat(self, line: Dialer, now_s: float) -> None: ...

    async def dialer_received(self, line: Dialer, message: Message, size_bytes: int) -> None:
        self.heard.append(message)
        line.hang_up("that was all")

    def dialer_payload_limit(self, line: Dialer, message: Message) -> int:
        return 0

    def dialer_payload_buffer(self, line: Dialer, message: Message, size_bytes: int) -> memoryview | None:
        return None

    def heartbeat_s(self, peer: str) -> float:
        return 60.0

    def connect_timeout_s(self, peer: str) -> float:
        return 10.0

    def has_work(self, peer: str) -> bool:
        return True


class Rogue:
    """Says one thing to each who calls, on one of its streams."""

    def __init__(self) -> None:
        self.says: dict[str, tuple[Lane, Message]] = {}
        self.listener = self

    def opened(self, session: Session) -> None:
        lane, message = self.says[session.peer.node]
        if session.lane is lane:
            session.post(message)

    def closed(self, session: Session, reason: str) -> None: ...

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None: ...

    async def received(self, session: Session, message: Message, size_bytes: int) -> None: ...

    def payload_limit(self, session: Session, message: Message) -> int:
        return 0

    def awaits(self, session: Session, message: Message) -> bool:
        return True

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None


@asynccontextmanager
async def rogue_in(directory: Path, role: str) -> AsyncIterator[tuple[Authority, Rogue, str]]:
    authority = Authority.create(directory / "authority", "pond")
    rogue: Any = Rogue()
    server = GrpcServer(authority.identity(node="rogue", role=role), rogue)
    port = await server.start("127.0.0.1", 0)
    try:
        yield authority, rogue, f"127.0.0.1:{port}"
    finally:
        await server.stop()


@pytest.mark.parametrize("role", ["node", "manager"])
def test_whoever_is_dialled_is_heard_by_the_table_and_else_the_session_ends(role: str, tmp_path: Path) -> None:
    """A leader that gives roles, dismisses, or makes another step down is cut off, and nobody hears of it."""

    async def story() -> None:
        async with rogue_in(tmp_path, role) as (authority, rogue, endpoint):
            wrong = []
            room = asyncio.Semaphore(8)

            async def dial(lane: Lane, name: str) -> None:
                caller = Caller(authority.identity(node=f"{lane}-{name}".lower(), role="node"))
                rogue.says[caller.identity.node] = (lane, MESSAGES[name])
                line = Dialer(caller, peer="rogue", role=role, endpoint=endpoint)
                async with room:
                    reason = await asyncio.wait_for(line.connect_once(), 20.0)
                told = may_be_told(role, lane, name)
                refused = f"{BROKE_CONTRACT}: {name} may not be sent here"
                if [type(said).__name__ for said in caller.heard] != [name] * told or (reason == refused) == told:
                    wrong.append((lane, name, reason, caller.heard))

            await asyncio.gather(*(dial(lane, name) for lane, name in itertools.product(Lane, MESSAGES)))
            assert not wrong

    run(story())


@pytest.mark.parametrize(
    ("every_s", "lost_after_s"), [(0.0, 8.0), (-1.0, 8.0), (1e-9, 8.0), (1e300, 1e301), (1.0, 0.5)]
)
def test_a_leader_that_asks_for_too_many_heartbeats_is_not_heard(
    every_s: float, lost_after_s: float, tmp_path: Path
) -> None:
    async def story() -> None:
        async with rogue_in(tmp_path, "node") as (authority, rogue, endpoint):
            welcome = messages.Welcome(heartbeat_s=every_s, lost_after_s=lost_after_s)
            rogue.says["device-1"] = (Lane.CONTROL, welcome)
            caller = Caller(authority.identity(node="device-1", role="node"))
            line = Dialer(caller, peer="rogue", role="node", endpoint=endpoint)
            reason = await asyncio.wait_for(line.connect_once(), 20.0)
            assert reason.startswith(BROKE_CONTRACT)
            assert not caller.heard

    run(story())


def test_a_leader_is_known_by_its_name_wherever_it_is_said_to_be(tmp_path: Path) -> None:
    """Another node that answers at the address, even a true member of the cluster, is not spoken to."""

    async def story() -> None:
        async with rogue_in(tmp_path, "node") as (authority, _, endpoint):
            caller = Caller(authority.identity(node="device-1", role="node"))
            line = Dialer(caller, peer="lead", role="node", endpoint=endpoint)
            assert (await asyncio.wait_for(line.connect_once(), 20.0)).startswith("unavailable")
            assert not caller.heard

    run(story())
