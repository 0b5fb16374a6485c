"""Star, tree and shard on shaped links: what a batch takes, measured, simulated and predicted, in one run.

n devices, each a network namespace with a link of its own of so many Mb/s each way (``tc tbf``) and an agent, train
PerNet; a batch takes a device l = 1 s (``testbed.paced``: real gradients, padded to the pace). The manager's device
leads, over a link like the others. The same roles are simulated, and the planner predicts, with what TCP carries of
such a link. A batch is the time from one version to the next, once the shape holds.

One machine stands for all devices here, and what a shard's many small messages take of its processor is not what
sixteen devices with one of their own would wait for. In slow motion (``--slow 4``) links are that many times as slow
and batches as long, so that the processor is not in the way; what is told is what it would be at full speed. Both are
told where the two differ: ``cpu_s`` is the processor time that all devices together take for a batch. So are links ten
times as slow with batches as long as before (``slow_shard_to_predicted``): there a shard waits for its links alone.
``messages`` is what all roles say for a batch, counted in the simulation.

    python -m benchmarks.shapes [--workers 16] [--mbps 100] [--slow 4] [--no-slow-links] [--quick] --json
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from unittest import mock

from benchmarks.common import PERNET, Versions
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.runtime.operator import Operator
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Step
from shoal.sim.rates import Steady, mbit
from shoal.sim.world import Settings, World
from shoal.topology import predict
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.split import split
from shoal.trainer.package import ReadyTask
from testbed.cluster import MANAGER
from testbed.cluster import Cluster as TestbedCluster
from testbed.devices import Board, boards
from testbed.echo_job import echo_job
from testbed.namespaces import why_no_namespaces
from testbed.noted import NOTES_VARIABLE, read_notes
from testbed.processes import children_of, cpu_s
from testbed.results import finish, say

ROOT = Path(__file__).resolve().parent.parent

BATCH_S = 1.0
#: What TCP carries of a link's rate (docs/testbed.md).
PAYLOAD = 0.956
SHAPES = ("star", "tree", "shard")
#: Versions that are timed once a shape holds, after some in which it falls into step.
TIMED = {"star": 4, "tree": 6, "shard": 12}
QUICK_TIMED = {"star": 3, "tree": 3, "shard": 5}
SETTLING = 2
#: How much slower links are where the processor is no limit.
SLOW_LINKS = 10.0
LONGEST_S = 420.0
LEASE_S = 120.0

#: A leader's own turn with a shape that needs one, and the versions of a star before it.
_BEFORE = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    workers: int
    mbps: float
    batch_s: float
    timed: dict[str, int]
    #: The trainers that stand for the devices: real ones, padded, or some that only wait.
    child_module: str
    #: So many times as slow as it is told.
    slow: float = 1.0

    @property
    def aggregators(self) -> int:
        """EDDL's 1-4-16: about the square root."""
        return max(2, round(math.sqrt(self.workers)))

    @property
    def bytes_per_s(self) -> float:
        """Of what is told."""
        return mbit(self.mbps * PAYLOAD)


# Measured ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timed:
    """What each batch took, and of this machine's processor all devices together for one."""

    batches_s: list[float]
    cpu_s: float


async def measured(setting: Setting, shapes: Sequence[str]) -> dict[str, Timed]:
    """Shape -> what its timed batches took."""
    mbps = setting.mbps / setting.slow
    devices = boards(setting.workers, up_mbps=mbps, down_mbps=mbps, pace_s=setting.batch_s * setting.slow)
    rows: dict[str, Timed] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-shapes-") as folder:
        home, notes = Path(folder) / "home", Path(folder) / "notes"
        cluster = TestbedCluster(
            home,
            devices,
            manager=Board(name=MANAGER, up_mbps=mbps, down_mbps=mbps),
            child_module=setting.child_module,
            manager_module="testbed.noted",
            cache=Path(folder) / "cache",
        )
        with mock.patch.dict(os.environ, {NOTES_VARIABLE: str(notes)}):
            async with cluster, Operator.open(home) as operator:
                await cluster.connected()
                ready = await _ready(operator, setting, Path(folder))
                for shape in shapes:
                    rows[shape] = row = await _timed(cluster, operator, ready, setting, shape, notes)
                    times = " ".join(f"{batch_s:.2f}" for batch_s in row.batches_s)
                    say(f"{shape}: {times} s a batch, measured; {row.cpu_s:.2f} s of processor each")
    return rows


async def _ready(operator: Operator, setting: Setting, folder: Path) -> ReadyTask:
    if setting.child_module != "testbed.paced":
        return echo_job(folder, values=PERNET, batches=setting.workers * 200)
    task = ROOT / "examples" / "permissions"
    return await operator.prepare(task, "task:Permissions", on_progress=say)


