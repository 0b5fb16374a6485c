"""Leaders on simulated devices: appointed, moved, lost and found, cut off from the manager or from a worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dst.encoded import Encoded
from dst.toy_task import FIRST_MODEL, LAYOUT, Toy
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.sim.devices import Build
from shoal.sim.fault_text import parse
from shoal.sim.inflict import Inflicter
from shoal.sim.invariants import Invariants
from shoal.sim.jobs import SimulatedJob, bare_spec
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady
from shoal.sim.world import HOME, Settings, World
from shoal.wire.messages import Message

RATE = Steady(1e6)
BUILD = Build(
    kind="toy",
    seconds_per_gmac=0.0,
    seconds_per_batch=0.2,
    memory_mb=1024,
    line=AccessLink(up=RATE, down=RATE, latency_s=0.005),
)


class Watch:
    """Who led when, from which version; what managers and leaders said."""

    def __init__(self) -> None:
        self.led: list[tuple[str, int, int]] = []
        self.led_s: list[float] = []
        self.sent: list[tuple[str, str, Message]] = []
        self.records: list[tuple[str, str, str]] = []

    def step(self, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Send):
                self.sent.append((step.node, action.to, action.message))
            elif isinstance(action, Record):
                self.records.append((step.role, action.kind, action.reason))

    def mark(self, mark: Mark) -> None:
        if mark.kind == "led":
            self.led.append((mark.node, mark.facts["term"], mark.facts["version"]))
            self.led_s.append(mark.at_s)

    @property
    def nodes(self) -> list[str]:
        return [node for node, _, _ in self.led]

    def said(self, name: str) -> list[tuple[str, str]]:
        return [(node, to) for node, to, message in self.sent if type(message).__name__ == name]


def play(
    faults: str = "", *, prefers_devices: bool = True, devices: int = 3, act: Callable[[World], object] | None = None
) -> tuple[World, Watch]:
    plan = Plan(batch_size=100, workers_min=1, workers_max=devices, checkpoint_every_s=1.0, until=Until(epochs=3))
    spec = bare_spec("job", plan, examples=6000)
    job = SimulatedJob(
        spec=spec,
        layout=LAYOUT,
        model=FIRST_MODEL,
        training=Toy(),
        gmacs_per_example=0.0,
        start_s=0.2,
        submit_s=2.0,
    )
    settings = Settings(
        seed=1,
        builds=[BUILD] * devices,
        home_line=AccessLink(up=RATE, down=RATE, latency_s=0.001),
        jobs=[job],
        arrive_within_s=0.0,
        prefers_devices=prefers_devices,
    )
    watch = Watch()
    world = World(settings, sizer=Encoded())
    inflicter = Inflicter(world, parse(faults))
    world.observers += [watch, inflicter, Invariants({"job": (spec, FIRST_MODEL.nbytes)})]
    inflicter.begin()
    world.begin()
    if act is not None:
        act(world)
    assert world.run(limit_s=300.0, events_max=200_000)
    assert world.disk.jobs["job"].state == "finished"
    assert len(world.disk.history["job"]) == 180
    return world, watch


def test_home_leads_unless_devices_are_preferred() -> None:
    world, watch = play(prefers_devices=False)
    assert watch.led == [(HOME, 1, -1)]
    assert all(agent is not None and agent.role_server is None for agent in world.agents.values())


def test_a_device_leads_and_works_and_others_dial_it() -> None:
    world, watch = play()
    assert watch.led == [("w1", 1, -1)]
    # What it made is on the disk of the manager's node, which it heard.
    assert (HOME, "w1") in watch.said("CheckpointKept")
    assert {row.node for row in world.disk.history["job"]} == {"w1", "w2", "w3"}
    assert [name for name, agent in world.agents.items() if agent is not None and agent.role_server is not None] == [
        "w1"
    ]


def test_a_role_that_is_moved_goes_on_where_it_was() -> None:
    _, watch = play("transfer(w2, at=6)\ntransfer(home, at=9)\ntransfer(leader, at=12)")
    assert watch.nodes[:3] == ["w1", "w2", HOME]
    assert len(watch.nodes) == 4
    assert watch.nodes[3] != HOME
    # What was said is what was done: the invariants watch that nothing was lost in between.
    ends = [
        int(reason.rsplit(" ", 1)[1].replace(",", ""))
        for role, kind, reason in watch.records
        if (role, kind) == ("leader", "leader.resigned")
    ]
    assert ends == [version for _, _, version in watch.led[1:]]


def test_a_leader_that_loses_its_power_is_followed() -> None:
    _, watch = play("crash(leader, at=6, restart_s=never)")
    assert watch.nodes[0] == "w1"
    assert watch.nodes[1] != "w1"
    # Missed after some seconds of silence.
    assert 6 + 3 <= watch.led_s[1] < 6 + 11


def test_a_leader_that_is_back_as_a_new_process_is_missed_at_once() -> None:
    _, watch = play("restart(leader, at=6)")
    assert len(watch.led) == 2
    assert watch.led_s[1] < 6 + 2


def test_a_manager_that_starts_anew_finds_the_leader_it_had() -> None:
    _, watch = play("restart(home, at=6)")
    assert watch.led == [("w1", 1, -1)]
    assert any(
        "still leads" in reason
        for role, kind, reason in watch.records
        if (role, kind) == ("manager", "leader.connected")
    )


def test_a_leader_that_only_its_workers_hear_is_followed_and_fenced() -> None:
    _, watch = play("apart({home, leader}, at=5, for_s=8)")
    assert watch.nodes[0] == "w1"
    assert len(watch.led) >= 2
    assert (HOME, "w1") in watch.said("StepDown")


def test_workers_that_cannot_reach_their_leader_get_another() -> None:
    _, watch = play("apart({w1, w2}, at=0)\napart({w1, w3}, at=0)")
    assert watch.nodes == ["w1", HOME]
    assert any(kind == "link.broken" for _, kind, _ in watch.records)


def test_a_process_that_does_not_lead_refuses_to_be_dialled() -> None:
    world, _ = play(prefers_devices=False)
    assert world._listening("w1") is None
    assert world._listening(HOME) is not None


def test_an_endpoint_is_that_of_one_process() -> None:
    world, _ = play("restart(w1, at=6)")
    assert world._listening("w1", "w1:7071") is None


def test_a_world_knows_who_leads() -> None:
    seen: list[str] = []

    def look(world: World) -> None:
        for at_s in (1.0, 5.0, 8.5):
            world.kernel.at(at_s, lambda: seen.append(world.leader_node()))

    play("transfer(w3, at=6)", act=look)
    assert seen == [HOME, "w1", "w3"]


@pytest.mark.parametrize(
    "fault", ["crash(leader, at=6)", "stop(leader, at=6, for_s=10)", "partition(leader, at=6, for_s=10)"]
)
def test_the_leader_is_struck_where_it_is(fault: str) -> None:
    struck: list[str] = []

    class Struck:
        def step(self, step: Step) -> None:
            pass

        def mark(self, mark: Mark) -> None:
            if mark.kind == "fault":
                struck.append(mark.node)

    play(fault, act=lambda world: world.observers.append(Struck()))
    assert struck == ["w1"]
