"""The examples: found, packed, built and prepared as a person's command would."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.trainer.bundle import pack
from shoal.trainer.find import find_task
from shoal.trainer.prepared_job import PreparedJob

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "parameters", "train", "test"),
    [("mnist", 61_706, 60_000, 10_000), ("permissions", 720_967, 6_656, 1_878)],
)
def test_an_example_prepares(name, parameters, train, test, real_data, tmp_path):
    path, entry = find_task(str(EXAMPLES / name))
    (tmp_path / "bundle.zip").write_bytes(pack(path, entry))
    command = [sys.executable, "-P", "-m", "shoal.trainer.prepare_child", "--entry", entry]
    command += ["--bundle", tmp_path / "bundle.zip", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, last
    prepared = PreparedJob.from_plain(last["prepared"])
    assert prepared.layout.size == parameters
    assert (prepared.train.examples, prepared.test.examples) == (train, test)
