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
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from kit import run

from shoal.plan import Plan
from shoal.runtime.home import Home
from shoal.runtime.places import Places
from shoal.transport.access import MAY_SAY, Access
from shoal.transport.grpc import SERVICE, GrpcServer
from shoal.transport.identity import Authority, Identity, Peer, channel_credentials, channel_options
from shoal.wire import contract, messages
from shoal.wire.frames import envelope_frame, read_opening
from shoal.wire.messages import Blob, Dataset, Denied, JobSpec, Message

SHA = "0" * 64

#: Verb -> role -> what it may say there.
ALLOWED: dict[str, dict[str, str]] = {
    "Control": {"node": "Hello Heartbeat Leave Progress Released", "pending": "Hello Heartbeat Leave"},
    "Work": {"node": "Ready Offer Update Evaluated Failed", "pending": ""},
    "Fetch": {"node": "Blob", "operator": "Blob"},
    "Operate": {
        "operator": "Submit StopJob AskStatus AskModel MakeToken AskTokens RevokeToken"
        " RevokeNode ApproveNode DrainNode UndrainNode"
    },
    "Store": {"operator": "Blob"},
    "Renew": {"node": "Renew", "operator": "Renew", "pending": "Renew"},
}
VERBS = tuple(ALLOWED)
STREAMS = ("Control", "Work")
ROLES = ("node", "operator", "pending", "manager")

#: What only the side that was called says.
ANSWERS = (
    "Welcome HeartbeatSeen Assign Dismiss Release Work Wait Go Refused Finished"
    " Done Denied Status TokenMade TokenList Renewed"
)


def may_say(role: str, verb: str, name: str) -> bool:
    return name in ALLOWED[verb].get(role, "").split()


# Every message there is ---------------------------------------------------------------------------


def sample(kind: Any) -> Any:
    """The simplest value of a class: what it requires, and nothing else."""
    if kind is JobSpec:
        data = Dataset(manifest=SHA, examples=1)
        return JobSpec(job="j", name="j", entry="t:T", bundle=SHA, initial=SHA, train=data, test=data, plan=Plan())
    if kind is Blob:
        return Blob(sha256=SHA)
    hints = typing.get_type_hints(kind)
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return kind(**{name: _simplest(hints[name]) for name in required})


def _simplest(hint: Any) -> Any:
    plain: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: True}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, types.UnionType):
        return None
    return () if typing.get_origin(hint) is tuple else sample(hint)


MESSAGES: dict[str, Message] = {
    name: sample(getattr(messages, name)) for name in sorted(contract.ENVELOPE_FIELDS.values())
}


def test_every_message_is_said_by_someone_or_only_in_answer() -> None:
    said = {name for row in ALLOWED.values() for names in row.values() for name in names.split()}
    answers = set(ANSWERS.split())
    assert said | answers == set(MESSAGES), "a new message needs a row in access.py, and in the table above"
    assert not said & answers


def test_every_verb_of_the_contract_has_a_row_and_there_are_no_others() -> None:
    service = contract._POOL.FindServiceByName(SERVICE)
    assert {method.name for method in service.methods} == set(MAY_SAY) == set(VERBS)
    assert {role for row in MAY_SAY.values() for role in row} <= set(ROLES)


class Held:
    """Every member has the role that a test gives it."""

    def __init__(self, role: str) -> None:
        self._role = role

    def role_now(self, peer: Peer) -> str:
        return self._role


@pytest.mark.parametrize("role", [*ROLES, "", "root", "Node", "operator "])
def test_every_cell_of_the_table(role: str) -> None:
    peer = Peer(node="pi", role="node", cluster="pond")
    access = Access(cluster="pond", members=Held(role))
    wrong = []
    for verb, name in itertools.product((*VERBS, "", "control", "Shutdown"), (*MESSAGES, "", "Unknown")):
        expected = verb in ALLOWED and may_say(role, verb, name)
        if (name in access.heard(peer, verb)) != expected:
            wrong.append((verb, name))
    assert not wrong


def test_a_member_of_another_cluster_of_the_same_names_says_nothing() -> None:
    access = Access(cluster="pond")
    stranger = Peer(node="pi", role="node", cluster="lake")
    for verb, name in itertools.product(VERBS, MESSAGES):
        with pytest.raises(Exception, match="belongs to cluster lake, not pond"):
            _ = name in access.heard(stranger, verb)


# Over sockets -------------------------------------------------------------------------------------


@dataclass
class Site:
    """A manager's two halves, without the rest of `shoal up`: its door and what is behind it."""

    authority: Authority
    elsewhere: Authority
    home: Home
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
            listed = {"node": "operator", "operator": "node", "manager": "node"}[certified]
            self._enlist(name, listed if state == "another's name" else certified, role, state)
        return None if state == "no certificate" else replace(made, ca_pem=self.authority.certificate_pem)

    def _enlist(self, name: str, listed: str, role: str, state: str) -> None:
        standing = "pending" if role == "pending" else "enrolled"
        registry = self.home.registry
        registry.upsert_node(node=name, role=listed, facts_json="{}", state=standing, now_s=time.time())
        if state == "revoked":
            registry.revoke_node(name, now_s=time.time(), reason="lost")
        self.home.roll.refresh(name)

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
    home = Home(identity, Places(directory / "home"))
    home.roll.sign_with(authority)
    server = GrpcServer(identity, home, members=home.roll)
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
        call = kind(path)(timeout=20.0)
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
    call = kind(path)(frame, timeout=20.0)
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
    "revoked": (grpc.StatusCode.PERMISSION_DENIED, "shut out: revoked by the operator on"),
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
                    heard = "does not come this way" not in details
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
                control = channel.stream_stream(f"/{SERVICE}/Control")(timeout=20.0)
                await control.write(envelope_frame(messages.Hello(node=pending.node, incarnation="1")))
                assert isinstance(read_opening(await control.read()).message, messages.Welcome)
                call = channel.stream_stream(f"/{SERVICE}/Work")(timeout=20.0)
                site.home.registry.set_node_state(pending.node, "enrolled")
                site.home.roll.refresh(pending.node)
                await call.write(envelope_frame(messages.Ready(job="j")))
                # Heard: it is told that nobody leads this job.
                answer = read_opening(await asyncio.wait_for(call.read(), 20.0)).message
                assert answer == messages.Finished(job="j", reason="this job is not led here")
                site.home.registry.revoke_node(pending.node, now_s=time.time(), reason="lost")
                site.home.roll.refresh(pending.node)
                await call.write(envelope_frame(messages.Ready(job="j")))
                assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "shut out: revoked by the operator" in await call.details()

    run(story())
