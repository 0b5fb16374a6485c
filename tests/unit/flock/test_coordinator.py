"""The coordinator: its commands for given statuses of the peers; each rule once, by itself."""

from __future__ import annotations

from typing import Any

from shoal.flock.coordinator import ALIKE_BELOW_S, Coordinator, Decisions, Ways
from shoal.flock.settings import FlockSettings
from shoal.wire.messages import Command, PeerStatus

PLAN = "0" * 64
SETTINGS = FlockSettings(rounds=3, devices=3, patience_s=10.0)


class Flock:
    """Peers that heed every command, unless a test says otherwise."""

    def __init__(self, *names: str, settings: FlockSettings = SETTINGS) -> None:
        self.coordinator = Coordinator(term=1, settings=settings, size_bytes=400, now_s=0.0)
        self.peers = {name: PeerStatus(plan=PLAN, term=1, version=0, digest="d0") for name in names}
        self.now_s = 0.0

    def set(self, name: str, **change: Any) -> None:
        fields = {field: getattr(self.peers[name], field) for field in PeerStatus.__slots__} | change
        self.peers[name] = PeerStatus(**fields)

    def look(self, *, heeded: bool = True, after_s: float = 0.0) -> dict[str, Command]:
        self.now_s += after_s
        decided: Decisions = self.coordinator.decide(self.now_s, self.peers)
        self.notes = dict(decided.notes)
        for name, call in decided.calls:
            if heeded:
                self.set(name, heard=call.number)
        return dict(decided.calls)

    def holds(self, name: str, *of: str, weight: float = 10.0, **more: Any) -> None:
        self.set(name, phase="holding", round=1, of=of or (name,), weight=weight, token_term=1, **more)


def kinds(calls: dict[str, Command]) -> dict[str, str]:
    return {name: call.kind for name, call in calls.items()}


def test_all_are_called_to_train_once() -> None:
    flock = Flock("a", "b", "c")
    assert kinds(flock.look()) == {"a": "train", "b": "train", "c": "train"}
    assert flock.look() == {}


def test_a_call_is_said_again_until_it_is_heeded() -> None:
    flock = Flock("a", "b")
    calls = flock.look(heeded=False)
    assert dict(flock.coordinator.unheeded(flock.peers)) == calls
    flock.set("a", heard=calls["a"].number)
    assert set(dict(flock.coordinator.unheeded(flock.peers))) == {"b"}


def test_the_two_that_are_free_first_merge_and_who_spent_more_gives() -> None:
    flock = Flock("a", "b", "c")
    flock.look()
    for name in "abc":
        flock.set(name, phase="training", round=1)
    flock.holds("b", spent_joules=5.0)
    assert flock.look(after_s=1.0) == {}
    flock.holds("c", spent_joules=9.0)
    calls = flock.look(after_s=1.0)
    assert kinds(calls) == {"b": "take"}
    assert calls["b"].other == "c"
    flock.holds("b", "b", "c", took=calls["b"].merge)
    assert kinds(flock.look(after_s=1.0)) == {"c": "rest"}


def merged(flock: Flock) -> None:
    """b has what c gave it; c rests, a trains."""
    flock.look()
    flock.set("a", phase="training", round=1)
    flock.holds("b")
    flock.holds("c", spent_joules=9.0)
    calls = flock.look(after_s=1.0)
    flock.holds("b", "b", "c", took=calls["b"].merge)
    flock.look(after_s=1.0)
    flock.set("c", phase="resting", of=(), weight=0.0)


def test_the_root_makes_the_version_once_nobody_is_missing() -> None:
    flock = Flock("a", "b", "c")
    merged(flock)
    assert flock.look() == {}
    flock.set("a", phase="failed")
    assert kinds(flock.look()) == {"b": "make"}


def test_who_gave_its_update_to_one_that_is_lost_begins_anew() -> None:
    flock = Flock("a", "b", "c")
    merged(flock)
    del flock.peers["b"]
    assert kinds(flock.look()) == {"c": "anew"}


def test_one_that_comes_back_with_a_sum_begins_anew_since_others_did() -> None:
    flock = Flock("a", "b", "c")
    merged(flock)
    away = flock.peers.pop("b")
    flock.look()
    flock.holds("c")
    flock.peers["b"] = away
    assert kinds(flock.look(heeded=False))["b"] == "anew"


