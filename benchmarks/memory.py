"""The memory that a leader and its devices take, in real processes.

python -m benchmarks.memory --json            everything
python -m benchmarks.memory --quick --json    the leader only

A leader of 25 million values with two agents: the peak of its process and what is left eight seconds after the job,
each above what it took before and in units of the model. LoRA on a frozen base of 494 million values: the largest
trainer. A frozen tensor of 1,342 MB: prepared, sent to an agent, and trained on.

Memory is ``RssAnon`` of /proc/PID/status: pages of files that a process maps are the system's to drop.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from shoal.roles.leader.memory_needed import memory_needed
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.package import ReadyTask, laid_over, plan_from
from shoal.wire import tensors
from shoal.wire.limits import VALUE_BYTES
from shoal.wire.messages import JobView
from testbed.results import finish, say

TASKS = Path("benchmarks/models_tasks")
WORKERS = 2
SAMPLE_S = 0.02
#: A leader's memory is returned within a few seconds of its job's end.
SETTLED_S = 8.0
JOB_S = 900.0


def anonymous_bytes(status: str) -> int:
    """Return ``RssAnon`` from the text of /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no RssAnon in the status of a process")


def models_above(now_bytes: int, idle_bytes: int, model_bytes: int) -> float:
    """Return how many models of memory a process takes beyond its idle memory."""
    return (now_bytes - idle_bytes) / model_bytes


def largest_tensor_bytes(paths: Sequence[Path]) -> int:
    """Return the size of the largest tensor in these files."""
    arrays = [array for path in paths for array in tensors.read(path, mmap=True)[0].values()]
    return max(array.nbytes for array in arrays)


def _read(pid: int) -> int:
    return anonymous_bytes(Path(f"/proc/{pid}/status").read_text())


@dataclass
class Peak:
    """The largest sum that was seen of the processes that ``pids`` names, one by one. Use it in ``with``."""

    pids: Callable[[], Sequence[int]]
    bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for pid in self.pids():
                try:
                    self.bytes = max(self.bytes, _read(pid))
                except (OSError, ValueError):
                    continue  # it ended meanwhile

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _trainers(cluster: LocalCluster) -> list[int]:
    """Return the processes below the agents."""
    found: list[int] = []
    for agent in cluster.agents.values():
        try:
            found += [child.pid for child in psutil.Process(agent.pid).children(recursive=True)]
        except psutil.Error:
            continue
    return found


async def _train(operator: Operator, ready: ReadyTask, plan: dict[str, Any]) -> JobView:
    job = await operator.submit(ready, plan=plan)
    began_s = time.monotonic()
    view = (await operator.status(job)).jobs[0]
    while not view.state.is_ended and time.monotonic() - began_s < JOB_S:
        await asyncio.sleep(0.3)
        view = (await operator.status(job)).jobs[0]
    if view.state != "finished" or view.progress is None:
        raise SystemExit(f"the job ended as {view.state}: {view.reason}")
    return view


async def leader(*, batches: int) -> dict[str, Any]:
    """Measure a leader of 25 million values with two agents."""
    given = {"workers_min": WORKERS, "until": {"epochs": 1}}
    async with LocalCluster(workers=WORKERS) as cluster, Operator.open(cluster.home) as operator:
        assert cluster.manager is not None
        pid = cluster.manager.pid
        kwargs = {"batches": batches}
        ready = await operator.prepare(TASKS / "memory.py", "memory:Wide", kwargs=kwargs, plan=given)
        idle_bytes, values = _read(pid), ready.prepared.layout.size
        with Peak(lambda: [pid]) as peak:
            view = await _train(operator, ready, given)
        await asyncio.sleep(SETTLED_S)
        after_bytes = _read(pid)
    model_bytes = VALUE_BYTES * values
    plan = plan_from(laid_over(ready.prepared.plan, given))
    needed = memory_needed(plan, values=values, devices=WORKERS)
    assert view.progress is not None
    say(f"leader: idle {idle_bytes / 1e6:.0f} MB, peak {peak.bytes / 1e6:.0f}, after {after_bytes / 1e6:.0f}")
    return {
        "leader_models_peak": models_above(peak.bytes, idle_bytes, model_bytes),
        "leader_models_after": models_above(after_bytes, idle_bytes, model_bytes),
        "leader_values": values,
        "leader_versions": view.progress.version,
        "leader_peak_mb": peak.bytes / 1e6,
        "leader_estimate_mb": needed.leader_bytes / 1e6,
        "leader_estimate_holds": peak.bytes <= needed.leader_bytes,
    }


async def _frozen(task: str, kwargs: dict[str, Any], plan: dict[str, Any], *, workers: int) -> tuple[int, int, JobView]:
    """Return the largest memory of a trainer, the largest frozen tensor in the agents' caches, and the job."""
    given = {"workers_min": workers, "until": {"epochs": 1}, **plan}
    with tempfile.TemporaryDirectory(prefix="shoal-memory-") as directory:
        async with (
            LocalCluster(workers=workers, home=Path(directory) / "home") as cluster,
            Operator.open(cluster.home) as operator,
        ):
            file, _, entry = task.partition(":")
            ready = await operator.prepare(TASKS / f"{file}.py", f"{file}:{entry}", kwargs=kwargs, plan=given)
            with Peak(lambda: _trainers(cluster)) as peak:
                view = await _train(operator, ready, given)
            held = [cluster.agent_home(name) / "cache" / "blobs" for name in cluster.agents]
            parts = [blobs / part[:2] / part for blobs in held for part in ready.prepared.base]
            tensor_bytes = largest_tensor_bytes(parts)
            logs = "".join((cluster.home / f"{name}.log").read_text(errors="replace") for name in cluster.agents)
    if "built in memory" in logs:
        raise SystemExit(next(line for line in logs.splitlines() if "built in memory" in line))
    say(f"{task}: largest trainer {peak.bytes / 1e6:.0f} MB, largest frozen tensor {tensor_bytes / 1e6:.0f} MB")
    return peak.bytes, tensor_bytes, view


async def run(*, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = await leader(batches=6 if quick else 20)
    if quick:
        return found
    lora_bytes, _, _ = await _frozen("real_size:RealSize", {}, {}, workers=2)
    trainer_bytes, tensor_bytes, view = await _frozen("memory:LargeFrozen", {}, {"until": {"epochs": 2}}, workers=1)
    assert view.progress is not None
    return {
        **found,
        "lora_trainer_private_mb": lora_bytes / 1e6,
        "frozen_tensor_mb": tensor_bytes / 1e6,
        "frozen_trainer_private_mb": trainer_bytes / 1e6,
        "frozen_versions": view.progress.version,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="for uniformity: the result is always JSON")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    finish({**asyncio.run(run(quick=arguments.quick)), "seconds": time.monotonic() - began_s})


if __name__ == "__main__":
    main()
