"""A set that is divided among real devices: each trains on the rows that the simulator gives to its twin."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit import HERE
from parts_task import DEVICES, PARTITION, ROWS

from shoal.sim.local_devices import divide
from shoal.trainer.package import make_ready

TASK = HERE / "parts_task.py"
FIT_S = 240

FIT = """
result = shoal.fit(Parts(), workers=2, until=shoal.epochs(3))
print(json.dumps([result.state, result.model().noted.tolist()]))
"""


def fitted(folder: Path) -> tuple[str, np.ndarray]:
    """Run a person's script that fits the task with two workers. Return the state and the rows that devices noted."""
    task = TASK.read_text().replace("from __future__ import annotations", "import json")
    (folder / "script.py").write_text(task + FIT)
    env = {**os.environ, "TMPDIR": str(folder), "SHOAL_HOME": str(folder / "home")}
    command = [sys.executable, "-W", "error", "script.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=env, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            output, errors = process.communicate(timeout=FIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    state, noted = json.loads(output.splitlines()[-1])
    return state, np.array(noted)


@pytest.mark.timeout(300)
def test_real_devices_train_on_the_rows_of_their_simulated_twins(tmp_path: Path) -> None:
    state, noted = fitted(tmp_path)
    assert state == "finished"
    ready = asyncio.run(make_ready(TASK, "parts_task:Parts", out=tmp_path / "out", divided=True))
    simulated = divide(ready, PARTITION, devices=DEVICES).rows
    for index in range(DEVICES):
        assert np.flatnonzero(noted[index]).tolist() == sorted(simulated[index].tolist())
    assert sorted(np.concatenate(simulated).tolist()) == list(range(ROWS))
    assert len(simulated[0]) != len(simulated[1])
