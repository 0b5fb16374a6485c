"""How often a device sends heartbeats, by what it does and by how many there are."""

from __future__ import annotations

import pytest

from shoal.roles.node.failure_detector import Patience, longer_after_s
from shoal.roles.node.heartbeat_interval import interval_s


@pytest.mark.parametrize(
    ("devices", "working_s", "waiting_s"),
    [
        (1, 1.0, 5.0),
        (500, 1.0, 5.0),
        (501, 2.0, 6.0),
        (2_000, 4.0, 20.0),
        # 100 a second from those that wait, until the longest interval.
        (6_000, 10.0, 60.0),
        (1_000_000, 10.0, 60.0),
    ],
)
def test_many_devices_send_fewer_heartbeats_each(devices: int, working_s: float, waiting_s: float) -> None:
    patience = Patience()
    assert interval_s(patience, devices=devices, is_idle=False) == working_s
    assert interval_s(patience, devices=devices, is_idle=True) == waiting_s


def test_an_interval_is_a_multiple_of_the_shortest() -> None:
    quick = Patience(heartbeat_s=0.2, suspect_after_s=0.6, lost_after_s=1.6)
    assert interval_s(quick, devices=3, is_idle=True) == 1.0
    assert interval_s(quick, devices=700, is_idle=False) == pytest.approx(1.4)
    seldom = Patience(heartbeat_s=90.0, suspect_after_s=270.0, lost_after_s=700.0)
    assert interval_s(seldom, devices=3, is_idle=True) == 90.0, "never more often than the shortest"


def test_one_heartbeat_may_be_missing_and_the_next_one_late() -> None:
    assert longer_after_s(3.0, heartbeat_s=1.0, every_s=1.0) == 3.0
    assert longer_after_s(3.0, heartbeat_s=1.0, every_s=5.0) == 11.0
    assert longer_after_s(8.0, heartbeat_s=1.0, every_s=60.0) == 126.0
