"""Who is not let in, and what is not taken: real calls on a real manager, each refused with its reason."""

import asyncio
import dataclasses
import itertools
import socket
import time
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from kit import WAIT_S, Site, manager_site, run
from shared_cluster import SharedCluster, shared_cluster

from shoal.errors import Refused, Unreachable
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.identity import Authority, Identity, channel_credentials, channel_options
from shoal.identity.join_code import JoinCode
from shoal.net.base import Session
from shoal.net.grpc import SERVICE, GrpcLink
from shoal.runtime.paths import Paths
from shoal.wire.frames import envelope_frame
from shoal.wire.messages import AskStatus, Assign, Blob, Facts, Hello, Lane, Message, Ready, Update, Work

#: Who may call what. Written out, so that the table in the code cannot be wrong in silence.
OPEN_TO = {
    "Control": {"node"},
    "Work": {"node", "operator"},
    "Fetch": {"node", "operator"},
    "Operate": {"operator"},
    # Of what may be uploaded, a device may send only entries for a shared set.
    "Store": {"node", "operator"},
}
#: For the tests that need a device. Liars have names of their own: a manager turns away who lied too often.
cluster = shared_cluster(workers=1)

MEMBERS = ("node", "operator", "manager")

#: A message that no verb answers with more than a word, so that one frame tries them all.
FRAME = envelope_frame(Blob(sha256="0" * 64))

#: How a call ends whose caller was let in, whatever then came of the frame.
ADMITTED = {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}


async def knock(channel: grpc.aio.Channel, verb: str, *, speak: bool) -> tuple[grpc.StatusCode, str]:
    """Call a verb; how the call ended.

    On a stream, ``speak`` says whether a frame is sent: one that is to be refused needs none, and grpc.aio may put
    the failure of a late write in place of the refusal.
    """
    path = f"/{SERVICE}/{verb}"
    if verb in ("Control", "Work", "Store"):
        kind = channel.stream_unary if verb == "Store" else channel.stream_stream
        call = kind(path)(timeout=90.0)
        if speak:
            await call.write(FRAME)
            await call.done_writing()
    else:
        kind = channel.unary_stream if verb == "Fetch" else channel.unary_unary
        call = kind(path)(FRAME, timeout=90.0)
    return await call.code(), await call.details()


async def enrolled(site: Site, name: str) -> Identity:
    return (await enrol(JoinCode.parse(site.cluster.join_line), wanted=name)).identity


def strangers(site: Site, tmp_path: Path) -> dict[str, Identity]:
    """Certificates that look like those of members, and are not. All trust the manager: it must not trust them."""
    home = Authority.load(Paths(site.cluster.home).authority)
    elsewhere = Authority.create(tmp_path / "elsewhere", home.cluster)
    made = {
        "operator of another cluster": elsewhere.identity(node="operator", role="operator"),
        "node of another cluster": elsewhere.identity(node="device-1", role="node"),
        "operator whose time is over": home.identity(
            node="operator", role="operator", now_s=time.time() - 800 * 86400, valid_days=365
        ),
    }
    return {who: dataclasses.replace(identity, ca_pem=home.certificate_pem) for who, identity in made.items()}


@pytest.mark.gate("roles")
def test_every_verb_is_open_to_its_roles_and_to_nobody_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            places = Paths(site.cluster.home)
            callers = {
                "node": await enrolled(site, "device-1"),
                "operator": Identity.load(places.operator),
                "manager": Identity.load(places.manager),
                **strangers(site, tmp_path),
            }
            options = channel_options("manager")
            wrong = []
            for (who, identity), verb in itertools.product(callers.items(), OPEN_TO):
                credentials = channel_credentials(identity)
                async with grpc.aio.secure_channel(site.cluster.endpoint, credentials, options=options) as channel:
                    code, details = await knock(channel, verb, speak=who in OPEN_TO[verb])
                if who in OPEN_TO[verb]:
                    is_right = code in ADMITTED
                elif who in MEMBERS:
                    is_right = code is grpc.StatusCode.PERMISSION_DENIED and f"may not call {verb}" in details
                else:
                    # Not even a handshake: nothing of ours runs for them.
                    is_right = code is grpc.StatusCode.UNAVAILABLE
                if not is_right:
                    wrong.append((who, verb, code, details))
            assert not wrong

    run(story())


