"""The manager's cable is pulled while devices lead and train: nothing that they make meanwhile is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.chaos.kit import ROOT
from testbed.chaos.watch import Made, surviving
from testbed.namespaces import why_no_namespaces

LIMIT_S = 510.0


@pytest.mark.gate("cut")
@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.timeout(540)
def test_what_devices_make_while_their_manager_is_cut_off_is_kept(tmp_path: Path, real_data: Path) -> None:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
    # Three times as long as it takes a manager to miss a leader.
    command = (sys.executable, "-m", "benchmarks.cut", "--lead", "devices", "--cut-s", "12", "--json")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, told = process.communicate(timeout=LIMIT_S)
    assert out, told[-4000:]
    result = json.loads(out.splitlines()[-1])
    # Sixty rounds would fit; a leader that waits for its manager makes none.
    assert result["versions_while_away"] > 10
    assert result["versions_lost"] == 0, result["devices"]
    assert (result["batches_lost"], result["batches_twice"]) == (0, 0)
    assert result["model_matches_history"]
    assert result["devices"][0]["bugs_logged"] == []
    assert result["left_behind"] == []
    assert process.returncode == 0


# How it counts ------------------------------------------------------------------------------------------


def _made(version: int, *, term: int, before: int, model: int) -> Made:
    return Made(at_s=float(version), version=version, term=term, node="device-1", before=before, model=model)


def test_a_history_is_told_from_another_with_the_same_numbers() -> None:
    first = [_made(1, term=1, before=100, model=101), _made(2, term=1, before=101, model=102)]
    # Both sides of a cut go on from version 2.
    left = [_made(3, term=1, before=102, model=103), _made(4, term=1, before=103, model=104)]
    right = [_made(3, term=2, before=102, model=203), _made(4, term=2, before=203, model=204)]
    made = [*first, *left, *right]
    assert surviving(made, 104) == [*first, *left]
    assert surviving(made, 204) == [*first, *right]
    # A leader of a third term that goes on from the first side.
    last = _made(5, term=3, before=104, model=305)
    assert surviving([*made, last], 305) == [*first, *left, last]
    assert surviving(made, 999) == []
