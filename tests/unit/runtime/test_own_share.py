"""A device's part of a divided set: who says it last is believed first, and a restart knows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal import data
from shoal.data.local import PART_VARIABLE
from shoal.errors import Misuse
from shoal.runtime.own_share import PART_FILE, expose, part_of, remember, remembered
from shoal.runtime.paths import Paths


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    # Set and then unset, so that what a test sets is undone after it.
    monkeypatch.setenv(PART_VARIABLE, "")
    return Paths(tmp_path / "home")


def test_nothing_was_said(places: Paths) -> None:
    assert (remembered(places), part_of(places), expose(places, "")) == ("", "", "")
    assert data.part() is None


def test_a_restart_knows_it(places: Paths) -> None:
    remember(places, "3/8")
    assert remembered(places) == expose(places, "") == os.environ[PART_VARIABLE] == "3/8"
    assert data.part() == (2, 8)


def test_the_environment_goes_before_it_and_the_option_before_both(
    places: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(places, "3/8")
    monkeypatch.setenv(PART_VARIABLE, "4/8")
    assert part_of(places) == expose(places, "") == "4/8"
    assert expose(places, "5/8") == os.environ[PART_VARIABLE] == "5/8"
    assert remembered(places) == "3/8"


def test_what_is_no_part_is_not_kept(places: Paths) -> None:
    for wrong in ("0/8", "9/8"):
        with pytest.raises(Misuse, match="is not a part"):
            remember(places, wrong)
        with pytest.raises(Misuse, match="is not a part"):
            expose(places, wrong)
    assert not (places.node / PART_FILE).exists()
    assert not os.environ[PART_VARIABLE]
