"""What a synchronous round costs beyond moving its bytes.

Shoal (manager, N agents, N trainer children that return a prepared update) and bare gRPC (a server, N clients) take
turns on the same machine in one run; the ratio of their rounds a second is the result.

    python -m benchmarks.round_overhead --workers 8 --params 720967 --json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.bare_grpc import BareServer, clients
from benchmarks.common import ECHO, PERNET, children_of, cpu_s, echo_job, finish, say
from shoal.identity.identity import Identity
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.trainer.package import ReadyTask

#: Clients of the bare server that are not connected by then are not coming.
CONNECT_S = 60.0


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


async def compare(*, workers: int, values: int, seconds: float, turns: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        ready = echo_job(Path(folder), values=values, batches=200_000)
        async with (
            LocalCluster(workers=workers, agent_options=ECHO) as cluster,
            Operator.open(cluster.home) as operator,
        ):
            identity = Identity.load(Paths(cluster.home).manager)
            bare = BareServer(identity, workers=workers, update_bytes=values * 4)
            port = await bare.start()
            homes = [Paths(cluster.agent_home(name)).node for name in sorted(cluster.agents)]
            async with clients(homes, port=port, update_bytes=values * 4) as client_pids:
                async with asyncio.timeout(CONNECT_S):
                    while not bare.rounds:  # until every client is connected and warm
                        await bare.measure(1.0)
                result = await take_turns(cluster, operator, ready, bare, client_pids, seconds=seconds, turns=turns)
            await bare.stop()
    return {**result, "workers": workers, "params": values, "turns": turns}


async def take_turns(
    cluster: LocalCluster,
    operator: Operator,
    ready: ReadyTask,
    bare: BareServer,
    client_pids: list[int],
    *,
    seconds: float,
    turns: int,
) -> dict[str, object]:
    assert cluster.manager is not None
    workers = len(cluster.agents)
    agents = [process.pid for process in cluster.agents.values()]
    bare_cost = Cost(server=[os.getpid()], clients=client_pids)
    shoal_rates, bare_rates, shoal_costs = [], [], []
    for turn in range(turns):
        before, rounds = bare_cost.now(), bare.rounds
        bare_rates.append(await bare.measure(seconds))
        bare_cost.add(before, bare_cost.now(), rounds=bare.rounds - rounds)
        plan = {"workers_min": workers, "until": {"epochs": 1000}, "checkpoint_every_s": 10.0}
        job = await operator.submit(ready, plan=plan)
        await running(operator, job, workers)
        await asyncio.sleep(1.0)
        trainers = [child for pid in agents for child in children_of(pid)]
        cost = Cost(manager=[cluster.manager.pid], agents=agents, trainers=trainers)
        before, began_s = cost.now(), time.monotonic()
        shoal_rates.append(await measure_shoal(operator, job, seconds))
        cost.add(before, cost.now(), rounds=shoal_rates[-1] * (time.monotonic() - began_s))
        shoal_costs.append(cost.ms_per_round())
        await stopped(operator, job)
        say(f"turn {turn + 1}: shoal {shoal_rates[-1]:.2f}, bare {bare_rates[-1]:.2f} rounds/s")
    return {
        "ratio": median(s / b for s, b in zip(shoal_rates, bare_rates, strict=True)),
        "shoal_rounds_per_s": median(shoal_rates),
        "bare_rounds_per_s": median(bare_rates),
        "shoal_cpu_ms_per_round": {kind: median(c[kind] for c in shoal_costs) for kind in shoal_costs[0]},
        "bare_cpu_ms_per_round": bare_cost.ms_per_round(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--params", type=int, default=PERNET)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    seconds, turns = (4.0, 3) if given.quick else (8.0, 5)
    finish(asyncio.run(compare(workers=given.workers, values=given.params, seconds=seconds, turns=turns)))


if __name__ == "__main__":
    main()