@pytest.mark.full
def test_an_upload_that_does_not_begin_is_ended_by_the_manager(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            credentials = channel_credentials(await enrolled(site, "silent-1"))
            options = channel_options("manager")
            async with grpc.aio.secure_channel(site.cluster.endpoint, credentials, options=options) as channel:
                code, details = await knock(channel, "Store", speak=False)
            assert (code, details) == (grpc.StatusCode.DEADLINE_EXCEEDED, "an upload that did not begin")

    run(story())


def test_a_link_tells_its_owner_why_it_was_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            place = {"server_node": "manager", "endpoint": site.cluster.endpoint}
            node = GrpcLink(await enrolled(site, "device-1"), **place)
            operator = GrpcLink(Identity.load(Paths(site.cluster.home).operator), **place)
            stranger = GrpcLink(strangers(site, tmp_path)["operator of another cluster"], **place)
            file = tmp_path / "blob"
            file.write_bytes(bytes(8 << 20))
            try:
                with pytest.raises(Refused, match="a node may not call Operate"):
                    await node.operate(AskStatus())
                with pytest.raises(Refused, match="Blob may not be sent here"):
                    await node.store("0" * 64, file)
                told = await asyncio.wait_for(operator.run(Caller()), WAIT_S)
                assert "a operator may not call" in told
                with pytest.raises(Unreachable):
                    await stranger.operate(AskStatus())
            finally:
                for link in (node, operator, stranger):
                    await link.close()

    run(story())


def test_an_agent_of_another_cluster_cannot_connect(tmp_path: Path, cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        identity = strangers(site, tmp_path)["node of another cluster"]
        stranger = Enrolled(identity=identity, manager_node="manager", manager_endpoint=site.cluster.endpoint)
        stranger.save(site.cluster.agent_home("stranger") / "node")
        await site.connected("device-1")
        before = {node.node: node.state for node in (await site.operator.status()).nodes}
        await site.cluster.start_agent("stranger")

        async def tried_thrice() -> bool:
            return site.log("stranger").count("trying again") >= 3

        await site.until("three attempts", tried_thrice)
        assert "connected" not in site.log("stranger")
        # It took the name of a member, too: the real one is not disturbed.
        nodes = {node.node: node.state for node in (await site.operator.status()).nodes}
        assert nodes == before
        assert nodes["device-1"] == "alive"
        job = await site.submit_tally(batches=10)
        await site.ended(job)
        assert {row.node for row in await site.tallied_once(job, batches=10)} == {"device-1"}

    cluster.run(story)


class Caller:
    """A member by its certificate, and otherwise whatever a test makes it say."""

    def __init__(self, *, says_it_is: str = "", delta: int = 0) -> None:
        self._says_it_is = says_it_is
        self._delta = delta
        self._sessions: dict[Lane, Session] = {}
        self.closed_for: dict[Lane, str] = {}

    def opened(self, session: Session) -> None:
        self._sessions[session.lane] = session
        if session.lane is Lane.CONTROL and self._says_it_is:
            session.post(Hello(node=self._says_it_is, incarnation="1", facts=Facts(torch="none")))

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        match message:
            case Assign():
                self._sessions[Lane.WORK].post(Ready(job=message.job))
            case Work():
                values = np.ones(self._delta, np.float32)
                update = Update(
                    job=message.job,
                    term=message.term,
                    lease=message.lease,
                    version=message.version,
                    examples=1,
                    tensors={"delta": values},
                )
                self._sessions[Lane.WORK].post(update)

    def closed(self, session: Session, reason: str) -> None:
        self.closed_for[session.lane] = reason

    def payload_limit(self, session: Session, message: Message) -> int:
        return 1 << 20

    def awaits(self, session: Session, message: Message) -> bool:
        return True

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None


@pytest.mark.parametrize("values", [pytest.param(21, marks=pytest.mark.gate("memory")), 5_000_000])
def test_an_update_larger_than_the_model_ends_the_session_and_not_the_job(cluster: SharedCluster, values: int) -> None:
    async def story(site: Site) -> None:
        job = await site.submit_tally(batches=20, workers_min=2)
        name = f"liar-of-{values}"
        identity = await enrolled(site, name)
        link = GrpcLink(identity, server_node="manager", endpoint=site.cluster.endpoint)
        liar = Caller(says_it_is=name, delta=values)
        told = await asyncio.wait_for(link.run(liar), WAIT_S)
        reason = f"broke the contract: Update has {values * 4} bytes of tensors; the maximum is 80"
        assert reason in told
        await site.event("cluster", "device.refused", f"{name} {reason}")
        await site.event(job, "device.lost", name)
        await site.cluster.start_agent("honest")
        await site.ended(job)
        assert {row.node for row in await site.tallied_once(job, batches=20)} == {"device-1", "honest"}

    cluster.run(story)


def test_a_node_cannot_speak_for_another(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        await site.connected("device-1")
        before = [node.node for node in (await site.operator.status()).nodes]
        link = GrpcLink(await enrolled(site, "posing"), server_node="manager", endpoint=site.cluster.endpoint)
        told = await asyncio.wait_for(link.run(Caller(says_it_is="device-1")), WAIT_S)
        assert "broke the contract: Hello.node is device-1" in told
        await site.event("cluster", "device.refused", "posing broke the contract: Hello.node is device-1")
        assert [node.node for node in (await site.operator.status()).nodes] == before

    cluster.run(story)


@pytest.mark.gate("no stranger")
def test_there_is_no_way_in_without_tls_and_a_certificate(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            endpoint = site.cluster.endpoint
            async with grpc.aio.insecure_channel(endpoint) as plain:
                assert await _codes(plain) == {grpc.StatusCode.UNAVAILABLE}
            authority = Authority.load(Paths(site.cluster.home).authority)
            anonymous = grpc.ssl_channel_credentials(root_certificates=authority.certificate_pem)
            async with grpc.aio.secure_channel(endpoint, anonymous, options=channel_options("manager")) as unnamed:
                assert await _codes(unnamed) == {grpc.StatusCode.UNAVAILABLE}

            host, _, port = endpoint.rpartition(":")
            enrol_port = JoinCode.parse(site.cluster.join_line).port
            http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
            for where in (int(port), enrol_port):
                for greeting in (http2, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
                    heard = await asyncio.to_thread(_heard, host, where, greeting)
                    # Nothing, or TLS's own word for an error (record type 21).
                    assert heard[:1] in (b"", b"\x15"), (where, greeting, heard)

    run(story())


async def _codes(channel: grpc.aio.Channel) -> set[grpc.StatusCode]:
    return {(await knock(channel, verb, speak=False))[0] for verb in OPEN_TO}


def _heard(host: str, port: int, greeting: bytes) -> bytes:
    """All that comes back until the other side hangs up."""
    heard = b""
    with socket.create_connection((host, port), timeout=WAIT_S) as connection:
        try:
            connection.sendall(greeting)
            while chunk := connection.recv(4096):
                heard += chunk
        except ConnectionResetError:
            pass
    return heard
