"""What a synchronous round costs beyond moving its bytes.

Shoal (manager, N agents, N trainer children that return a prepared update) and bare gRPC (a server, N clients) take
turns on the same machine in one run; ratios of their rounds a second are the result.

    ratio               to bare gRPC, which moves the same bytes and does nothing else
    ratio_to_work       to bare gRPC that also does the work nobody can skip (``bare_work``), by Shoal's own functions
    ratio_wire_limited  to bare gRPC where every link carries 1 Gb/s (namespaces; null where they cannot be made)
    fixed_cpu_ms        processor time of a round of 1,000 values, over all processes
    fixed_bare_cpu_ms   the same of bare gRPC, in turns: a busy machine takes more for either

    python -m benchmarks.round_overhead --workers 8 --params 720967 --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bare_grpc import Bare, On, bare
from benchmarks.common import PERNET
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.trainer.package import ReadyTask
from testbed.cluster import MANAGER, Cluster
from testbed.devices import Board, boards
from testbed.echo_job import ECHO, echo_job
from testbed.namespaces import why_no_namespaces
from testbed.processes import children_of, cpu_s
from testbed.results import finish, say

#: A model whose bytes cost nothing: what is left is the fixed cost of a round.
FIXED_VALUES = 1_000
LINK_MBPS = 1000.0


async def measure_shoal(operator: Operator, job: str, seconds: float) -> float:
    """Versions a second over a stretch of a running job."""
    before, began_s = await _version(operator, job)
    await asyncio.sleep(seconds)
    after, ended_s = await _version(operator, job)
    return (after - before) / (ended_s - began_s)


async def _version(operator: Operator, job: str) -> tuple[int, float]:
    """The version just reported, and when the leader counted it: reports come twice a second."""
    status = await operator.status(job)
    progress = status.jobs[0].progress
    assert progress is not None, "the job has not begun"
    return progress.version, progress.seconds


async def running(operator: Operator, job: str, workers: int) -> None:
    """Wait until every worker has merged something."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        progress = (await operator.status(job)).jobs[0].progress
        if progress and len(progress.workers) == workers and all(view.batches for view in progress.workers):
            return
        await asyncio.sleep(0.2)
    raise TimeoutError("the workers did not start")


async def stopped(operator: Operator, job: str) -> None:
    await operator.stop(job)
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if (await operator.status(job)).jobs[0].state == "stopped":
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the job did not stop")


class Cost:
    """Processor time a round, by kind of process: what the ratio is made of where processors are the limit."""

    def __init__(self, **kinds: list[int]) -> None:
        self._kinds = kinds
        self._used_s: dict[str, float] = dict.fromkeys(kinds, 0.0)
        self._rounds = 0.0

    def now(self) -> dict[str, float]:
        return {kind: cpu_s(*pids) for kind, pids in self._kinds.items()}

    def add(self, before: dict[str, float], after: dict[str, float], *, rounds: float) -> None:
        for kind in self._used_s:
            self._used_s[kind] += after[kind] - before[kind]
        self._rounds += rounds

    def ms_per_round(self) -> dict[str, float]:
        return {kind: round(1000 * used_s / self._rounds, 1) for kind, used_s in self._used_s.items()}


@dataclass(frozen=True, slots=True)
class Stage:
    """A running cluster, and how to put bare gRPC in the same place."""

    home: Path
    manager: asyncio.subprocess.Process
    agents: dict[str, asyncio.subprocess.Process]
    nodes: dict[str, Path]
    #: The name of the manager's device, and its address.
    center: str
    host: str
    on: On

    def bare(self, values: int, *, work: bool = False) -> AbstractAsyncContextManager[Bare]:
        server, home = self.center, Paths(self.home).manager
        return bare(home, self.nodes, on=self.on, server=server, host=self.host, values=values, work=work)


def here(_: str, *words: str) -> Sequence[str]:
    return words


@contextlib.asynccontextmanager
async def on_loopback(workers: int) -> AsyncIterator[Stage]:
    async with LocalCluster(workers=workers, agent_options=ECHO) as cluster:
        assert cluster.manager is not None
        nodes = {name: Paths(cluster.agent_home(name)).node for name in sorted(cluster.agents)}
        yield Stage(cluster.home, cluster.manager, cluster.agents, nodes, "", "127.0.0.1", here)


@contextlib.asynccontextmanager
async def on_links(workers: int, *, mbps: float) -> AsyncIterator[Stage]:
    """Every device, and the manager, behind a link of its own."""
    center = Board(name=MANAGER, up_mbps=mbps, down_mbps=mbps)
    wanted = boards(workers, up_mbps=mbps, down_mbps=mbps)
    with tempfile.TemporaryDirectory() as folder:
        async with Cluster(Path(folder) / "home", wanted, manager=center, child_module="shoal.trainer.echo") as cluster:
            assert cluster.manager is not None
            await cluster.connected()
            nodes = {name: Paths(cluster.device_home(name)).node for name in sorted(cluster.agents)}
            bed = cluster.bed

            def on(name: str, *words: str) -> Sequence[str]:
                return bed[name].exec(*words)

            yield Stage(cluster.home, cluster.manager, cluster.agents, nodes, MANAGER, bed[MANAGER].address, on)


