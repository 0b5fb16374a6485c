"""What a device pays for being ready: the memory of an idle agent, and the time until it is back after a start.

A real manager and one real agent on this machine. Ready: from starting the process of an enrolled agent until the
manager's status calls the node alive, the median of several starts. Memory: of the agent and whatever it has started,
joined and without a job, once it has sent a few heartbeats; resident (every page it can touch) and proportional (pages
shared with other processes counted in parts). Imports: which heavy modules the running agent has loaded.

``--onnx`` measures a device without PyTorch instead, with Shoal's bytecode written as pip does: idle, and agent and
trainer together while they train LeNet on 192 drawn examples and on MNIST. Resident memory is the sum of both
processes: pages that both map count twice. Proportional memory counts them once. ``anonymous`` is what no file backs,
and what the kernel cannot drop without swap.

    python -m benchmarks.agent_footprint --json
    python -m benchmarks.agent_footprint --onnx --json
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import os
import re
import time
from pathlib import Path
from statistics import median

import psutil

from shoal.errors import ShoalError
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from testbed.processes import memory_mb
from testbed.results import finish, say

NAME = "device-1"

#: Far longer than an agent should take; a benchmark that hangs says nothing.
START_TIMEOUT_S = 30.0

#: Heartbeats come every second: what is allocated at first use has been used by then.
SETTLE_S = 4.0

#: Capturing takes most of it.
JOB_TIMEOUT_S = 400.0

#: A job is measured after so many versions, and looked at so often.
VERSIONS, LOOKS = 4, 6

_ROOT = Path(__file__).parents[1]

#: Modules that cost megabytes or a noticeable part of a second on a small device.
HEAVY = (
    "cryptography",
    "grpc",
    "numpy",
    "psutil",
    "rich",
    "shoal.roles.worker.worker",
    "shoal.trainer.host",
    "sqlite3",
    "torch",
    "typer",
)

#: How Python reports each import under PYTHONPROFILEIMPORTTIME: own time, time with what it imports, indented name.
_IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+([\w.]+)$", re.MULTILINE)


async def until_state(operator: Operator, wanted: str) -> None:
    """Wait until the manager's status says this of the node."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while wanted not in [view.state for view in (await operator.status()).nodes if view.node == NAME]:
            await asyncio.sleep(0.01)


async def start_s(cluster: LocalCluster, operator: Operator) -> float:
    """Start the agent; seconds until it is alive."""
    began_s = time.monotonic()
    await cluster.start_agent(NAME)
    await until_state(operator, "alive")
    return time.monotonic() - began_s


async def stop(cluster: LocalCluster, operator: Operator) -> None:
    process = cluster.agents.pop(NAME)
    process.terminate()
    await asyncio.wait_for(process.wait(), START_TIMEOUT_S)
    await until_state(operator, "lost")


def resident_mb(pid: int) -> tuple[float, float]:
    """Resident and proportional memory of a process and its children."""
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(memory_mb(each) for each in pids), sum(proportional_mb(each) for each in pids)


def proportional_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("\nPss:")[1].split()[0]) / 1024


async def heavy_imports(cluster: LocalCluster, operator: Operator) -> list[str]:
    """What an agent that joined has loaded, told by its own interpreter."""
    os.environ["PYTHONPROFILEIMPORTTIME"] = "1"
    try:
        await start_s(cluster, operator)
    finally:
        del os.environ["PYTHONPROFILEIMPORTTIME"]
    await asyncio.sleep(1.5)
    loaded = set(_IMPORTED.findall((cluster.home / f"{NAME}.log").read_text()))
    assert "shoal.net.grpc" in loaded, "the agent did not tell its imports"
    await stop(cluster, operator)
    return [module for module in HEAVY if module in loaded]


