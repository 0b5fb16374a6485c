"""Aggregators on simulated devices, told what to do by hand: doors, routes, pieces, values, and what the wire takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import pytest

from dst.toy_task import FIRST_MODEL, LAYOUT, Toy, toy_update
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import StageModel, Train
from shoal.roles.events import Received
from shoal.sim.devices import Build
from shoal.sim.jobs import SimulatedJob, bare_spec
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady
from shoal.sim.world import HOME, Settings, World
from shoal.wire.messages import (
    AggregatorReady,
    Hop,
    Message,
    ModelShard,
    Reduce,
    ReduceResult,
    RelayModel,
    Route,
    Routed,
    SetUpAggregator,
    ShardAck,
    TearDown,
    Update,
    UpdateShard,
    Work,
)

RATE = Steady(1e6)
BUILD = Build(
    kind="toy",
    seconds_per_gmac=0.0,
    seconds_per_batch=0.2,
    memory_mb=1024,
    line=AccessLink(up=RATE, down=RATE, latency_s=0),
)
#: A megabyte: a second of a device's link.
LARGE = Layout.of([("weight", (250_000,), "parameter")])

Said = TypeVar("Said", bound=Message)


class Cluster:
    """Three devices that work for a job whose leader waits for more, so that it says nothing of its own."""

    def __init__(self, layout: Layout = LAYOUT) -> None:
        plan = Plan(batch_size=100, workers_min=4, until=Until(epochs=1))
        model = FIRST_MODEL if layout is LAYOUT else np.zeros(layout.size, dtype=np.float32)
        job = SimulatedJob(
            spec=bare_spec("job", plan, examples=6000),
            layout=layout,
            model=model,
            training=Toy(),
            gmacs_per_example=0.0,
            start_s=0.2,
        )
        line = AccessLink(up=Steady(1e9), down=Steady(1e9), latency_s=0)
        settings = Settings(seed=1, builds=[BUILD] * 3, home_line=line, jobs=[job], arrive_within_s=0.0)
        self.steps: list[Step] = []
        self.trained: list[tuple[str, np.ndarray]] = []
        self.world = World(settings, observers=[self])
        self.size = layout.size
        self.world.begin()
        self.wait(5.0)

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def mark(self, mark: Mark) -> None:
        if mark.kind == "trains":
            self.trained.append((mark.node, mark.facts["model"]))

    def wait(self, seconds: float) -> None:
        self.world.kernel.run(lambda: False, limit_s=self.world.kernel.now_s + seconds)

    def tell(self, node: str, message: Message) -> None:
        """As the leader at home would."""
        assert self.world.home is not None
        self.world.home.role_server.roles.post(node, message)

    def heard(self, kind: type[Said], role: str) -> Iterator[tuple[Step, Said]]:
        for step in self.steps:
            if step.role == role and isinstance(step.event, Received) and isinstance(step.event.message, kind):
                yield step, step.event.message

    def formed(self, node: str = "w1") -> None:
        """A tree of one group, under this node."""
        form = SetUpAggregator(
            job="job", term=1, formation=1, kind="tree", version=0, start=0, stop=self.size, members=MEMBERS
        )
        self.tell(node, form)
        self.wait(1.0)
        (formed,) = (message for _, message in self.heard(AggregatorReady, "leader"))
        hop = Hop(node=node, endpoint=formed.endpoint, start=0, stop=self.size)
        for member in MEMBERS:
            self.tell(member, Route(job="job", term=1, formation=1, hops=(hop,)))
        self.wait(1.0)

    def lend(self, node: str, lease: int, *, version: int = 0, values_by: int = 0) -> None:
        work = Work(
            job="job",
            term=1,
            lease=lease,
            kind="train",
            version=version,
            durable_version=0,
            epoch=0,
            batches=(lease,),
            deadline_s=9.0,
            credit=False,
            formation=1,
            values_by=values_by,
            tensors={} if values_by else {"model": FIRST_MODEL},
        )
        self.tell(node, work)


MEMBERS = ("w1", "w2", "w3")


def test_a_device_sums_up_for_its_group_and_gives_values_out() -> None:
    cluster = Cluster()
    cluster.formed()
    # The aggregator itself is one of its group: it dials its own door.
    assert sorted(step.event.sender for step, _ in cluster.heard(Routed, "leader")) == list(MEMBERS)  # type: ignore[union-attr]
    for lease, node in enumerate(MEMBERS, start=1):
        cluster.lend(node, lease)
    cluster.wait(1.0)
    assert {message.lease for _, message in cluster.heard(UpdateShard, "aggregator")} == {1, 2, 3}
    assert len(list(cluster.heard(ShardAck, "worker"))) == 3
    updates = [message for _, message in cluster.heard(Update, "leader")]
    assert [(update.formation, dict(update.tensors)) for update in updates] == [(1, {})] * 3
    counted = (100.0, 100.0, 50.0)
    cluster.tell(
        "w1",
        Reduce(
            job="job", term=1, formation=1, version=1, leases=(1, 2, 3), weights=counted, scales=(1, 1, 1), last=True
        ),
    )
    cluster.wait(1.0)
    ((_, gathered),) = cluster.heard(ReduceResult, "leader")
    mean = np.average([toy_update(FIRST_MODEL, 0, (lease,)) for lease in (1, 2, 3)], axis=0, weights=counted)
    assert gathered.leases == (1, 2, 3)
    np.testing.assert_allclose(gathered.tensors["mean"], mean, atol=1e-6)

    model = FIRST_MODEL + gathered.tensors["mean"]
    cluster.tell("w1", RelayModel(job="job", term=1, formation=1, version=1, tensors={"model": model}))
    cluster.wait(1.0)
    staged = {
        step.node for step, _ in cluster.heard(ModelShard, "worker") if any(type(a) is StageModel for a in step.actions)
    }
    assert staged == set(MEMBERS)
    cluster.trained.clear()
    cluster.lend("w2", 4, version=1, values_by=1)
    cluster.wait(1.0)
    ((node, trained_on),) = cluster.trained
    assert node == "w2"
    np.testing.assert_array_equal(trained_on, model)


def test_a_lease_waits_for_the_values_of_its_model() -> None:
    cluster = Cluster()
    cluster.formed()
    cluster.lend("w2", 1, version=1, values_by=1)
    cluster.wait(0.5)
    assert not cluster.trained
    cluster.tell("w1", RelayModel(job="job", term=1, formation=1, version=1, tensors={"model": FIRST_MODEL}))
    cluster.wait(0.5)
    assert [node for node, _ in cluster.trained] == ["w2"]
    (train,) = (action for step in cluster.steps for action in step.actions if isinstance(action, Train))
    assert train.staged


def test_values_of_which_a_part_is_missing_are_no_numbers() -> None:
    cluster = Cluster()
    agent = cluster.world.agents["w2"]
    assert agent is not None
    worker = agent._workers.get("job")
    assert worker is not None
    host, worker_driver = worker.host, worker.worker_driver
    worker_driver.perform(host, StageModel(start=3, tensors={"model": FIRST_MODEL[3:]}))
    worker_driver.perform(host, Train(lease=1, epoch=0, batches=(0,), staged=True))
    ((_, model),) = cluster.trained
    np.testing.assert_array_equal(model[3:], FIRST_MODEL[3:])
    assert np.isnan(model[:3]).all()
    # What comes later goes into another.
    worker_driver.perform(host, StageModel(start=0, tensors={"model": np.ones(3, dtype=np.float32)}))
    assert np.isnan(model[:3]).all()


def test_a_formation_that_is_over_leaves_nothing_behind() -> None:
    cluster = Cluster()
    cluster.formed()
    agents = [agent for agent in cluster.world.agents.values() if agent is not None]
    assert [agent.aggregating for agent in agents] == [("job",), (), ()]
    assert [len(agent.dialled) for agent in agents] == [2, 2, 2]
    for member in MEMBERS:
        cluster.tell(member, TearDown(job="job", term=1, formation=1, reason="it is over"))
    cluster.wait(1.0)
    assert [agent.aggregating for agent in agents] == [(), (), ()]
    assert [len(agent.dialled) for agent in agents] == [1, 1, 1]


def test_an_aggregator_that_is_dismissed_with_its_job_is_no_more() -> None:
    cluster = Cluster()
    cluster.formed()
    cluster.world.stop_job("job")
    cluster.wait(10.0)
    assert not any(agent.aggregating or agent.jobs for agent in cluster.world.agents.values() if agent is not None)


# What the wire takes -------------------------------------------------------------------------------------


def seconds_until(cluster: Cluster, done: Callable[[], bool]) -> float:
    kernel = cluster.world.kernel
    began_s = kernel.now_s
    assert kernel.run(done, limit_s=began_s + 60.0)
    return kernel.now_s - began_s


def test_values_go_over_the_links_of_both_devices_and_to_itself_over_none() -> None:
    cluster = Cluster(LARGE)
    cluster.formed()
    cluster.tell(
        "w1", RelayModel(job="job", term=1, formation=1, version=1, tensors={"model": np.zeros(250_000, "f4")})
    )

    def with_values() -> list[str]:
        return [step.node for step, _ in cluster.heard(ModelShard, "worker")]

    # A second over the aggregator's own link down; then a second for each of the others, and nothing to itself.
    assert seconds_until(cluster, lambda: bool(with_values())) == pytest.approx(1.0, abs=0.2)
    assert with_values() == ["w1"]
    assert seconds_until(cluster, lambda: len(with_values()) == 3) == pytest.approx(2.0, abs=0.3)
    sent = cluster.world.network.sent_bytes("w1")
    assert 2e6 < sent < 2.1e6


def test_what_a_device_says_over_both_kinds_of_sessions_shares_its_uplink() -> None:
    """To its leader over the line it dialled, to a member over the one that it was dialled on."""
    cluster = Cluster(LARGE)
    cluster.formed()
    agent = cluster.world.agents["w1"]
    assert agent is not None
    assert agent.role_server is not None
    values = {"model": np.zeros(250_000, "f4")}
    agent.send(HOME, ReduceResult(job="job", term=1, formation=1, version=1, tensors={"mean": values["model"]}))
    agent.role_server.roles.post(
        "w2", ModelShard(job="job", term=1, formation=1, version=1, start=0, stop=250_000, tensors=values)
    )

    def arrived() -> int:
        return len(list(cluster.heard(ReduceResult, "leader"))) + len(list(cluster.heard(ModelShard, "worker")))

    # Each alone would take a second.
    assert seconds_until(cluster, lambda: arrived() == 1) == pytest.approx(2.0, abs=0.2)
    assert seconds_until(cluster, lambda: arrived() == 2) < 0.3
