"""LoRA on a frozen base of 494,032,768 values in bfloat16, two agents: what crosses, and what the leader holds."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.store.blobs import BlobStore
from testbed.results import say

TASK_FILE = Path("benchmarks/models_tasks/real_size.py")
VERSIONS = 3
LONGEST_S = 1200.0


async def run() -> dict[str, Any]:
    plan = {"workers_min": 2, "until": {"epochs": 1}}
    with tempfile.TemporaryDirectory(prefix="shoal-real-size-") as directory:
        home = Path(directory) / "home"
        async with LocalCluster(workers=2, home=home) as cluster, Operator.open(cluster.home) as operator:
            began_s = time.monotonic()
            ready = await operator.prepare(TASK_FILE, "real_size:RealSize", plan=plan, on_progress=say)
            job = await operator.submit(ready, plan=plan, on_progress=say)
            submitted_s = time.monotonic() - began_s
            assert cluster.manager is not None
            manager, leader_rss = psutil.Process(cluster.manager.pid), 0
            status = await operator.status(job)
            while not status.jobs[0].state.is_ended and time.monotonic() - began_s < LONGEST_S:
                leader_rss = max(leader_rss, _own_bytes(manager))
                await asyncio.sleep(0.5)
                status = await operator.status(job)
            view = status.jobs[0]
            progress = view.progress
            if progress is None or view.state != "finished":
                raise SystemExit(f"the job ended as {view.state}: {view.reason}")
            updates = sum(worker.batches for worker in progress.workers)
            sent = {name: _base_times(cluster, name, ready.prepared.base) for name in cluster.agents}
            base_bytes = sum(Path(path).stat().st_size for path in ready.prepared.base_paths)
    return {
        "versions": progress.version,
        "update_mb": progress.bytes_up / updates / 1e6,
        "adapter_values": ready.prepared.layout.size,
        "base_mb": base_bytes / 1e6,
        "leader_rss_mb": leader_rss / 1e6,
        "base_sent_times_per_device": max(sent.values()),
        "prepare_and_submit_s": submitted_s,
        "seconds": time.monotonic() - began_s,
    }


def _own_bytes(process: psutil.Process) -> int:
    """Resident memory of its own: pages of files that it maps are the system's to drop."""
    info = process.memory_info()
    return int(info.rss - info.shared)


def _base_times(cluster: LocalCluster, name: str, parts: tuple[str, ...]) -> float:
    """How often an agent's log says that it fetched a part of the base, over the number of parts."""
    log = (cluster.home / f"{name}.log").read_text(errors="replace")
    fetched = sum(log.count(f"fetched {part[:12]}") for part in parts)
    held = BlobStore(cluster.agent_home(name) / "cache" / "blobs")
    if not all(held.has(part) for part in parts):
        raise SystemExit(f"{name} does not hold the whole base")
    return fetched / len(parts)
