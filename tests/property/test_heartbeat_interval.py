"""Devices that beat as they are told, whatever is given to them and taken from them: no device is suspected that lives,
and a device that dies with work is found out as fast as if every device sent a heartbeat a second."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.plan import Plan
from shoal.roles.events import Liveness, PeerChanged, Received
from shoal.roles.node import dial_state, failure_detector, host_router
from shoal.roles.node.device_router import Beat, DeviceRouter, Duty, Redial, Say
from shoal.roles.node.failure_detector import FailureDetector, Patience
from shoal.roles.node.host_router import Delivery, HostRouter, ToManager, ToPeer
from shoal.wire.messages import Assign, Dataset, Facts, Heartbeat, Hello, JobSpec, Message, Welcome

PATIENCE = Patience()
CHECK_S = PATIENCE.heartbeat_s / 2
SHA = "0" * 64
DATA = Dataset(manifest=SHA, examples=1)
SPEC = JobSpec(job="x", name="x", entry="task:T", bundle=SHA, initial=SHA, train=DATA, test=DATA, plan=Plan())
NODES = ("a", "b", "c")


class Device:
    def __init__(self, story: Story, node: str) -> None:
        self.story, self.node = story, node
        self.router = DeviceRouter(node=node, incarnation="1", manager="home")
        self.is_alive = True
        self._beats = 0
        self.does(self.router.greet("home", Facts(), story.now_s))
        self._begin()

    def _begin(self) -> None:
        self._beats += 1
        self.story.later(self.router.heartbeat_s("home"), lambda number=self._beats: self._beat(number))

    def _beat(self, number: int) -> None:
        if number == self._beats and self.is_alive:
            self._beat_now()

    def _beat_now(self) -> None:
        self.does(self.router.beat("home", self.story.now_s))
        self._begin()

    def hears(self, message: Message) -> None:
        if self.is_alive:
            self.does(self.router.on_received(Received(sender="home", message=message)))

    def does(self, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case Say(message=message):
                    self.story.later(self.story.delay_s, lambda message=message: self.story.hears(self.node, message))
                case Beat():
                    self._beat_now()
                case Redial():
                    raise AssertionError(f"{self.node} gives its manager up: {duty.reason}")
                case _:
                    pass


class Story:
    """The manager's router, devices and lines that delay what is said. The manager itself only welcomes."""

    def __init__(self, delay_s: float, *, fleet: int = 0) -> None:
        self.delay_s, self.now_s = delay_s, 0.0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self.home = HostRouter(node="home", patience=PATIENCE)
        #: Others that are there, and never heard again, for the number of devices alone.
        self.home.membership.present = fleet
        self.changes: list[tuple[float, PeerChanged]] = []
        self.beats = 0
        #: Device -> since when it has work, by the manager.
        self.given_s: dict[str, float] = {}
        self.died_s: dict[str, float] = {}
        self.devices = {node: Device(self, node) for node in NODES}
        self._check()

    def later(self, after_s: float, happens: Callable[[], object]) -> None:
        heapq.heappush(self._heap, (self.now_s + after_s, next(self._order), happens))

    def runs(self, for_s: float) -> None:
        until_s = self.now_s + for_s
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, happens = heapq.heappop(self._heap)
            happens()
        self.now_s = until_s

    def _check(self) -> None:
        self._carry(self.home.check(self.now_s))
        self.later(CHECK_S, self._check)

    def hears(self, node: str, message: Message) -> None:
        self.beats += isinstance(message, Heartbeat)
        self._carry(self.home.on_received(Received(sender=node, message=message), self.now_s))

    def _carry(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            match delivery:
                case ToPeer(node=node, message=message):
                    device = self.devices[node]
                    self.later(self.delay_s, lambda device=device, message=message: device.hears(message))
                case ToManager(event=PeerChanged() as change):
                    self.changes.append((self.now_s, change))
                case ToManager(event=Received(message=Hello(), sender=sender)):
                    welcome = Welcome(heartbeat_s=PATIENCE.heartbeat_s, lost_after_s=PATIENCE.lost_after_s)
                    self._carry(self.home.on_send(sender, welcome))
                case _:
                    pass

    def gives(self, node: str) -> None:
        self.given_s.setdefault(node, self.now_s)
        self._carry(self.home.on_send(node, Assign(job="x", role="worker", term=1, leader="home", spec=SPEC)))

    def ends(self, node: str) -> None:
        device = self.devices[node]
        if device.is_alive and device.router.jobs:
            device.does(device.router.on_worker_ended("x"))
            self.given_s.pop(node, None)

    def dies(self, node: str) -> None:
        if self.devices[node].is_alive:
            self.devices[node].is_alive = False
            self.died_s[node] = self.now_s


STEPS = st.lists(
    st.tuples(
        st.sampled_from((0.05, 0.3, 1.0, 4.0, 9.0, 30.0)) | st.floats(0.01, 20.0),
        st.sampled_from(("gives", "gives", "ends", "dies")),
        st.sampled_from(NODES),
    ),
    max_size=14,
)


def told(delay_s: float, steps: list[tuple[float, str, str]], *, fleet: int = 0) -> Story:
    """Play a story to its end, and look at it."""
    story = Story(delay_s, fleet=fleet)
    for after_s, what, node in steps:
        story.runs(after_s)
        getattr(story, what)(node)
    # Until the slowest of all silences is over.
    story.runs(200.0)
    lost_s = {change.node: at_s for at_s, change in story.changes if change.state is Liveness.LOST}
    for at_s, change in story.changes:
        died_s = story.died_s.get(change.node)
        if change.state is not Liveness.ALIVE:
            assert died_s is not None, f"{change.node} lives and is {change.state} at {at_s:.1f}: {change.reason}"
    for node, died_s in story.died_s.items():
        assert node in lost_s, f"{node} died and was never found out"
        if node in story.given_s and not fleet:
            found_s = lost_s[node] - max(died_s, story.given_s[node])
            # Its last words were under way, or word of its work; and a check comes every half second.
            bound_s = PATIENCE.lost_after_s + 2 * delay_s + CHECK_S
            assert found_s <= bound_s + 0.01, f"{node} had work and was found out after {found_s:.1f} s"
    return story


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(delay_s=st.sampled_from((0.01, 0.1, 0.4)), steps=STEPS, fleet=st.sampled_from((0, 0, 700, 4000)))
def test_nobody_is_suspected_falsely_and_a_device_with_work_is_found_out_in_time(
    delay_s: float, steps: list[tuple[float, str, str]], fleet: int
) -> None:
    told(delay_s, steps, fleet=fleet)


def test_a_device_that_is_given_work_as_it_sends_a_heartbeat_keeps_its_manager() -> None:
    # Its heartbeat stood for 41 s; the manager wants the next one at once, and one each 9 s from then on.
    told(0.01, [(20.0, "gives", "a")], fleet=4000)


def test_devices_that_wait_send_a_fifth_of_the_heartbeats() -> None:
    story = Story(0.01)
    story.runs(20.0)
    before = story.beats
    story.runs(100.0)
    assert story.beats - before == len(NODES) * 20
    for node in NODES:
        story.gives(node)
    story.runs(2.0)
    before = story.beats
    story.runs(100.0)
    assert story.beats - before == len(NODES) * 100, "with work, as often as ever"
    story.ends("a")
    story.runs(20.0)
    before = story.beats
    story.runs(100.0)
    assert story.beats - before == 2 * 100 + 20


# Mutants: each breaks the router in one place, and a test above fails for it ------------------------------------


def _not_hurried() -> object:
    return patch.object(HostRouter, "_hurry", lambda self, node: None)


def _hurried_without_a_word() -> object:
    """The manager's node expects heartbeats that nobody asked for."""
    expect = FailureDetector.expect

    def hurry(self: HostRouter, node: str) -> None:
        expect(self.membership, node, PATIENCE.heartbeat_s, self.now_s)

    return patch.object(HostRouter, "_hurry", hurry)


def _slowed_by_an_old_word() -> object:
    """A heartbeat that was sent before the work arrived makes a device slow that has work."""

    def wanted_s(self: HostRouter, node: str, *, is_idle: bool) -> float:
        return self._interval_s(is_idle=is_idle)

    return patch.object(HostRouter, "_wanted_s", wanted_s)


def _one_limit_for_all() -> object:
    return patch.object(failure_detector, "longer_after_s", lambda after_s, **_: after_s)


def _silence_counts_from_before() -> object:
    """A device that is given work is judged by how long it was silent as it should be."""

    def expect(self: FailureDetector, node: str, every_s: float, now_s: float) -> None:
        peer = self._peers.get(node)
        if peer is not None and peer.every_s != every_s:
            peer.every_s = every_s
            if peer.state is not Liveness.LOST:
                self._look_in_time(node, peer)

    return patch.object(FailureDetector, "expect", expect)


def _never_hastens() -> object:
    """A device that is asked for more heartbeats sends the next one when it was due."""
    answered = dial_state.DialState.on_answered

    def on_answered(self: dial_state.DialState, seq: int, *, next_s: float = 0.0) -> bool:
        answered(self, seq, next_s=next_s)
        return False

    return patch.object(dial_state.DialState, "on_answered", on_answered)


def _always_waiting() -> object:
    """Work is no reason for more heartbeats."""
    return patch.object(host_router, "interval_s", lambda patience, *, devices, is_idle: 10.0)


#: In every part of an interval.
TIMES = (0.2, 0.7, 1.2, 1.7, 2.2, 2.7, 3.2, 3.7, 4.2, 4.7)

#: A long wait, then work; a death before the work, with it, and after it.
STORIES = [
    [(30.0, "dies", "a"), (1.0, "gives", "a"), (0.05, "gives", "b"), (5.0, "dies", "b")],
    [(30.0, "gives", "a"), (0.3, "dies", "a"), (9.0, "gives", "b"), (30.0, "dies", "b"), (0.0, "gives", "c")],
    *[[(30.0 + at_s, "gives", "a")] for at_s in TIMES],
    *[[(30.0 + at_s, "gives", "a"), (after_s, "dies", "a")] for at_s in TIMES for after_s in (0.06, 0.21)],
]


def test_the_stories_hold() -> None:
    for steps in STORIES:
        for delay_s in (0.01, 0.1, 0.4):
            told(delay_s, steps)


@pytest.mark.parametrize(
    "fault",
    [
        _not_hurried,
        _hurried_without_a_word,
        _slowed_by_an_old_word,
        _one_limit_for_all,
        _silence_counts_from_before,
        _never_hastens,
        _always_waiting,
    ],
)
def test_a_fault_breaks_a_story(fault: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    with fault(), pytest.raises(AssertionError):
        test_the_stories_hold()