def test_one_that_comes_back_after_its_update_was_handed_on_rests() -> None:
    flock = Flock("a", "b", "c")
    flock.look()
    flock.set("a", phase="training", round=1)
    flock.holds("b")
    flock.holds("c", spent_joules=9.0)
    calls = flock.look(after_s=1.0)
    away = flock.peers.pop("c")
    flock.look()
    flock.holds("b", "b", "c", took=calls["b"].merge)
    flock.look()
    flock.peers["c"] = away
    assert kinds(flock.look(heeded=False))["c"] == "rest"


def test_one_that_started_anew_does_not_train_twice_for_one_version() -> None:
    flock = Flock("a", "b", "c")
    merged(flock)
    flock.peers["c"] = PeerStatus(plan=PLAN, term=1, version=0, digest="d0", heard=99)
    assert flock.look() == {}


def test_a_merge_is_called_off_before_its_sender_is_asked_for_again() -> None:
    flock = Flock("a", "b", "c")
    flock.look()
    for name in "abc":
        flock.holds(name)
    first = flock.look(after_s=1.0)
    ((receiver, call),) = first.items()
    late = flock.look(after_s=1000.0, heeded=False)
    assert kinds(late)[receiver] == "keep"
    assert "cannot reach" in late[receiver].reason
    assert not any(each.other == call.other for name, each in flock.look().items() if name != receiver)


def test_a_sum_of_a_former_coordinator_is_begun_anew() -> None:
    flock = Flock("a", "b")
    flock.look()
    flock.holds("a")
    flock.set("a", token_term=0)
    flock.set("b", phase="training", round=1)
    assert kinds(flock.look()) == {"a": "anew"}


def test_a_busy_one_is_left_for_last_and_not_for_ever() -> None:
    flock = Flock("a", "b", "c")
    flock.look()
    flock.holds("a", is_free=False, reason="in use")
    flock.holds("b")
    flock.holds("c")
    calls = flock.look(after_s=1.0)
    assert {calls[name].other for name in calls} | set(calls) == {"b", "c"}
    ((receiver, call),) = calls.items()
    flock.holds(receiver, "b", "c", took=call.merge)
    flock.look()
    flock.set(call.other, phase="resting", of=(), weight=0.0)
    assert flock.look(after_s=1.0) == {}
    flock.look(after_s=SETTINGS.patience_s)
    assert "busy" in flock.notes["merge.forced"]
    assert kinds(flock.look()).popitem()[1] == "take"


def test_who_takes_much_longer_than_most_is_left_out_with_the_reason() -> None:
    flock = Flock("a", "b", "c")
    merged(flock)
    flock.look()
    flock.look(after_s=SETTINGS.patience_s + 1)
    assert "round 1 continues without a" in flock.notes["peer.excluded"]
    assert kinds(flock.look()) == {"b": "make"}


def test_the_version_goes_from_hand_to_hand_and_each_gives_to_one_at_a_time() -> None:
    flock = Flock("a", "b", "c", "d")
    flock.set("a", version=1, digest="d1", made_of=4, spent_joules=3.0)
    first = flock.look()
    assert [call.other for call in first.values() if call.kind == "fetch"] == ["a"]
    (name,) = [name for name, call in first.items() if call.kind == "fetch"]
    flock.set(name, version=1, digest="d1", made_of=4)
    second = [call.other for call in flock.look().values() if call.kind == "fetch"]
    assert sorted(second) == ["a", name]


def test_less_than_half_of_a_flock_waits_and_says_so() -> None:
    flock = Flock("a", "b")
    for name in "ab":
        flock.set(name, version=1, digest="d1", made_of=5)
    assert flock.look() == {}
    assert "2 of the 5 that made version 1 are here" in flock.notes["quorum.lost"]
    flock.peers["c"] = flock.peers["a"]
    assert set(kinds(flock.look()).values()) == {"train"}


def test_it_is_over_once_all_hold_the_last_version() -> None:
    flock = Flock("a", "b", settings=FlockSettings(rounds=1, devices=2))
    flock.set("a", version=1, digest="d1", made_of=2)
    assert kinds(flock.look()) == {"b": "fetch"}
    flock.set("b", version=1, digest="d1", made_of=2)
    assert kinds(flock.look()) == {"a": "over", "b": "over"}


def test_ways_are_guessed_from_those_that_were_gone() -> None:
    ways = Ways()
    assert not ways.is_known
    ways.took("a", "b", 2.0)
    ways.took("c", "b", 4.0)
    assert ways.merge_s("a", "b") == 2.0
    assert ways.merge_s("d", "b") == 3.0
    assert ways.merge_s("d", "e") == 3.0
    ways.took("a", "c", 0.001)
    assert ways.merge_s("a", "c") == ALIKE_BELOW_S
