"""Where tensors meet: aggregators on real devices sum up, step and give out values, and may die in the middle of it.

``test_a_device_leads_in_whole_and_in_part_and_dies`` runs nightly: the seeds of ``tests/simulation/test_fuzz.py`` crash
leaders in trees and in shards.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from clouds_task import Clouds
from kit import Site, cluster_in, run
from shared_cluster import SharedCluster, shared_cluster
from test_training import BATCHES, CLOUDS, PLAN, RATE, first_model, rounds, worst_difference
from torch import nn

from shoal.identity.identity import Authority, Identity
from shoal.runtime.dialer import Dialer
from shoal.runtime.leader_host import LeaderHost
from shoal.wire.limits import PAYLOAD_MAX_BYTES
from shoal.wire.messages import (
    AggregatorReady,
    BadShard,
    Heartbeat,
    Hello,
    Message,
    ModelShard,
    Progress,
    Reduce,
    ReduceResult,
    RelayModel,
    SetUpAggregator,
    ShardAck,
    TearDown,
    UpdateShard,
    Welcome,
    with_tensors,
)

M = TypeVar("M", bound=Message)

SIZE = 6
ANSWER_S = 90.0


# An aggregator's door, with a leader made by hand ------------------------------------------------------------


class Heard:
    """Messages as they come, each in memory of its own."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, Message]] = []

    def add(self, peer: str, message: Message) -> None:
        tensors = getattr(message, "tensors", None)
        if tensors:
            message = with_tensors(message, {name: array.copy() for name, array in tensors.items()})
        self._messages.append((peer, message))

    def all(self, kind: type[M]) -> list[M]:
        return [message for _, message in self._messages if isinstance(message, kind)]

    async def one(self, kind: type[M]) -> M:
        """The next message of this kind; it is heard once."""
        async with asyncio.timeout(ANSWER_S):
            while not (found := self.all(kind)):
                await asyncio.sleep(0.01)
        self._messages = [(peer, message) for peer, message in self._messages if message is not found[0]]
        return found[0]


class Around:
    """What an outpost asks of its agent: here a leader that hears whatever goes out by a line."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.leader = Heard()

    def send(self, to: str, message: Message) -> None:
        self.leader.add(to, message)

    async def fetch(self, sha256: str) -> Path:
        raise AssertionError("an aggregator needs no blob")


class Member:
    """A device at the near end of a line to an aggregator: says hello, and what the test wants."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.incarnation = "1"
        self.heard = Heard()
        self.line: Dialer | None = None

    def dialer_opened(self, line: Dialer) -> None:
        line.post(Hello(node=self.identity.node, incarnation=self.incarnation))

    def dialer_beat(self, line: Dialer, now_s: float) -> None:
        line.post(Heartbeat(seq=1))

    async def dialer_received(self, line: Dialer, message: Message, size_bytes: int) -> None:
        self.heard.add(line.peer, message)

    def dialer_payload_limit(self, line: Dialer, message: Message) -> int:
        return PAYLOAD_MAX_BYTES

    def dialer_payload_buffer(self, line: Dialer, message: Message, size_bytes: int) -> memoryview | None:
        return None

    def heartbeat_s(self, peer: str) -> float:
        return 1.0

    def connect_timeout_s(self, peer: str) -> float:
        return 10.0

    def has_work(self, peer: str) -> bool:
        return True

    def say(self, message: Message) -> None:
        assert self.line is not None
        self.line.post(message)


