"""Members through their lives, with a real manager and real agents: invited, known, held back, shut out."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from pathlib import Path

import pytest
from kit import WAIT_S, cluster_in, manager_in, manager_site, run

from shoal.cli import main
from shoal.errors import Refused
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.identity import Identity
from shoal.identity.join_code import JoinCode
from shoal.net.base import Session
from shoal.net.grpc import GrpcLink
from shoal.roles.node.failure_detector import Patience
from shoal.runtime.agent import Agent
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.wire.messages import AskStatus, Facts, Hello, Lane, Message, NodeView, RevokeNode, Work
from shoal.wire.messages import Ready as WorkerReady
from testbed.echo_job import echo_job


def test_an_operator_makes_and_takes_back_a_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            made = await site.operator.make_token(role="operator", uses=2, valid_s=60.0, label="ann and bob")
            code = JoinCode.parse(made.join_line)
            ann = await enrol(code, wanted="ann")
            assert (ann.identity.role, ann.identity.node) == ("operator", "ann")
            views = {view.label: view for view in await site.operator.tokens()}
            assert set(views) == {"shoal up", "ann and bob"}
            assert views["ann and bob"].uses_left == 1
            assert code.secret not in repr(views)
            await site.operator.revoke_token(made.token.token)
            with pytest.raises(Refused, match="unknown or was revoked: ask the cluster's operator"):
                await enrol(code, wanted="bob")
            with pytest.raises(Refused, match="shoal token list"):
                await site.operator.revoke_token(made.token.token)

    run(story())


def test_a_second_operator_joins_by_a_pasted_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0) as site:
            made = await site.operator.make_token(role="operator", uses=2, valid_s=60.0, label="")
            home = tmp_path / "laptop"
            pasted = ["join", made.join_line, "--name", "ann", "--home", str(home)]
            assert await asyncio.to_thread(main.run, pasted) == 0
            said = " ".join(capsys.readouterr().out.split())
            assert "ann may operate cluster shoal from here. Try: shoal status" in said
            async with Operator.open(home) as ann:
                assert (await ann.status()).manager == "manager"
            # Nothing that another cluster relies on is overwritten.
            assert await asyncio.to_thread(main.run, pasted) == 2
            assert "--home" in capsys.readouterr().err

    run(story())


# Revocation ---------------------------------------------------------------------------------------


@pytest.mark.gate("revocation")
def test_a_revoked_device_is_out_within_a_heartbeat_and_its_work_is_done_by_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            site.pace(0.05)
            job = await site.submit_tally(batches=60, workers_min=1)
            await site.works(job, "device-1")
            thief = site.cluster.agents["device-1"]
            told = await site.operator.revoke_node("device-1", "stolen")
            assert "device-1 is shut out" in told
            # Its agent is told why, and gives up: nothing it could do would change it.
            assert await asyncio.wait_for(thief.wait(), WAIT_S) == 4
            said = (site.cluster.home / "device-1.log").read_text().splitlines()[-1]
            assert said.startswith("shoal: permission denied: device-1: shut out: revoked on 20")
            assert "(by operator: stolen): ask for a new line, and join with `shoal join LINE --anew`" in said

            lost = await site.event(job, "device.lost", "device-1: revoked on")
            revoked = await site.event("cluster", "device.revoked", "device-1 was revoked on")
            # By the manager's clock: how long a process takes to end says more of the machine.
            assert lost.at_s - revoked.at_s < Patience().heartbeat_s
            assert "no reconnect within" not in lost.text, "its leases return at once, not after a time-out"
            site.pace(0.0)
            await site.ended(job)
            rows = await site.tallied_once(job, batches=60)
            assert "device-2" in {row.node for row in rows}
            nodes = {node.node: node for node in (await site.operator.status()).nodes}
            assert (nodes["device-1"].state, nodes["device-1"].standing) == ("lost", "revoked")
            assert "stolen" in nodes["device-1"].reason

    run(story())


def test_a_revocation_holds_over_a_restart_and_the_name_comes_back_with_a_new_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await site.connected("device-1")
            old = Identity.load(Paths(site.cluster.agent_home("device-1")).node)
            first_line = site.cluster.join_line
            await site.operator.revoke_node("device-1")
            await site.kill_manager()
            await site.cluster.start_manager()
            link = GrpcLink(old, server_node="manager", endpoint=site.cluster.endpoint)
            with pytest.raises(Refused, match="shut out: revoked on"):
                async for _ in link.fetch("0" * 64):
                    pass
            # The port is new, the secret that the device knows is not.
            code = JoinCode.parse(site.cluster.join_line)
            known = dataclasses.replace(code, secret=JoinCode.parse(first_line).secret)
            with pytest.raises(Refused, match="unknown or was revoked"):
                await enrol(known, wanted="device-1")

            again = await enrol(JoinCode.parse(site.cluster.join_line), wanted="device-1")
            assert again.identity.node == "device-1"
            again.save(site.cluster.agent_home("device-1") / "node")
            await site.cluster.start_agent("device-1")
            back = await site.connected("device-1")
            assert back.standing == ""
            with pytest.raises(Refused, match="this certificate was revoked"):
                async for _ in link.fetch("0" * 64):
                    pass
            await link.close()

    run(story())


def test_a_revoked_operator_is_out_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            made = await site.operator.make_token(role="operator", uses=1, valid_s=60.0, label="")
            ann = (await enrol(JoinCode.parse(made.join_line), wanted="ann")).identity
            link = GrpcLink(ann, server_node="manager", endpoint=site.cluster.endpoint)
            assert await link.operate(AskStatus())
            with pytest.raises(Refused, match="revoke it as another operator"):
                await link.operate(RevokeNode(node="ann"))
            await site.operator.revoke_node("ann")
            for message in (AskStatus(), RevokeNode(node="operator")):
                with pytest.raises(Refused, match="shut out: revoked on"):
                    await link.operate(message)
            await link.close()
            with pytest.raises(Refused, match="create a new cluster"):
                await site.operator.revoke_node("manager")

    run(story())


def test_a_download_of_a_revoked_member_stops(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_site(tmp_path) as site:
            # An operator: it may fetch what belongs to no job.
            token = await site.operator.make_token(role="operator", uses=1, valid_s=600.0, label="")
            slow = (await enrol(JoinCode.parse(token.join_line), wanted="slow")).identity
            file = tmp_path / "blob"
            file.write_bytes(bytes(64 << 20))
            sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
            await site.operator._link.store(sha256, file)
            link = GrpcLink(slow, server_node="manager", endpoint=site.cluster.endpoint)
            sizes: list[int] = []

            async def download() -> None:
                async for chunk in link.fetch(sha256):
                    if not sizes:
                        await site.operator.revoke_node("slow")
                    sizes.append(len(chunk))

            with pytest.raises(Refused, match="shut out"):
                await download()
            assert 0 < sum(sizes) < 64 << 20
            await link.close()

    run(story())


# Held back ----------------------------------------------------------------------------------------


async def node_view(operator: Operator, name: str, *, limit_s: float = WAIT_S, **wanted: str) -> NodeView:
    """Wait until a node looks like this."""
    deadline_s = time.monotonic() + limit_s
    while True:
        views = (await operator.status()).nodes
        view = next((view for view in views if view.node == name), None)
        if view and all(getattr(view, field) == value for field, value in wanted.items()):
            return view
        assert time.monotonic() < deadline_s, f"{name} is not {wanted}: {views}"
        await asyncio.sleep(0.05)


@pytest.mark.gate("approval")
def test_a_newcomer_waits_for_approval_and_sees_nothing_until_then(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_in(tmp_path / "home", approve=True) as ready, Operator.open(tmp_path / "home") as operator:
            job = await operator.submit(echo_job(tmp_path, values=50, batches=20), plan={"until": {"epochs": 1}})
            places = Paths(tmp_path / "pi")
            (await enrol(JoinCode.parse(ready.join_line), wanted="pi")).save(places.node)
            member = Enrolled.load(places.node)
            agent = Agent(member, AgentOptions(home=places.home, child_module="shoal.trainer.echo"))
            running = asyncio.create_task(agent.run())
            try:
                view = await node_view(operator, "pi", state="alive", standing="pending")
                assert view.reason == "waits to be approved: shoal nodes approve pi"

                # One that does not play along gets neither the data nor a lease by asking for it.
                sly = GrpcLink(member.identity, server_node="manager", endpoint=ready.endpoint)
                with pytest.raises(Refused, match=r"waits to be approved .* may not call Fetch"):
                    async for _ in sly.fetch("0" * 64):
                        pass
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                assert "Ready may not be sent here" in await asyncio.wait_for(sly.run(Asks(job)), WAIT_S)

                running = asyncio.create_task(agent.run())
                await node_view(operator, "pi", state="alive", standing="pending")
                progress = (await operator.status(job)).jobs[0].progress
                assert progress is None or progress.workers == ()
                assert await operator.approve_node("pi") == "pi may work from now on"
                while (view := (await operator.status(job)).jobs[0]).state != "finished":
                    await asyncio.sleep(0.05)
                assert (await node_view(operator, "pi", standing="")).state == "alive"
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    run(story())


class Asks:
    """A node that asks for work without having been given a role."""

    def __init__(self, job: str) -> None:
        self._job = job

    def opened(self, session: Session) -> None:
        if session.lane is Lane.CONTROL:
            session.post(Hello(node="pi", incarnation="1", facts=Facts(torch="none")))
        else:
            session.post(WorkerReady(job=self._job))

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        assert not isinstance(message, Work)

    def closed(self, session: Session, reason: str) -> None:
        pass

    def payload_limit(self, session: Session, message: Message) -> int:
        return 1 << 20

    def awaits(self, session: Session, message: Message) -> bool:
        return True

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None


def test_a_drained_device_finishes_its_lease_and_returns_when_it_is_wanted(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            site.pace(0.4)
            job = await site.submit_tally(batches=60, workers_min=1)
            await site.works(job, "device-1")
            await site.works(job, "device-2")
            before = len([row for row in site.history(job)[0] if row.node == "device-1"])
            await site.operator.drain_node("device-1", "update")
            await site.event(job, "device.released", "device-1 is drained")
            view = await node_view(site.operator, "device-1", standing="drained", job="")
            assert view.state == "alive"
            # Nothing it had trained was lost, and nobody waited for it.
            events = site.events(job)
            assert not [
                e
                for e in events
                if e.kind in ("lease.returned", "update.rejected", "device.lost") and "device-1" in e.text
            ]
            await asyncio.sleep(1.0)
            after = (await site.view(job)).progress.workers
            assert [worker.node for worker in after] == ["device-2"]

            await site.operator.undrain_node("device-1")
            await node_view(site.operator, "device-1", standing="", job=job)
            # Slow until then: a job that is over sooner has no work for whoever returns.
            await site.works(job, "device-1")
            site.pace(0.0)
            await site.ended(job)
            rows = await site.tallied_once(job, batches=60)
            assert len([row for row in rows if row.node == "device-1"]) > before

    run(story())


def test_a_drained_device_stays_drained_when_the_manager_returns(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await site.connected("device-1")
            await site.operator.drain_node("device-1")
            await site.kill_manager()
            await site.cluster.start_manager()
            await node_view(site.operator, "device-1", state="alive", standing="drained")
            job = await site.submit_tally(batches=5)
            await asyncio.sleep(1.0)
            assert (await node_view(site.operator, "device-1", state="alive")).job == ""
            await site.operator.undrain_node("device-1")
            await site.ended(job)

    run(story())
