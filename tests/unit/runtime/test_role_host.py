"""A host gives its role one event at a time, keeps its timers, and survives its bugs."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from shoal.roles.actions import Action, CancelTimer, End, Record, Send, SetTimer
from shoal.roles.events import Event, Started, StopRequested, TimerFired
from shoal.runtime import role_host as hosts
from shoal.runtime.role_host import RoleHost
from shoal.wire.messages import Leave


class Scripted:
    """A role that answers each event with what the test prepared, and remembers what it saw."""

    def __init__(self, *answers: list[Action] | Exception) -> None:
        self._answers = list(answers)
        self.seen: list[Event] = []

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self.seen.append(event)
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(role: Scripted, *events: Event, wait_s: float = 0.0) -> list[Action]:
    """Post the events, let the host work, and give what it was asked to carry out."""
    done: list[Action] = []

    async def perform(_: RoleHost, action: Action) -> None:
        done.append(action)

    async def story() -> None:
        host = RoleHost("a role", perform, send=lambda to, message: done.append(Send(to=to, message=message)))
        for event in events:
            host.post(event)  # before there is a role: they wait
        host.start(role)
        await host.deliver(StopRequested(reason="last"))
        await asyncio.sleep(wait_s)
        await host.stop()

    asyncio.run(asyncio.wait_for(story(), 10))
    return done


def test_a_role_hears_that_it_was_started_and_then_what_waited_for_it() -> None:
    role = Scripted([Record(kind="a", reason="first")], [Record(kind="b", reason="second")])
    done = run(role, TimerFired(name="x"))
    assert role.seen == [Started(), TimerFired(name="x"), StopRequested(reason="last")]
    assert [action.kind for action in done if isinstance(action, Record)] == ["a", "b"]


def test_messages_go_out_in_order_with_the_other_actions() -> None:
    sent = Send(to="leader", message=Leave(reason="bye"))
    actions: list[Action] = [Record(kind="a", reason="before"), sent, Record(kind="b", reason="after")]
    assert run(Scripted(actions)) == actions


def test_nothing_is_carried_out_for_a_role_after_it_was_let_go() -> None:
    done: list[Action] = []

    async def perform(host: RoleHost, action: Action) -> None:
        done.append(action)
        host.ended = isinstance(action, End)

    async def story() -> None:
        host = RoleHost("a role", perform, send=lambda to, message: pytest.fail("sent"))
        last = Record(kind="a", reason="too late")
        host.start(Scripted([End(reason="over"), Send(to="leader", message=Leave(reason="bye")), last]))
        await host.deliver(StopRequested(reason="last"))
        await host.stop()

    asyncio.run(asyncio.wait_for(story(), 10))
    assert done == [End(reason="over")]


def test_events_are_handled_one_at_a_time_however_they_come_and_whoever_is_cancelled() -> None:
    """Each answer is two actions around one that takes its time; none comes between those of another."""

    class Echo:
        def handle(self, event: Event, now_s: float) -> list[Action]:
            if not isinstance(event, StopRequested):
                return []
            name = event.reason
            around = [Send(to=name, message=Leave(reason=end)) for end in ("begins", "ends")]
            return [around[0], Record(kind=name, reason="slow"), around[1]] if name.startswith("slow") else [*around]

    done: list[tuple[str, str]] = []

    async def perform(_: RoleHost, action: Action) -> None:
        assert isinstance(action, Record)
        await asyncio.sleep(0.001)
        done.append((action.kind, action.reason))

    async def story() -> None:
        host = RoleHost("echo", perform, send=lambda to, message: done.append((to, message.reason)))
        host.start(Echo())
        tasks = []
        for number in range(60):
            event = StopRequested(reason=f"{'slow' if number % 3 == 0 else 'quick'} {number}")
            if number % 4 == 1:
                host.post(event)
            else:
                tasks.append(asyncio.create_task(host.deliver(event)))
            # Some come while another is handled, some do not; some callers leave at once.
            if number % 5:
                await asyncio.sleep(0)
            if number % 7 == 0:
                await asyncio.sleep(0.005)
                tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await host.deliver(StopRequested(reason="quick last"))
        await asyncio.sleep(0.05)
        await host.stop()

    asyncio.run(asyncio.wait_for(story(), 30))
    names = list(dict.fromkeys(name for name, _ in done))
    assert len(names) == 61, "each is handled, though its caller left"
    whole = {name: ("begins", "slow", "ends") if name.startswith("slow") else ("begins", "ends") for name in names}
    assert done == [(name, part) for name in names for part in whole[name]]


def test_a_timer_fires_once_and_a_second_of_its_name_replaces_it() -> None:
    role = Scripted([SetTimer(name="t", after_s=0.01), SetTimer(name="t", after_s=0.03)])
    run(role, wait_s=0.2)
    assert role.seen.count(TimerFired(name="t")) == 1


def test_a_cancelled_timer_does_not_fire() -> None:
    role = Scripted([SetTimer(name="t", after_s=0.01), CancelTimer(name="t")])
    run(role, wait_s=0.1)
    assert TimerFired(name="t") not in role.seen


def test_a_bug_in_a_role_is_reported_and_the_timer_it_was_about_fires_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosts, "AFTER_BUG_S", 0.01)
    role = Scripted([], ValueError("a bug"), [], [Record(kind="alive", reason="still here")])
    with caplog.at_level(logging.ERROR):
        done = run(role, TimerFired(name="tick"), wait_s=0.2)
    assert "a role failed to handle an event" in caplog.text
    assert role.seen.count(TimerFired(name="tick")) == 2
    assert done == [Record(kind="alive", reason="still here")]


def test_a_timer_says_how_late_it_is() -> None:
    # A loop that stood still: what is in the sockets was not read meanwhile, and the role has to know.
    class Sleepy(Scripted):
        def handle(self, event: Event, now_s: float) -> list[Action]:
            actions = super().handle(event, now_s)
            if isinstance(event, StopRequested):
                time.sleep(0.3)
            return actions

    role = Sleepy([SetTimer(name="t", after_s=0.05)])
    run(role, wait_s=0.2)
    (fired,) = [event for event in role.seen if isinstance(event, TimerFired)]
    assert fired.late_s >= 0.2


def test_what_need_not_be_waited_for_is_done_before_a_delivery_returns_and_the_rest_in_its_order() -> None:
    done: list[str] = []

    async def perform(_: RoleHost, action: Action) -> None:
        assert isinstance(action, Record)
        await asyncio.sleep(0)
        done.append(f"waited for {action.kind}")

    def at_once(_: RoleHost, action: Action) -> bool:
        assert isinstance(action, Record)
        if action.reason == "slow":
            return False
        done.append(action.kind)
        return True

    async def story() -> None:
        host = RoleHost("a role", perform, send=lambda to, message: None, at_once=at_once)
        quick, slow = Record(kind="a", reason="quick"), Record(kind="b", reason="slow")
        host.start(Scripted([], [quick], [quick, slow, Record(kind="c", reason="quick")], [quick]))
        await asyncio.sleep(0.01)
        await host.deliver(StopRequested(reason="quick"))
        assert done == ["a"], "at once"
        await host.deliver(StopRequested(reason="slow"))
        await host.deliver(StopRequested(reason="behind it"))
        await asyncio.sleep(0.05)
        await host.stop()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert done == ["a", "a", "waited for b", "c", "a"]


def test_an_action_that_fails_at_once_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    done: list[Action] = []

    def at_once(_: RoleHost, action: Action) -> bool:
        assert isinstance(action, Record)
        if action.kind == "bad":
            raise ValueError("a bug")
        done.append(action)
        return True

    async def perform(_: RoleHost, action: Action) -> None:
        pytest.fail("left to be waited for")

    async def story() -> None:
        host = RoleHost("a role", perform, send=lambda to, message: None, at_once=at_once)
        good = Record(kind="good", reason="")
        host.start(Scripted([Record(kind="bad", reason=""), good], [good]))
        await host.deliver(StopRequested(reason="next"))
        await host.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(story(), 60))
    assert "a role failed to handle an event" in caplog.text
    assert done == [Record(kind="good", reason="")]


def test_a_timer_that_is_set_again_and_again_takes_few_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = []
    call_at = asyncio.BaseEventLoop.call_at

    def counted(loop: asyncio.BaseEventLoop, when: float, callback: object, *rest: object, **named: object) -> object:
        if getattr(callback, "__name__", "") == "_wake":
            timers.append(when)
        return call_at(loop, when, callback, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_at", counted)
    again: list[Action] = [CancelTimer(name="t"), SetTimer(name="t", after_s=600.0)]
    role = Scripted(again * 500, [SetTimer(name="t", after_s=0.01)])
    run(role, StopRequested(reason="sooner"), wait_s=0.2)
    assert role.seen.count(TimerFired(name="t")) == 1, "a deadline that comes before the last one is kept"
    assert len(timers) <= 3