class Formation:
    """A device that sums up for a leader made by hand, and the members who dial it."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self.around = Around(authority.identity(node="sub", role="node"))
        self.leader_host = LeaderHost(self.around, manager="manager", manager_endpoint="127.0.0.1:9")
        self.endpoint = ""

    async def form(self, *, kind: str = "shard", leader: str = "lead", **changes: Any) -> AggregatorReady:
        await self.leader_host.deliver(form(kind=kind, **changes), sender=leader)
        formed = await self.around.leader.one(AggregatorReady)
        self.endpoint = formed.endpoint
        return formed

    async def tell(self, message: Message, *, leader: str = "lead") -> None:
        if isinstance(message, SetUpAggregator | RelayModel):
            await self.leader_host.deliver(message, sender=leader)
        else:
            self.leader_host.tell(message, sender=leader)

    @asynccontextmanager
    async def member(self, node: str) -> AsyncIterator[Member]:
        member = Member(self._authority.identity(node=node, role="node"))
        member.line = Dialer(member, peer="sub", role="node", endpoint=self.endpoint)
        holding = asyncio.create_task(member.line.connect_once())
        try:
            await member.heard.one(Welcome)
            yield member
        finally:
            member.line.hang_up("that was all")
            await asyncio.wait_for(holding, ANSWER_S)

    async def knock(self, node: str) -> str:
        """Dial it, and do nothing else; why it ended."""
        member = Member(self._authority.identity(node=node, role="node"))
        line = Dialer(member, peer="sub", role="node", endpoint=self.endpoint)
        return await asyncio.wait_for(line.connect_once(), ANSWER_S)


@asynccontextmanager
async def formation_in(directory: Path) -> AsyncIterator[Formation]:
    formation = Formation(Authority.create(directory / "authority", "pond"))
    try:
        yield formation
    finally:
        await formation.leader_host.stop()


def form(
    *, formation: int = 1, start: int = 0, stop: int = SIZE, members: tuple[str, ...] = ("a", "b"), **given: Any
) -> SetUpAggregator:
    return SetUpAggregator(
        job="digits",
        term=1,
        formation=formation,
        version=3,
        start=start,
        stop=stop,
        parameters=stop - start,
        members=members,
        **given,
    )


def piece(value: float, *, lease: int, size: int = SIZE, formation: int = 1) -> UpdateShard:
    tensors = {"delta": np.full(size, value, np.float32)}
    return UpdateShard(job="digits", term=1, formation=formation, lease=lease, version=3, tensors=tensors)


def count(*leases: int, last: bool = True) -> Reduce:
    ones = (1.0,) * len(leases)
    return Reduce(job="digits", term=1, formation=1, version=4, leases=leases, weights=ones, scales=ones, last=last)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_a_shard_sums_up_takes_its_step_and_gives_out_its_part(tmp_path: Path) -> None:
    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            await sub.form(momentum=0.5)
            async with sub.member("a") as a, sub.member("b") as b:
                stands = {"model": floats(0, 1, 2, 3, 4, 5), "velocity": np.full(SIZE, 2, np.float32)}
                await sub.tell(form(kind="shard", momentum=0.5, tensors=stands))
                # The memory it came in is used again once it is said to be taken.
                stands["model"].fill(-1)
                a.say(piece(1.0, lease=1))
                b.say(piece(3.0, lease=2))
                assert (await a.heard.one(ShardAck)).lease == 1
                assert (await b.heard.one(ShardAck)).lease == 2
                await sub.tell(count(1, 2))
                gathered = await sub.around.leader.one(ReduceResult)
                assert gathered.leases == (1, 2)
                np.testing.assert_array_equal(gathered.tensors["mean"], np.full(SIZE, 2, np.float32))
                for member in (a, b):
                    values = await member.heard.one(ModelShard)
                    assert (values.version, values.start, values.stop) == (4, 0, SIZE)
                    # velocity 0.5 * 2 + 2, added to where it stood
                    np.testing.assert_array_equal(values.tensors["model"], floats(3, 4, 5, 6, 7, 8))

    run(story())


def test_a_tree_passes_a_model_on_and_keeps_no_memory_of_what_it_came_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            await sub.form(kind="tree")
            async with sub.member("a") as a, sub.member("b") as b:
                model = floats(1, 2, 3, 4, 5, 6)
                passed = RelayModel(job="digits", term=1, formation=1, version=4, tensors={"model": model})
                await sub.tell(passed)
                model.fill(-1)
                for member in (a, b):
                    np.testing.assert_array_equal(
                        (await member.heard.one(ModelShard)).tensors["model"], floats(1, 2, 3, 4, 5, 6)
                    )

    run(story())


def test_large_parts_are_summed_up_on_another_thread_and_in_order(tmp_path: Path) -> None:
    """Twelve megabytes each: what is merged there must not overtake, nor be overtaken."""

    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            size = 3 << 20
            await sub.form(stop=size)
            async with sub.member("a") as a, sub.member("b") as b:
                part = {"model": np.zeros(size, np.float32), "velocity": np.zeros(size, np.float32)}
                await sub.tell(form(kind="shard", stop=size, tensors=part))
                for lease in range(1, 5):
                    a.say(piece(1.0, lease=2 * lease - 1, size=size))
                    b.say(piece(2.0, lease=2 * lease, size=size))
                    await a.heard.one(ShardAck)
                    await b.heard.one(ShardAck)
                    await sub.tell(count(2 * lease - 1, last=False))
                    await sub.tell(count(2 * lease))
                    gathered = await sub.around.leader.one(ReduceResult)
                    assert gathered.leases == (2 * lease - 1, 2 * lease)
                    for member in (a, b):
                        values = await member.heard.one(ModelShard)
                        assert values.tensors["model"][[0, -1]].tolist() == [1.5 * lease] * 2

    run(story())


def test_only_members_come_in_and_only_for_as_long_as_the_formation_lasts(tmp_path: Path) -> None:
    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            await sub.form(members=("a",))
            assert "does not work for a job that is led here" in await sub.knock("b")
            await sub.tell(form(kind="shard", members=("b",)))
            async with sub.member("b") as b:
                b.say(piece(1.0, lease=1))
                await b.heard.one(ShardAck)
            assert "does not work for a job that is led here" in await sub.knock("a")
            await sub.tell(TearDown(job="digits", term=1, formation=1))
            assert "does not work for a job that is led here" in await sub.knock("b")
            # What it kept for its members would be a model and more, for each formation there ever was.
            assert not sub.leader_host._role_server.roles.aggregating

    run(story())


@pytest.mark.parametrize("size", [SIZE + 1, 1000])
def test_a_piece_larger_than_the_part_is_not_read(size: int, tmp_path: Path) -> None:
    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            await sub.form()
            member = Member(sub._authority.identity(node="a", role="node"))
            member.line = Dialer(member, peer="sub", role="node", endpoint=sub.endpoint)
            holding = asyncio.create_task(member.line.connect_once())
            await member.heard.one(Welcome)
            member.say(piece(1.0, lease=1, size=size))
            assert f"UpdateShard has {4 * size} bytes of tensors; the maximum is {4 * SIZE}" in await asyncio.wait_for(
                holding, ANSWER_S
            )

    run(story())


def test_a_spoilt_piece_is_told_to_the_leader_and_counts_for_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            await sub.form(kind="tree")
            async with sub.member("a") as a, sub.member("b") as b:
                a.say(piece(np.nan, lease=1))
                b.say(piece(1.0, lease=2))
                spoilt = await sub.around.leader.one(BadShard)
                assert (spoilt.node, spoilt.lease) == ("a", 1)
                await b.heard.one(ShardAck)
                await sub.tell(count(1, 2))
                assert (await sub.around.leader.one(ReduceResult)).leases == (2,)
                assert not a.heard.all(ShardAck)

    run(story())


def test_one_that_is_no_leader_of_it_has_no_say(tmp_path: Path) -> None:
    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            await sub.form(kind="tree")
            async with sub.member("a") as a:
                a.say(piece(1.0, lease=1))
                await a.heard.one(ShardAck)
                await sub.tell(count(1), leader="another")
                await sub.tell(dataclasses.replace(count(1), term=2))
                passed = RelayModel(
                    job="digits", term=1, formation=1, version=4, tensors={"model": np.zeros(SIZE, np.float32)}
                )
                await sub.tell(passed, leader="another")
                await sub.tell(count(1))
                assert (await sub.around.leader.one(ReduceResult)).leases == (1,)
                assert not sub.around.leader.all(ReduceResult)
                assert not a.heard.all(ModelShard)

    run(story())


def test_a_door_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        authority = Authority.create(tmp_path / "authority", "pond")
        busy = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = busy.sockets[0].getsockname()[1]
        around = Around(authority.identity(node="sub", role="node"))
        leader_host = LeaderHost(around, manager="manager", manager_endpoint="127.0.0.1:9", port=port)
        async with busy:
            try:
                await leader_host.deliver(form(kind="tree"), sender="lead")
                formed = await around.leader.one(AggregatorReady)
                assert not formed.endpoint
                assert f"port {port}" in formed.reason
                # It is asked again, and now it can.
                busy.close()
                await busy.wait_closed()
                await leader_host.deliver(form(kind="tree", formation=2), sender="lead")
                assert (await around.leader.one(AggregatorReady)).endpoint == f"127.0.0.1:{port}"
            finally:
                await leader_host.stop()

    run(story())


def test_the_door_closes_behind_the_last_formation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.runtime.leader_host.LOOK_EVERY_S", 0.2)

    async def story() -> None:
        async with formation_in(tmp_path) as sub:
            await sub.form()
            await sub.form(formation=2)
            await sub.tell(TearDown(job="digits", term=1, formation=1))
            await asyncio.sleep(0.6)
            async with sub.member("a"):
                pass
            sub.leader_host.tell(TearDown(job="digits", term=1, formation=1 << 40))
            async with asyncio.timeout(ANSWER_S):
                while not (await sub.knock("a")).startswith("unavailable"):
                    await asyncio.sleep(0.05)

    run(story())


# Whole clusters ---------------------------------------------------------------------------------------------

WORKERS = 4

cluster = shared_cluster(workers=WORKERS)
trainers = shared_cluster(workers=3, options=())

SLOW_S = 0.1
TALLIED = 240
EPOCHS = 3


async def _shaped(site: Site, job: str, shape: str, *, workers: int = WORKERS) -> Progress:
    """Wait until versions are made in this shape, by everyone."""

    def holds(progress: Progress) -> bool:
        return progress.topology.startswith(shape) and len(progress.workers) == workers

    begun = await site.progress(job, f"a {shape}", holds)
    return await site.progress(job, f"versions of a {shape}", lambda p: holds(p) and p.version >= begun.version + 5)


async def _training(site: Site, shape: str, **plan: Any) -> str:
    site.pace(SLOW_S)
    job = await site.submit_tally(batches=TALLIED, epochs=EPOCHS, workers_min=3, topology=shape, **plan)
    await _shaped(site, job, shape)
    return job


async def _finish(site: Site, job: str) -> set[str]:
    site.pace(0.0)
    await site.ended(job)
    return {row.node for row in await site.tallied_once(job, batches=TALLIED, epochs=EPOCHS)}


def _doors(site: Site) -> list[str]:
    """The devices that listen to others, also since an earlier job of this cluster."""
    logs = {name: site.cluster.home / f"{name}.log" for name in sorted(site.cluster.agents)}
    return [name for name, log in logs.items() if "listens at" in log.read_text()]


@pytest.mark.parametrize("shape", ["tree", "shard"])
def test_aggregators_sum_up_every_batch_once(shape: str, cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        # A lease that a busy machine delays must not look like a device that was lost.
        job = await _training(site, shape, lease_s=60.0)
        before = await _shaped(site, job, shape)
        after = await site.progress(job, "ten versions more", lambda p: p.version >= before.version + 10)
        assert after.topology == before.topology
        # The model to each for each version, as in a star; in a tree once more to each aggregator.
        made, model_bytes = after.version - before.version, 4 * TALLIED
        aggregators = WORKERS if shape == "shard" else 2
        assert len(_doors(site)) >= aggregators
        models = WORKERS + (aggregators if shape == "tree" else 0)
        moved = (after.bytes_down - before.bytes_down) / model_bytes / models
        assert made - 1 <= moved <= made + 1, "what goes between devices is counted too"
        assert await _finish(site, job) == set(site.cluster.agents)
        assert not [
            event for event in site.events(job) if event.kind in ("device.lost", "lease.failed", "sum.rejected")
        ]
        assert len([event for event in site.events(job) if event.kind == "topology.changed"]) == 1

    cluster.run(story)


@pytest.mark.parametrize("shape", ["tree", "shard"])
def test_a_killed_aggregator_loses_no_batch(shape: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=WORKERS) as site:
            job = await _training(site, shape)
            last = max(event.seq for event in site.events(job))
            name = _doors(site)[0]
            await site.kill(site.cluster.agents.pop(name))
            await site.event(job, "topology.changed", f"{name}, an aggregator, is ", after=last)
            await _shaped(site, job, shape, workers=3)
            await site.cluster.start_agent(name)
            await site.works(job, name)
            assert await _finish(site, job) == set(site.cluster.agents)

    run(story())


@pytest.mark.nightly
@pytest.mark.parametrize("shape", ["tree", "shard"])
def test_a_device_leads_in_whole_and_in_part_and_dies(shape: str, tmp_path: Path) -> None:
    """Its own worker dials its own door, twice over; with it a leader, an aggregator and a worker are gone at once."""

    async def story() -> None:
        async with cluster_in(tmp_path, workers=WORKERS) as site:
            site.may_lose_the_manager = True
            job = await _training(site, shape)
            await site.operator.transfer(job, "device-1")
            await site.progress(job, "it leads", lambda p: p.term == 2 and p.version > 0)
            await _shaped(site, job, shape)
            await site.kill(site.cluster.agents.pop("device-1"))
            await site.progress(job, "another leads", lambda p: p.term == 3)
            await _shaped(site, job, shape, workers=3)
            await site.cluster.start_agent("device-1")
            await site.works(job, "device-1")
            assert await _finish(site, job) == set(site.cluster.agents)

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tree", "shard"])
def test_workers_under_aggregators_train_the_model_that_one_process_trains(shape: str, trainers: SharedCluster) -> None:
    async def story(site: Site) -> None:
        epochs = 8
        plan = PLAN | {"workers_min": 3, "topology": shape, "until": {"epochs": epochs}}
        job = await site.submit_task(CLOUDS, kwargs={"pause_s": 0.25}, **plan)
        shaped = await _shaped(site, job, shape, workers=3)
        await site.ended(job)
        rows = site.exactly_once(job, batches=BATCHES, epochs=epochs)
        assert max(row.version for row in rows) > shaped.version + 10

        task = Clouds()
        reference = await first_model(site, job, task)
        optimiser = torch.optim.SGD(reference.parameters(), lr=RATE, momentum=0.9)
        for batches in rounds(task, rows):
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            optimiser.zero_grad()
            nn.functional.cross_entropy(reference(x), y).backward()
            optimiser.step()
        model = await site.model(job)
        assert worst_difference(model, reference) < 1e-5
        assert worst_difference(model, await first_model(site, job, task)) > 0.1

    trainers.run(story)