async def measure(*, starts: int) -> dict[str, object]:
    async with LocalCluster(workers=0) as cluster, Operator.open(cluster.home) as operator:
        # The first start enrols the device, which happens once in its life.
        await start_s(cluster, operator)
        await stop(cluster, operator)
        ready_s, rss_mb, pss_mb = [], [], []
        for start in range(starts):
            ready_s.append(await start_s(cluster, operator))
            await asyncio.sleep(SETTLE_S)
            rss, pss = resident_mb(cluster.agents[NAME].pid)
            rss_mb.append(rss)
            pss_mb.append(pss)
            say(f"start {start + 1}: ready after {ready_s[-1]:.2f} s, then {rss:.1f} MB resident")
            await stop(cluster, operator)
        imports = await heavy_imports(cluster, operator)
    return {
        "ready_s": median(ready_s),
        "idle_rss_mb": median(rss_mb),
        "idle_pss_mb": median(pss_mb),
        "imports": imports,
        "starts": starts,
    }


# A device without PyTorch -------------------------------------------------------------------------------


def taken_mb(pid: int) -> dict[str, float]:
    """Resident, proportional and anonymous memory of a process and its children, and how many processes that is."""
    found = {"processes": 0.0, "rss_mb": 0.0, "pss_mb": 0.0, "anonymous_mb": 0.0}
    for each in [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]:
        own = {
            "processes": 1.0,
            "rss_mb": memory_mb(each),
            "pss_mb": proportional_mb(each),
            "anonymous_mb": memory_mb(each, "RssAnon"),
        }
        found = {name: found[name] + own[name] for name in found}
    return found


async def while_training(cluster: LocalCluster, operator: Operator, task: str) -> dict[str, float]:
    """What agent and trainer hold together once versions of this job have come, at the most of several looks."""
    plan = {"batch_size": 32, "learning_rate": 0.01, "lease_batches": 5, "until": {"epochs": 1000}}
    job = await operator.prepare_and_submit(task, plan=plan, portable=True, on_progress=say)
    async with asyncio.timeout(JOB_TIMEOUT_S):
        while True:
            (view,) = [view for view in (await operator.status()).jobs if view.job == job]
            if view.progress is not None and view.progress.version >= VERSIONS:
                break
            await asyncio.sleep(0.2)
    looks = []
    for _ in range(LOOKS):
        looks.append(taken_mb(cluster.agents[NAME].pid))
        await asyncio.sleep(0.3)
    await operator.stop(job)
    most = max(looks, key=lambda look: look["rss_mb"])
    assert most["processes"] > 1, "no trainer trained"
    return most


async def measure_onnx() -> dict[str, object]:
    compileall.compile_dir(_ROOT / "src" / "shoal", quiet=2)
    found: dict[str, object] = {}
    # The device has no model or examples of its own, and leads nothing.
    async with LocalCluster(workers=0) as cluster, Operator.open(cluster.home) as operator:
        await cluster.start_agent(NAME, "--engine", "onnx", "--threads", "1")
        await until_state(operator, "alive")
        await asyncio.sleep(SETTLE_S)
        # Enrolling takes memory that an agent has only in the first start of its life.
        await stop(cluster, operator)
        await cluster.start_agent(NAME, "--engine", "onnx", "--threads", "1")
        await until_state(operator, "alive")
        await asyncio.sleep(SETTLE_S)
        parts = {"idle": taken_mb(cluster.agents[NAME].pid)}
        lenet = f"{_ROOT / 'benchmarks' / 'portable_tasks.py'}:LeNet"
        parts["training"] = await while_training(cluster, operator, lenet)
        try:
            parts["training_mnist"] = await while_training(cluster, operator, str(_ROOT / "examples" / "mnist"))
        except ShoalError as error:
            say(f"MNIST is not measured: {error}")
    for name, part in parts.items():
        say(f"{name}: {part}")
        found |= {f"{name}_{key}": value for key, value in part.items() if key != "processes"}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--onnx", action="store_true", help="a device without PyTorch, also at work")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    finish(asyncio.run(measure_onnx() if given.onnx else measure(starts=3 if given.quick else 9)))


if __name__ == "__main__":
    main()
