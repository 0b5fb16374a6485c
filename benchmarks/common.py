"""What the benchmarks share: a job without a task, for trainers that echo; printing; memory of a process."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shoal.learning.layout import Layout
from shoal.sim.observe import Mark, Step
from shoal.trainer.package import ReadyTask
from shoal.trainer.prepared_job import LAYOUT_NOTE, PreparedJob
from shoal.trainer.shards import write_shards
from shoal.wire import tensors

#: PerNet, EDDL's network: 427-512-512-256-256-128-71.
PERNET = 720_967

ECHO = ("--child-module", "shoal.trainer.echo", "--quiet")


class Versions:
    """Watches a simulation of one job: when each version was first told to anyone, from version 1 on."""

    def __init__(self) -> None:
        self.made_s: list[float] = []

    def step(self, step: Step) -> None:
        if step.role != "leader":
            return
        for action in step.actions:
            version = getattr(getattr(action, "message", None), "version", 0)
            if version > len(self.made_s):
                self.made_s.append(step.at_s)

    def mark(self, mark: Mark) -> None:
        pass


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def finish(result: dict[str, Any]) -> None:
    print(json.dumps({k: _rounded(v) if isinstance(v, float) else v for k, v in result.items()}), flush=True)


def _rounded(value: float) -> float:
    """Four decimals; of a small number, three digits that count."""
    return round(value, 4) if abs(value) >= 0.01 else float(f"{value:.3g}")


def echo_job(directory: Path, *, values: int, batches: int) -> ReadyTask:
    """A job of ``values`` parameters and ``batches`` batches of one example, for the echo trainer."""
    layout = Layout.of([("flat", (values,), "parameter")])
    model = directory / "model.safetensors"
    with model.open("wb") as file:
        tensors.write(file, layout.views(np.zeros(values, np.float32)), {LAYOUT_NOTE: layout.to_json()})
    nothing = np.zeros(batches, np.uint8)
    manifest = write_shards(nothing, nothing, directory / "shards")
    empty = write_shards(nothing[:0], nothing[:0], directory / "shards")
    prepared = PreparedJob(
        model=str(model),
        model_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        layout=layout,
        train=manifest,
        test=empty,
        shards=str(directory / "shards"),
        plan={"batch_size": 1},
    )
    bundle = _empty_bundle()
    return ReadyTask(name="echo", entry="task:Echo", arguments={}, bundle=bundle, prepared=prepared)


def _empty_bundle() -> bytes:
    import tempfile

    from shoal.trainer.bundle import pack

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.py"
        file.write_text("import shoal\n\n\nclass Echo(shoal.Task):\n    pass\n")
        return pack(file, "task:Echo")


def cpu_s(*pids: int) -> float:
    """Processor time these processes have used so far, with all their threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process now (VmRSS) or at its peak (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no {field}")