async def _timed(
    cluster: TestbedCluster, operator: Operator, ready: ReadyTask, setting: Setting, shape: str, notes: Path
) -> Timed:
    plan = {
        "topology": shape,
        "aggregators": setting.aggregators,
        "workers_min": setting.workers,
        "workers_max": setting.workers,
        "until": {"epochs": 200},
        "evaluate_every_epochs": 1000,
        "lease_s": LEASE_S * setting.slow,
    }
    job = await operator.submit(ready, plan=plan)
    wanted = SETTLING + setting.timed[shape] + 1
    deadline_s = time.monotonic() + LONGEST_S * setting.slow
    told = ""
    cpu_from: tuple[int, float] | None = None
    while True:
        made = [note.at_s for note in read_notes(notes, job) if note.shape.split()[0] == shape]
        if cpu_from is None and len(made) > SETTLING:
            cpu_from = (len(made), _cpu_s(cluster))
        if len(made) >= wanted:
            break
        if time.monotonic() > deadline_s:
            status = await operator.status(job)
            events = "; ".join(f"{event.kind}: {event.reason}" for event in status.events[-8:])
            raise SystemExit(f"{shape}: {len(made)} of {wanted} versions in time: {events}")
        view = (await operator.status(job)).jobs[0]
        now = f"{shape}: {view.state}, version {view.progress.version}" if view.progress else f"{shape}: {view.state}"
        if now != told:
            say(now)
            told = now
        await asyncio.sleep(0.5)
    assert cpu_from is not None
    used_s = (_cpu_s(cluster) - cpu_from[1]) / max(1, len(made) - cpu_from[0])
    await operator.stop(job)
    while (await operator.status(job)).jobs[0].state in ("running", "stopping", "queued"):
        await asyncio.sleep(0.2)
    made = made[SETTLING:]
    times_s = [(after - before) / setting.slow for before, after in itertools.pairwise(made)][: setting.timed[shape]]
    return Timed(times_s, used_s)


def _cpu_s(cluster: TestbedCluster) -> float:
    """Of the manager, the agents and their trainers."""
    processes = [process for process in (cluster.manager, *cluster.agents.values()) if process is not None]
    return sum(cpu_s(pid) for process in processes for pid in (process.pid, *children_of(process.pid)))


# Simulated ---------------------------------------------------------------------------------------------


class _Versions(Versions):
    """When versions were first told to anyone, how many were before the shape held, and what was said since."""

    def __init__(self) -> None:
        super().__init__()
        self.before = 0
        self._said: Counter[str] = Counter()
        #: What was said until each version, from the first on.
        self.said_by: list[Counter[str]] = []

    def step(self, step: Step) -> None:
        super().step(step)
        if any(isinstance(action, Record) and action.kind == "topology.changed" for action in step.actions):
            self.before = len(self.made_s)
        self.said_by += [self._said.copy()] * (len(self.made_s) - len(self.said_by))
        if step.role != "manager":
            self._said.update(type(action.message).__name__ for action in step.actions if isinstance(action, Send))

    def batch_s(self) -> float:
        """From one version to the next, once the shape holds."""
        made = self.made_s[self.before + SETTLING : -1]
        return median(after - before for before, after in itertools.pairwise(made))

    def messages(self) -> dict[str, float]:
        """Kind -> how many for a version, once the shape holds."""
        said = self.said_by[self.before + SETTLING : -1]
        return {kind: count / (len(said) - 1) for kind, count in (said[-1] - said[0]).most_common()}


def simulated(setting: Setting, shape: str) -> tuple[float, dict[str, float]]:
    """The same roles in the simulator: what a batch takes once the shape holds, and the messages of one by kind."""
    versions = _played(
        shape,
        workers=setting.workers,
        aggregators=setting.aggregators,
        bytes_per_s=setting.bytes_per_s,
        batch_s=setting.batch_s,
        pace="sync",
    )
    return versions.batch_s(), versions.messages()


def _played(shape: str, *, workers: int, aggregators: int, bytes_per_s: float, batch_s: float, pace: str) -> _Versions:
    rate = Steady(bytes_per_s)
    line = AccessLink(up=rate, down=rate)
    build = Build(kind="even", seconds_per_gmac=0.0, seconds_per_batch=batch_s, memory_mb=4096, line=line)
    plan = Plan(
        topology=shape,
        pace=pace,
        aggregators=aggregators,
        batch_size=1,
        workers_min=workers,
        workers_max=workers,
        until=Until(epochs=1),
        lease_s=LEASE_S,
        momentum=0.0,
    )
    layout = Layout.of([("flat", (PERNET,), "parameter")])
    job = system_job(plan, layout, examples=workers * (_BEFORE + 8), start_s=0.1)
    versions = _Versions()
    world = World(Settings(seed=0, builds=[build] * workers, home_line=line, jobs=[job]), observers=[versions])
    world.begin()
    if not world.run(limit_s=3600.0):
        raise SystemExit(f"the simulation of a {shape} did not finish")
    return versions


