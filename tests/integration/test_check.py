"""``shoal check`` as a person calls it: what is pure, what is not and why, and with which code it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import HERE
from readings_task import readings

EXAMPLES = HERE.parents[1] / "examples"
IMPURE = f"{HERE / 'impure_task.py'}:Counting"
GROWING = f"{HERE / 'impure_task.py'}:Growing"


def checked(home: Path, *words: str | Path) -> tuple[int, dict[str, Any], str]:
    """The code, what was printed as JSON, and the errors."""
    command = [sys.executable, "-m", "shoal.cli.main", "check", *map(str, words), "--home", str(home), "--json"]
    path = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=330, env={**os.environ, **path})
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.stderr


@pytest.mark.slow
@pytest.mark.needs_data
def test_an_example_is_pure(tmp_path: Path, real_data: Path) -> None:
    code, told, errors = checked(tmp_path, EXAMPLES / "mnist")
    assert code == 0, errors
    assert told["pure"] is True
    assert told["trained_values"] == 61_706
    assert told["update_bytes"] == 4 * 61_706
    assert set(told["metrics"]) == {"loss", "accuracy"}


@pytest.mark.slow
def test_a_task_that_counts_is_found_and_the_tensor_is_named(tmp_path: Path) -> None:
    code, told, errors = checked(tmp_path, IMPURE)
    assert code == 1, errors
    assert told["pure"] is False
    assert told["differs"].startswith("2.bias differs by up to ")
    assert told["differs"].endswith("after another lease in the same process")


@pytest.mark.slow
def test_a_task_that_keeps_state_claims_nothing(tmp_path: Path) -> None:
    code, told, errors = checked(tmp_path, IMPURE, "--plan", "inner_state=kept")
    assert (code, told["pure"], told["claims_pure"]) == (0, False, False), errors


@pytest.mark.slow
def test_a_device_s_own_examples_are_pure_although_each_is_new_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    own = tmp_path / "own"
    own.mkdir(mode=0o755)
    # More than a lease takes: which are chosen depends on which are new.
    (own / "readings.csv").write_text(readings(300, seed=1))
    code, told, errors = checked(tmp_path / "home", HERE / "readings_task.py", "--data", own)
    assert code == 0, errors
    assert told["pure"] is True
    # None is held out, so the new ones are judged, as devices do.
    assert set(told["metrics"]) == {"loss", "accuracy"}


@pytest.mark.slow
def test_examples_held_out_in_the_folder_are_used_and_not_kept(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    own, home = tmp_path / "own", tmp_path / "home"
    own.mkdir(mode=0o755)
    chance = np.random.default_rng(0)
    for split in ("train", "test"):
        x, y = chance.normal(size=(80, 9, 128)).astype(np.float32), chance.integers(0, 12, 80)
        np.savez(own / f"{split}.npz", x=x, y=y)
    code, told, errors = checked(home, EXAMPLES / "activity", "--data", own)
    assert code == 0, errors
    assert told["pure"] is True
    code, told, errors = checked(home, EXAMPLES / "activity")
    assert code == 2
    assert "--data FOLDER" in errors


@pytest.mark.slow
def test_examples_that_come_meanwhile_are_no_fault_of_the_task(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code, told, errors = checked(tmp_path / "home", GROWING, "--data", tmp_path)
    assert (code, told) == (2, {})
    assert "a copy of the folder" in errors


@pytest.mark.parametrize(
    ("words", "says"),
    [(["absent.py"], "absent.py"), ([IMPURE, "--data", "/absent"], "/absent"), ([IMPURE, "--plan", "x"], "KEY=VALUE")],
)
def test_what_cannot_be_used_ends_with_two(tmp_path: Path, words: list[Any], says: str) -> None:
    code, told, errors = checked(tmp_path, *words)
    assert (code, told) == (2, {})
    assert says in errors
