"""The examples with loops of their own: by hand, prepared, and on two agents."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.trainer.bundle import pack
from shoal.trainer.find_script import find_task_or_script
from shoal.trainer.prepared_job import PreparedJob

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
HAS_LIGHTNING = importlib.util.find_spec("lightning") is not None

needs_lightning = pytest.mark.skipif(not HAS_LIGHTNING, reason="lightning not installed")


def _python(*command: str, cwd: Path) -> str:
    # Two threads that wait for each other on a busy machine take minutes over a network this small.
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=330, check=False, cwd=cwd, env=env
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "plain_loop/before.py",
        "plain_loop/train.py",
        pytest.param("lightning/before.py", marks=needs_lightning),
        pytest.param("lightning/train.py", marks=needs_lightning),
    ],
)
def test_by_hand_an_example_learns_before_and_after(script: str, tmp_path: Path) -> None:
    last = _python(str(EXAMPLES / script), cwd=tmp_path).splitlines()[-1]
    found = re.search(r"accuracy 0\.(\d\d)|(\d\d)\.\d% of held-out", last)
    assert found is not None, last
    assert int(found[1] or found[2]) >= 65


@pytest.mark.parametrize("name", ["plain_loop", pytest.param("lightning", marks=needs_lightning)])
def test_an_example_prepares_its_model_alone(name: str, tmp_path: Path) -> None:
    folder, entry = find_task_or_script(str(EXAMPLES / name / "train.py"))
    (tmp_path / "bundle.zip").write_bytes(pack(folder, entry))
    command = ("-P", "-m", "shoal.trainer.prepare_child", "--entry", entry, "--bundle", str(tmp_path / "bundle.zip"))
    told = _python(*command, "--out", str(tmp_path / "out"), cwd=tmp_path)
    prepared = PreparedJob.from_plain(json.loads(told.splitlines()[-1])["prepared"])
    assert prepared.layout.size == 2 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3
    assert prepared.plan["inner_state"] == "kept"
    assert not prepared.train.examples


@pytest.mark.slow
def test_the_plain_loop_learns_on_two_agents(tmp_path: Path) -> None:
    command = ("run", "--local", "2", str(EXAMPLES / "plain_loop" / "train.py"), "--epochs", "4", "--json")
    told = _python("-m", "shoal.cli.main", *command, "--plan", "epoch_leases=6", cwd=tmp_path)
    outcome = json.loads(told)
    assert outcome["state"] == "finished"
    # Twelve pairs of leases, if both were always there: a worker that comes late leaves versions of one.
    assert 12 <= outcome["version"] <= 24
    assert outcome["accuracy"] > 0.6
