"""The roster of keys that members of a group share: who is in it, how many fit, and to whom it is sent again."""

from __future__ import annotations

import pytest

from shoal.roles.actions import Send
from shoal.roles.events import Event, Started
from shoal.roles.leader.gathering.key_roster import KEY_AND_NAME_MAX_BYTES, KeyRoster
from shoal.roles.leader.workers import Workers
from shoal.roles.machine import Machine
from shoal.sealing.graph import GROUP_MAX
from shoal.wire.limits import ENVELOPE_MAX_BYTES
from shoal.wire.messages import MemberKey, SealRoster


class _Leader(Machine):
    def on_event(self, event: Event) -> None:
        self.roster.tell("d000")

    def begin(self, *, helper: str | None = None, devices: int = 8) -> KeyRoster:
        workers = Workers(self, job="digits")
        self.roster = KeyRoster(self, workers, job="digits", term=1, helper=helper)
        for number in range(devices):
            workers.add(f"d{number:03}")
            self.roster.on_key(key(f"d{number:03}"))
        if helper is not None:
            self.roster.on_key(key(helper))
        return self.roster

    def sent(self) -> list[int]:
        """The rosters that a device is sent if it is told now."""
        actions = self.handle(Started(), 1.0)
        return [
            each.message.roster for each in actions if isinstance(each, Send) and isinstance(each.message, SealRoster)
        ]


def key(node: str, *, nonce: int = 0, certificate_bytes: int = 500) -> MemberKey:
    return MemberKey(
        node=node,
        public=bytes(32),
        nonce=bytes([nonce]) * 16,
        signature=b"",
        certificate=bytes(certificate_bytes),
    )


@pytest.mark.parametrize("helper", [None, "helper"])
def test_a_roster_has_the_members_the_helper_and_others_as_far_as_one_message_goes(helper: str | None) -> None:
    roster = _Leader().begin(helper=helper, devices=GROUP_MAX + 40)
    most = GROUP_MAX - (helper is not None)
    assert roster.members_most == most
    for members in (2, most):
        roster.make(tuple(f"d{number:03}" for number in range(30, 30 + members)))
        nodes = [one.node for one in roster.now]
        assert len(nodes) == GROUP_MAX
        assert nodes == sorted(nodes)
        assert {"d030", f"d{29 + members:03}"} <= set(nodes)
        assert (helper in nodes) is (helper is not None)


def test_large_certificates_leave_room_for_fewer_members() -> None:
    roster = _Leader().begin(devices=2)
    roster.on_key(key("d000", certificate_bytes=1600))
    assert roster.members_most == ENVELOPE_MAX_BYTES // (1600 + KEY_AND_NAME_MAX_BYTES)


def test_a_roster_is_made_again_only_if_a_key_that_is_needed_changed() -> None:
    roster = _Leader().begin(helper="helper")
    roster.make(("d000", "d001"))
    assert roster.number == 1
    assert not roster.on_key(key("d000"))
    roster.make(("d002", "d003"))
    assert roster.number == 1
    assert roster.on_key(key("helper", nonce=1))
    roster.make(("d002", "d003"))
    assert roster.number == 2


def test_a_roster_is_sent_once_and_again_after_a_new_session() -> None:
    leader = _Leader()
    roster = leader.begin()
    roster.make(("d000", "d001"))
    assert leader.sent() == [1]
    assert leader.sent() == []
    roster.on_key(key("d000"))
    assert leader.sent() == [1]