async def compare(*, workers: int, values: int, seconds: float, turns: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        ready, small = (_job(Path(folder), size) for size in (values, FIXED_VALUES))
        async with on_loopback(workers) as stage, Operator.open(stage.home) as operator:
            async with stage.bare(values) as bare_alone, stage.bare(values, work=True) as bare_work:
                rivals = {"bare": bare_alone, "work": bare_work}
                result = await take_turns(stage, operator, ready, rivals, seconds=seconds, turns=turns)
            say(f"a round of {FIXED_VALUES:,} values")
            async with stage.bare(FIXED_VALUES) as rival:
                fixed = await take_turns(stage, operator, small, {"bare": rival}, seconds=seconds, turns=1 + turns // 3)
        result["fixed_cpu_ms"] = sum(fixed["shoal_cpu_ms_per_round"].values())
        result["fixed_bare_cpu_ms"] = sum(fixed["bare_cpu_ms_per_round"].values())
        result |= await _limited_by_links(ready, workers=workers, values=values, seconds=seconds, turns=turns)
    return {**result, "workers": workers, "params": values, "turns": turns}


async def _limited_by_links(
    ready: ReadyTask, *, workers: int, values: int, seconds: float, turns: int
) -> dict[str, object]:
    if why_not := why_no_namespaces():
        say(why_not)
        return {"ratio_wire_limited": None, "wire_limited_why_not": why_not}
    say(f"behind links of {LINK_MBPS:g} Mb/s")
    async with (
        on_links(workers, mbps=LINK_MBPS) as stage,
        Operator.open(stage.home) as operator,
        stage.bare(values) as rival,
    ):
        found = await take_turns(stage, operator, ready, {"bare": rival}, seconds=seconds, turns=max(1, turns // 2))
    kept = ("shoal_rounds_per_s", "bare_rounds_per_s")
    return {"ratio_wire_limited": found["ratio"]} | {f"wire_limited_{name}": found[name] for name in kept}


def _job(folder: Path, values: int) -> ReadyTask:
    (folder / str(values)).mkdir()
    return echo_job(folder / str(values), values=values, batches=200_000)


async def take_turns(
    stage: Stage, operator: Operator, ready: ReadyTask, rivals: dict[str, Bare], *, seconds: float, turns: int
) -> dict[str, Any]:
    agents = [process.pid for process in stage.agents.values()]
    costs = {name: Cost(**rival.pids) for name, rival in rivals.items()}
    rates: dict[str, list[float]] = {"shoal": [], **{name: [] for name in rivals}}
    shoal_costs = []
    for turn in range(turns):
        for name, rival in rivals.items():
            before = costs[name].now()
            rate, rounds = await rival.measure(seconds)
            costs[name].add(before, costs[name].now(), rounds=rounds)
            rates[name].append(rate)
        plan = {"workers_min": len(agents), "until": {"epochs": 1000}, "checkpoint_every_s": 10.0}
        job = await operator.submit(ready, plan=plan)
        await running(operator, job, len(agents))
        await asyncio.sleep(1.0)
        trainers = [child for pid in agents for child in children_of(pid)]
        cost = Cost(manager=[stage.manager.pid], agents=agents, trainers=trainers)
        before, began_s = cost.now(), time.monotonic()
        rates["shoal"].append(await measure_shoal(operator, job, seconds))
        cost.add(before, cost.now(), rounds=rates["shoal"][-1] * (time.monotonic() - began_s))
        shoal_costs.append(cost.ms_per_round())
        await stopped(operator, job)
        say(f"turn {turn + 1}: " + ", ".join(f"{name} {each[-1]:.2f}" for name, each in rates.items()) + " rounds/s")
    found: dict[str, Any] = {f"{name}_rounds_per_s": median(each) for name, each in rates.items()}
    found["shoal_cpu_ms_per_round"] = {kind: median(c[kind] for c in shoal_costs) for kind in shoal_costs[0]}
    for name, key in (("bare", "ratio"), ("work", "ratio_to_work")):
        if name in rivals:
            found[key] = median(s / b for s, b in zip(rates["shoal"], rates[name], strict=True))
            found[f"{name}_cpu_ms_per_round"] = costs[name].ms_per_round()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--params", type=int, default=PERNET)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    seconds, turns = (2.0, 2) if given.quick else (8.0, 5)
    finish(asyncio.run(compare(workers=given.workers, values=given.params, seconds=seconds, turns=turns)))


if __name__ == "__main__":
    main()
