"""Where a device keeps its examples: who says it last is believed first, and a restart knows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.data.local import LOCAL_VARIABLE, local_folder
from shoal.errors import Corrupt, Misuse
from shoal.runtime.own_data import DATA_FILE, checked, expose, folder_of, remember, remembered
from shoal.runtime.paths import Paths


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    # Set and then unset, so that what a test sets is undone after it.
    monkeypatch.setenv(LOCAL_VARIABLE, "")
    for name in ("said", "typed", "set"):
        (tmp_path / name).mkdir()
    return Paths(tmp_path / "home")


def test_nothing_was_said(places: Paths) -> None:
    assert remembered(places) is None
    assert folder_of(places) is None
    assert expose(places, None) is None
    assert not os.environ[LOCAL_VARIABLE]
    with pytest.raises(Misuse, match="join it with --data"):
        local_folder()


def test_what_was_said_when_it_joined(places: Paths, tmp_path: Path) -> None:
    remember(places, tmp_path / "said")
    assert remembered(places) == tmp_path / "said"
    assert expose(places, None) == local_folder() == tmp_path / "said"


def test_the_environment_goes_before_it_and_the_option_before_both(
    places: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(places, tmp_path / "said")
    monkeypatch.setenv(LOCAL_VARIABLE, str(tmp_path / "set"))
    assert folder_of(places) == expose(places, None) == tmp_path / "set"
    assert expose(places, tmp_path / "typed") == local_folder() == tmp_path / "typed"
    assert remembered(places) == tmp_path / "said"


def test_a_folder_is_meant_from_anywhere(places: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked(Path("said")) == tmp_path / "said"
    (tmp_path / "file").touch()
    for wrong in ("nowhere", "file"):
        with pytest.raises(Misuse, match="there is no such folder"):
            checked(Path(wrong))


def test_a_damaged_note_is_told(places: Paths) -> None:
    places.node.mkdir(parents=True)
    (places.node / DATA_FILE).write_text("{")
    with pytest.raises(Corrupt):
        remembered(places)