def played_s(
    shape: str, *, workers: int, aggregators: int, bytes_per_s: float, batch_s: float, pace: str = "sync"
) -> float:
    """Seconds in which each worker trains one lease, of PerNet over equal links, simulated."""
    versions = _played(
        shape, workers=workers, aggregators=aggregators, bytes_per_s=bytes_per_s, batch_s=batch_s, pace=pace
    )
    if pace == "sync":
        return versions.batch_s()
    # Every aggregator makes versions of its own, and they come when they come.
    each = aggregators if shape == "tree" else workers
    made = versions.made_s[versions.before + SETTLING * each : -each]
    return each * (made[-1] - made[0]) / (len(made) - 1)


# Predicted ---------------------------------------------------------------------------------------------


def predicted_s(setting: Setting) -> dict[str, float]:
    rate, model_bytes = setting.bytes_per_s, 4 * PERNET
    workers = tuple(
        ClusterNode(name=f"w{n:02}", up_bytes_per_s=rate, down_bytes_per_s=rate, compute_s=setting.batch_s)
        for n in range(setting.workers)
    )
    cluster = Cluster(leader=ClusterNode(name="leader", up_bytes_per_s=rate, down_bytes_per_s=rate), workers=workers)
    tree = split(cluster, aggregators=setting.aggregators)
    return {
        "star": predict.star(cluster, model_bytes=model_bytes).batch_s,
        "tree": predict.tree(cluster, tree, model_bytes=model_bytes).batch_s,
        "shard": predict.shard(cluster, model_bytes=model_bytes).batch_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--mbps", type=float, default=100.0)
    parser.add_argument("--train-s", type=float, default=BATCH_S, help="what a batch takes a device")
    parser.add_argument("--slow", type=float, default=1.0, help="in slow motion: links and devices so much slower")
    parser.add_argument(
        "--slow-links",
        action=argparse.BooleanOptionalAction,
        help=f"a shard on links {SLOW_LINKS:g} times as slow too; unless it is quick or told what shapes",
    )
    parser.add_argument("--only", choices=SHAPES, action="append", help="these shapes alone")
    parser.add_argument("--echo", action="store_true", help="trainers that wait and do not train: for a busy machine")
    parser.add_argument("--quick", action="store_true", help="six workers that do not train")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object, as always here")
    given = parser.parse_args()
    if why_not := why_no_namespaces():
        raise SystemExit(f"no testbed here: {why_not}")
    setting = Setting(
        workers=min(given.workers, 6) if given.quick else given.workers,
        mbps=given.mbps,
        batch_s=min(given.train_s, 0.3) if given.quick else given.train_s,
        timed=QUICK_TIMED if given.quick else TIMED,
        slow=given.slow,
        child_module="shoal.trainer.echo" if given.quick or given.echo else "testbed.paced",
    )
    shapes = given.only or SHAPES
    rows = asyncio.run(measured(setting, shapes))
    told = predicted_s(setting)
    result: dict[str, object] = {"workers": setting.workers, "mbps": setting.mbps, "train_s": setting.batch_s}
    result["slow"] = setting.slow
    for shape in shapes:
        real_s, (sim_s, messages) = median(rows[shape].batches_s), simulated(setting, shape)
        kinds = ", ".join(f"{count:.0f} {kind}" for kind, count in messages.items() if count >= 1)
        say(f"{shape}: {sum(messages.values()):.0f} messages a batch: {kinds}")
        say(f"{shape:6} {real_s:6.2f} s measured, {sim_s:6.2f} s simulated, {told[shape]:6.2f} s predicted")
        result |= {
            f"{shape}_s": real_s,
            f"simulated_{shape}_s": sim_s,
            f"predicted_{shape}_s": told[shape],
            f"{shape}_to_simulated": real_s / sim_s,
            f"{shape}_to_predicted": real_s / told[shape],
            f"{shape}_cpu_s": rows[shape].cpu_s,
            f"{shape}_messages": sum(messages.values()),
        }
    if len(shapes) == len(SHAPES):
        for shape in ("star", "tree"):
            ratio = median(rows[shape].batches_s) / median(rows["shard"].batches_s)
            result[f"{shape}_to_shard"] = ratio
            say(f"a shard is {ratio:.2f} times as fast as a {shape}")
    if given.slow_links if given.slow_links is not None else not (given.quick or given.only):
        slower = replace(setting, mbps=setting.mbps / SLOW_LINKS, timed={"shard": QUICK_TIMED["shard"]})
        slow = asyncio.run(measured(slower, ["shard"]))["shard"]
        slow_s, slow_predicted_s = median(slow.batches_s), predicted_s(slower)["shard"]
        result |= {
            "slow_shard_s": slow_s,
            "slow_predicted_shard_s": slow_predicted_s,
            "slow_shard_to_predicted": slow_s / slow_predicted_s,
            "slow_shard_cpu_s": slow.cpu_s,
        }
    finish(result)


if __name__ == "__main__":
    main()
