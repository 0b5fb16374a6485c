"""Certificates that are replaced in time, and after: over real sockets, with lives of seconds instead of months."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from kit import WAIT_S, manager_in, run
from member_of import remote_of

from shoal.errors import PeerViolation, Refused, Unreachable
from shoal.identity import certificates
from shoal.identity.enrolment import Enrolled, enrol, return_lapsed
from shoal.identity.identity import Authority, Identity, certificate_sha256
from shoal.identity.join_code import JoinCode
from shoal.net import renewal
from shoal.net.grpc import GrpcLink
from shoal.runtime.agent import Agent
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.journal import CLUSTER
from shoal.runtime.member_register import LAPSED_MAX_S
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.registry import Registry
from shoal.store.rows import Certificate
from shoal.wire.messages import AskStatus

DAY_S = 86400.0

#: Lives of certificates in these tests: long enough to connect with on a loaded machine, short enough to wait for.
SHORT_S = 18.0


async def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s: {what}"
        await asyncio.sleep(0.1)


def serial(identity: Identity) -> int:
    return x509.load_pem_x509_certificate(identity.certificate_pem).serial_number


def aged(home: Path, member: Enrolled, *, days_ago: float) -> Enrolled:
    """The same member with a certificate that ran out so long ago, as the registry knows it."""
    authority = Authority.load(Paths(home).authority)
    request = certificates.new_request(member.identity.node)
    issued_s = time.time() - (days_ago + 30) * DAY_S
    pem = authority.issue(
        node=member.identity.node, role=member.identity.role, csr_pem=request.pem, now_s=issued_s, valid_days=30
    )
    known = certificates.issued(pem)
    identity = replace(
        member.identity,
        key_pem=request.key_pem,
        certificate_pem=pem,
        issued_s=issued_s,
        expires_s=known.expires_s,
    )
    with Registry(Paths(home).registry) as registry:
        registry.add_certificate(
            Certificate(
                sha256=certificate_sha256(pem),
                node=identity.node,
                role=identity.role,
                key_sha256=known.key_sha256,
                issued_s=issued_s,
                expires_s=known.expires_s,
            )
        )
    return replace(member, identity=identity)


async def is_let_in(member: Enrolled) -> bool:
    link = GrpcLink(member.identity, server_node=member.manager_node, endpoint=member.manager_endpoint)
    try:
        async for _ in link.fetch("0" * 64):
            pass
    except Refused as refused:
        # Let in, and told that there is no such blob.
        return "no blob" in str(refused)
    except Unreachable:
        return False
    finally:
        await link.close()
    return True


def test_a_member_renews_over_its_session_with_a_new_key(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            old = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            new = await renewal.renewed(old)
            assert (new.identity.node, new.identity.role) == ("pi", "node")
            assert new.identity.key_pem != old.identity.key_pem
            assert serial(new.identity) != serial(old.identity)
            assert new.identity.expires_s >= old.identity.expires_s
            # The old one is good until the new one is used: the new one may have been lost on the way.
            assert await is_let_in(old)
            assert await is_let_in(new)
            assert not await is_let_in(old)
            with Registry(Paths(home).registry) as registry:
                recorded = {row.sha256 for row in registry.certificates("pi")}
            shown = {certificate_sha256(each.identity.certificate_pem) for each in (old, new)}
            assert recorded == shown

    run(story())


def alarms(home: Path) -> list[str]:
    with Registry(Paths(home).registry) as registry:
        return [event.text for event in registry.events_after(CLUSTER, 0, limit=1000) if event.kind == "key.misused"]


@pytest.mark.gate("replaced keys")
def test_a_replaced_key_opens_no_door_and_its_use_is_an_alarm(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            members = [await enrol(JoinCode.parse(ready.join_line), wanted="pi")]
            for _ in range(3):
                assert await is_let_in(members[-1])
                members.append(await renewal.renewed(members[-1]))
            newest = members[-1]
            assert await is_let_in(newest)
            assert not alarms(home), "what a device does by itself alarms nobody"
            for old in members[:-1]:
                with pytest.raises(Refused, match="shut out: the key of this certificate was replaced on 20"):
                    await return_lapsed(old)
                with pytest.raises(Refused, match="shut out: the key of this certificate was replaced on 20"):
                    await renewal.renewed(old)
                assert not await is_let_in(old)
            assert (await renewal.renewed(newest)).identity.node == "pi"
            await until("the alarm is written down", lambda: bool(alarms(home)))
            (told,) = alarms(home)
            for words in ("a key of pi that was replaced on 20", "127.0.0.1", "shoal nodes revoke pi", "--anew"):
                assert words in told
        # It outlives the manager.
        async with manager_in(home) as ready:
            again = [
                replace(each, manager_endpoint=ready.endpoint, enrol_endpoint=f"127.0.0.1:{ready.enrol_port}")
                for each in members
            ]
            with pytest.raises(Refused, match="was replaced"):
                await return_lapsed(again[0])
            assert not await is_let_in(again[1])
            assert await is_let_in(again[-1])

    run(story())


def test_the_hash_of_an_old_certificate_alone_alarms_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            old = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            new = await renewal.renewed(old)
            assert await is_let_in(new)
            stranger = certificates.new_request("pi").key_pem
            with pytest.raises(Refused, match="does not hold the key"):
                await return_lapsed(replace(old, identity=replace(old.identity, key_pem=stranger)))
            await asyncio.sleep(1.0)
            assert not alarms(home)

    run(story())


def test_a_device_that_crashed_before_it_wrote_its_new_key_goes_on_with_the_old(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            old = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            assert await is_let_in(old)
            lost = [await renewal.renewed(old) for _ in range(3)]
            assert await is_let_in(old)
            assert (await return_lapsed(old)).identity.key_pem == old.identity.key_pem
            written = await renewal.renewed(old)
            assert await is_let_in(written)
            # Whoever has those that were lost on the way is not the device.
            assert not await is_let_in(lost[-1])

    run(story())


def test_commands_at_the_same_time_renew_once(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready, Operator.open(home) as attached:
            folder = Paths(home).operator
            due = Enrolled.load(folder).identity
            replace(Enrolled.load(folder), identity=replace(due, issued_s=1.0, expires_s=time.time() + 60)).save(folder)
            assert (await attached.status()).cluster

            async def command() -> str:
                async with Operator.open(home) as operator:
                    await operator.status()
                    return certificate_sha256(operator._identity.certificate_pem)

            used = set(await asyncio.gather(*(command() for _ in range(4))))
            assert len(used) == 1
            assert certificate_sha256(due.certificate_pem) not in used
            # A command that runs for long goes on as who it is by now, and alarms nobody.
            assert (await attached.status()).cluster == ready.cluster
            await asyncio.sleep(1.0)
            assert not alarms(home)

    run(story())


def test_a_revoked_member_renews_nothing_either_way_and_what_it_renewed_is_void(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready, Operator.open(home) as operator:
            old = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            new = await renewal.renewed(old)
            await operator.revoke_node("pi")
            for member in (old, new):
                assert not await is_let_in(member)
                with pytest.raises(Refused, match="shut out: revoked on"):
                    await renewal.renewed(member)
                with pytest.raises(Refused, match="shut out: revoked on"):
                    await return_lapsed(member)

    run(story())


def test_one_who_was_away_for_months_comes_back_with_its_old_key(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            member = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            away = aged(home, member, days_ago=170)
            assert not await is_let_in(away), "TLS itself refuses a certificate that ran out"
            away.save(tmp_path / "pi")
            back = await renewal.renew_in(tmp_path / "pi")
            assert Enrolled.load(tmp_path / "pi") == back
            assert back.identity.key_pem == away.identity.key_pem
            assert back.identity.expires_s > time.time()
            assert await is_let_in(back)

    run(story())


def test_one_who_was_away_for_too_long_needs_a_new_line(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            member = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            gone = aged(home, member, days_ago=LAPSED_MAX_S / DAY_S + 1)
            with pytest.raises(Refused, match=r"over 180 days ago: ask for a new line.*--anew"):
                await return_lapsed(gone)

    run(story())


def test_coming_back_takes_the_key_and_not_just_the_certificate(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            member = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            other = await enrol(JoinCode.parse(ready.join_line), wanted="other")
            thief = replace(member, identity=replace(member.identity, key_pem=other.identity.key_pem))
            with pytest.raises(Refused, match="does not hold the key of pi's certificate"):
                await return_lapsed(thief)
            stranger = Authority.create(tmp_path / "elsewhere", "shoal").identity(node="pi", role="node")
            unknown = replace(member.identity, key_pem=stranger.key_pem, certificate_pem=stranger.certificate_pem)
            with pytest.raises(Refused, match="not known here"):
                await return_lapsed(replace(member, identity=unknown))

    run(story())


def test_nothing_is_said_to_another_cluster(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_in(tmp_path / "home") as ready:
            member = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
        async with manager_in(tmp_path / "impostor") as other:
            where = JoinCode.parse(other.join_line).endpoint
            with pytest.raises(PeerViolation, match="Nothing was sent"):
                await return_lapsed(replace(member, enrol_endpoint=where))

    run(story())


def test_a_member_cannot_renew_into_another_name_or_role(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_in(tmp_path / "home") as ready:
            member = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            link = GrpcLink(member.identity, server_node="manager", endpoint=member.manager_endpoint)
            try:
                # What the request says of itself counts for nothing.
                answer = await link.renew(certificates.new_request("operator").pem.decode())
                assert remote_of(answer.certificate_pem.encode()).uri == "shoal://shoal/node/pi"
                with pytest.raises(Refused, match="cannot be read"):
                    await link.renew("no request at all")
            finally:
                await link.close()

    run(story())


def test_an_agent_renews_by_itself_and_goes_on_past_the_end_of_its_first_certificate(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home, certificate_days=SHORT_S / DAY_S) as ready:
            places = Paths(tmp_path / "pi")
            first = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            first.save(places.node)
            agent = Agent(first, AgentOptions(home=places.home, child_module="shoal.trainer.echo"))
            running = asyncio.create_task(agent.run())
            try:
                await until("a new certificate", lambda: serial(Identity.load(places.node)) != serial(first.identity))
                assert Identity.load(places.node).issued_s < first.identity.expires_s, "in time"
                await asyncio.sleep(max(0.0, first.identity.expires_s + 0.5 - time.time()))
                assert not await is_let_in(first)
                # A session outlives its certificate; the next one needs the new.
                line = agent._dialers["manager"]
                link = line.link
                line.hang_up("the network broke")
                await until("another identity", lambda: agent.identity.expires_s > first.identity.expires_s)
                await until("it is back", lambda: agent._router.welcomed and line.link not in (None, link))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    run(story())


def test_an_agent_that_slept_past_its_certificate_comes_back_without_a_hand(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home) as ready:
            places = Paths(tmp_path / "pi")
            away = aged(home, await enrol(JoinCode.parse(ready.join_line), wanted="pi"), days_ago=40)
            away.save(places.node)
            agent = Agent(away, AgentOptions(home=places.home, child_module="shoal.trainer.echo"))
            running = asyncio.create_task(agent.run())
            try:
                await until("it is welcome", lambda: agent._router.welcomed)
                assert Identity.load(places.node).expires_s > time.time()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    run(story())


def test_the_manager_shows_a_new_certificate_at_both_doors_while_it_runs(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with manager_in(home, certificate_days=SHORT_S / DAY_S) as ready:
            first = Identity.load(Paths(home).manager)
            joining = JoinCode.parse(ready.join_line).port
            assert await shown(joining) == first.certificate_pem
            await asyncio.sleep(max(0.0, first.expires_s + 0.5 - time.time()))
            now = Identity.load(Paths(home).manager)
            assert serial(now) != serial(first)
            assert await shown(joining) == now.certificate_pem
            member = await enrol(JoinCode.parse(ready.join_line), wanted="late")
            assert await is_let_in(member)
            # The operator's ran out as well: its commands notice.
            async with Operator.open(home) as operator:
                assert (await operator.status()).manager == "manager"
            assert Identity.load(Paths(home).operator).expires_s > time.time()

    run(story())


async def shown(port: int) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


def test_a_manager_that_was_off_for_long_renews_before_it_opens(tmp_path: Path) -> None:
    async def story() -> None:
        home, places = tmp_path / "home", Paths(tmp_path / "home")
        async with manager_in(home):
            pass
        authority = Authority.load(places.authority)
        old = authority.identity(node="manager", role="manager", now_s=time.time() - 400 * DAY_S)
        old.save(places.manager)
        stale = authority.identity(node="operator", role="operator", now_s=time.time() - 400 * DAY_S)
        replace(Enrolled.load(places.operator), identity=stale).save(places.operator)
        async with manager_in(home), Operator.open(home) as operator:
            assert await operator._link.operate(AskStatus())
        assert Identity.load(places.manager).expires_s > time.time()

    run(story())
