"""When an agent looks after its certificate, and when it does not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.identity.enrolment import Enrolled
from shoal.identity.identity import Authority
from shoal.runtime.renewal import LOOK_LEAST_S, LOOK_MOST_S, LOOK_UNKNOWN_S, Renewal


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Enrolled:
    identity = Authority.create(tmp_path_factory.mktemp("authority"), "pond").identity(node="pi", role="node")
    return Enrolled(identity=identity, manager_node="manager", manager_endpoint="127.0.0.1:1")


def living(member: Enrolled, life_s: float) -> Enrolled:
    identity = member.identity
    return replace(member, identity=replace(identity, expires_s=identity.issued_s + life_s))


@pytest.mark.parametrize(
    ("life_s", "look_s"),
    [(30 * 86400, LOOK_MOST_S), (20 * 60, 60.0), (1.0, LOOK_LEAST_S)],
)
def test_it_looks_often_enough_for_the_life_of_a_certificate(
    member: Enrolled, tmp_path: Path, life_s: float, look_s: float
) -> None:
    assert Renewal(tmp_path, living(member, life_s))._look_every_s == pytest.approx(look_s)


def test_one_whose_times_are_not_known_is_not_tried_all_the_time(member: Enrolled, tmp_path: Path) -> None:
    unknown = replace(member, identity=replace(member.identity, issued_s=0.0, expires_s=0.0))
    assert Renewal(tmp_path, unknown)._look_every_s == LOOK_UNKNOWN_S


def test_a_manager_that_is_away_is_no_reason_to_renew(member: Enrolled, tmp_path: Path) -> None:
    renewal = Renewal(tmp_path, member)
    asyncio.run(renewal.not_let_in())
    assert renewal._tried_s == float("-inf")


def test_it_goes_by_the_managers_clock(member: Enrolled, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    renewal = Renewal(tmp_path, member)
    renewal.heard(time.time() + 31 * 86400)
    # Our own clock says that the certificate is good; there is nothing in this folder to renew, which it reports.
    asyncio.run(renewal.not_let_in())
    assert renewal._tried_s > float("-inf")
    assert "could not be renewed: there is no" in caplog.text
    tried_s = renewal._tried_s
    asyncio.run(renewal.not_let_in())
    assert renewal._tried_s == tried_s, "not again so soon"


def test_where_managers_are_outlives_the_agent(member: Enrolled, tmp_path: Path) -> None:
    member.save(tmp_path)
    renewal = Renewal(tmp_path, member)
    renewal.reached("b.lan:7070", ())
    assert Enrolled.load(tmp_path) == member, "a manager that is alone changes nothing"
    renewal.reached("b.lan:7070", ("a.lan:7070", "b.lan:7070"))
    kept = Enrolled.load(tmp_path)
    assert (kept.manager_endpoint, kept.managers) == ("b.lan:7070", ("a.lan:7070", "b.lan:7070"))
    assert kept.identity == member.identity
