"""When a certificate is replaced: by times that the manager told, never by a clock alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.identity.identity import MEMBER_VALID_DAYS, Authority, Identity
from shoal.net.renewal import due_s, has_lapsed, is_due

DAY_S = 86400.0
NOW_S = 1_900_000_000.0


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    authority = Authority.create(tmp_path_factory.mktemp("authority"), "pond", now_s=NOW_S)
    return authority.identity(node="pi-4", role="node", now_s=NOW_S)


def test_a_certificate_lives_for_a_month_and_knows_it(identity: Identity, tmp_path: Path) -> None:
    assert MEMBER_VALID_DAYS == 30
    assert (identity.issued_s, identity.expires_s) == (NOW_S, NOW_S + 30 * DAY_S)
    identity.save(tmp_path)
    assert Identity.load(tmp_path) == identity


def test_it_is_due_after_two_thirds_of_its_life(identity: Identity) -> None:
    assert due_s(identity) == pytest.approx(NOW_S + 20 * DAY_S)
    assert not is_due(identity, now_s=NOW_S + 19.9 * DAY_S)
    assert is_due(identity, now_s=NOW_S + 20.1 * DAY_S)
    assert not has_lapsed(identity, now_s=NOW_S + 29.9 * DAY_S)
    assert has_lapsed(identity, now_s=NOW_S + 30 * DAY_S)


def test_a_clock_that_was_never_set_makes_nothing_due(identity: Identity) -> None:
    assert not is_due(identity, now_s=0.0)
    assert not has_lapsed(identity, now_s=0.0)


def test_one_whose_times_are_not_known_is_due_and_not_thought_lapsed(identity: Identity) -> None:
    older = replace(identity, issued_s=0.0, expires_s=0.0)
    assert is_due(older, now_s=NOW_S)
    assert not has_lapsed(older, now_s=NOW_S)


def test_an_identity_from_before_times_were_kept_still_loads(identity: Identity, tmp_path: Path) -> None:
    identity.save(tmp_path)
    file = tmp_path / "identity.json"
    kept = [line for line in file.read_text().splitlines() if "_s" not in line.split(":")[0]]
    file.write_text("\n".join(kept).replace('",\n}', '"\n}'))
    assert Identity.load(tmp_path) == replace(identity, issued_s=0.0, expires_s=0.0)
