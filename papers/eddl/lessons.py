"""Real training in virtual time: the simulator's stars with PyTorch in them, several at once in processes of their own.

Who works, how long it takes and what arrives when is simulated; the updates are those of PyTorch on the real examples.
A process takes one lesson a line and answers with one line, so that torch is loaded once for many.

    python -m papers.eddl.lessons < lessons.jsonl
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.eddl.setting import BATCH, BATCH_S, LEARNING_RATE, LEASE_S, MOMENTUM, WEIGHT_DECAY
from shoal.errors import Misuse
from shoal.sim.devices import Build
from shoal.sim.metrics import Metrics
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady, mbit
from shoal.sim.real import close, simulated_job
from shoal.sim.world import Settings, World
from shoal.trainer.find import find_task
from shoal.trainer.package import ReadyTask, make_ready, plan_from
from testbed.results import say

ROOT = Path(__file__).resolve().parent.parent.parent
TASKS = {"pernet": "papers/eddl/pernet", "pernet, by app": "papers/eddl/pernet", "lenet": "examples/mnist"}
#: What a network's task is made with.
ARGUMENTS = {"pernet, by app": {"by": "app"}}

#: Devices are never quite in step; if they were, asynchronous ones would collide for ever.
JITTER = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What is trained, by whom and how."""

    network: str = "pernet"
    workers: int
    pace: str
    momentum: float = MOMENTUM
    #: The paper's leader takes late updates as they are.
    staleness: str = "none"
    learning_rate: float = LEARNING_RATE
    batch_size: int = BATCH
    epochs: int
    rate_mbit: float = 100.0
    seed: int = 0
    #: Of a tree; 0 for a star.
    aggregators: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """Accuracies after each epoch, and when in virtual time."""

    accuracies: tuple[float, ...]
    at_s: tuple[float, ...]
    #: Empty, or why the job did not come to its end: training that diverges is refused.
    trouble: str

    def after(self, epoch: int) -> float | None:
        return self.accuracies[epoch - 1] if len(self.accuracies) >= epoch else None


_known: dict[Lesson, Learned] = {}


def learn_all(lessons: Sequence[Lesson], *, processes: int | None = None) -> dict[Lesson, Learned]:
    """What comes of each. A lesson that was learned before in this process is not learned again."""
    waiting: queue.SimpleQueue[Lesson] = queue.SimpleQueue()
    new = [lesson for lesson in dict.fromkeys(lessons) if lesson not in _known]
    # The longest first, so that nobody waits for one at the end.
    for lesson in sorted(new, key=lambda one: one.epochs / one.batch_size, reverse=True):
        waiting.put(lesson)
    count = min(processes or os.cpu_count() or 1, len(new))
    troubles: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="shoal-lessons-") as folder:
        threads = [
            threading.Thread(target=_teach, args=(waiting, Path(folder) / str(number), troubles))
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if troubles:
        raise troubles[0]
    return {lesson: _known[lesson] for lesson in lessons}


def _teach(waiting: queue.SimpleQueue[Lesson], folder: Path, troubles: list[BaseException]) -> None:
    command = (sys.executable, "-m", "papers.eddl.lessons", "--out", str(folder))
    try:
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            while not troubles:
                try:
                    lesson = waiting.get_nowait()
                except queue.Empty:
                    break
                child.stdin.write(json.dumps(dataclasses.asdict(lesson)) + "\n")
                child.stdin.flush()
                line = child.stdout.readline()
                if not line:
                    raise Misuse(f"the process that trains {lesson} ended: its last words are above")
                _known[lesson] = _learned(json.loads(line))
                say(f"  {told(lesson)}: {_percent(_known[lesson])}")
            child.stdin.close()
    except BaseException as error:
        troubles.append(error)


def told(lesson: Lesson) -> str:
    return (
        f"{lesson.network}, {lesson.workers} workers, {lesson.pace}, rate {lesson.learning_rate:g}, momentum"
        f" {lesson.momentum:g}, staleness {lesson.staleness}, batch {lesson.batch_size}, seed {lesson.seed}"
        + (f", {lesson.aggregators} aggregators" if lesson.aggregators else "")
    )


def _percent(learned: Learned) -> str:
    last = f"{learned.accuracies[-1]:.1%} after {len(learned.accuracies)} epochs" if learned.accuracies else "nothing"
    return f"{last}; {learned.trouble}" if learned.trouble else last


def _learned(plain: dict[str, Any]) -> Learned:
    return Learned(accuracies=tuple(plain["accuracies"]), at_s=tuple(plain["at_s"]), trouble=str(plain["trouble"]))


# In the process that trains ----------------------------------------------------------------------------------


def learn(lesson: Lesson, out: Path) -> Learned:
    """One job on one simulated cluster."""
    ready = prepared(lesson, out)
    plan = plan_from(ready.prepared.plan | plan_of(lesson))
    job = simulated_job(ready, plan, train=True)
    rate = Steady(mbit(lesson.rate_mbit))
    line = AccessLink(up=rate, down=rate)
    build = Build(
        kind="board",
        seconds_per_gmac=0.0,
        seconds_per_batch=BATCH_S * lesson.batch_size / BATCH,
        jitter=JITTER,
        memory_mb=4096,
        line=line,
    )
    tally = Metrics(lesson.workers)
    settings = Settings(seed=lesson.seed, builds=[build] * lesson.workers, home_line=line, jobs=[job])
    world = World(settings, observers=[tally])
    try:
        world.begin()
        world.run(limit_s=1e7)
        outcome = tally.outcome(world, job.spec.job)
    finally:
        close(job)
    return Learned(
        accuracies=tuple(point.accuracy or 0.0 for point in outcome.evaluations),
        at_s=tuple(point.at_s for point in outcome.evaluations),
        trouble="" if outcome.state == "finished" else f"{outcome.state}: {outcome.reason}",
    )


def plan_of(lesson: Lesson) -> dict[str, Any]:
    shape = {"topology": "tree", "aggregators": lesson.aggregators} if lesson.aggregators else {}
    return {
        **shape,
        "pace": lesson.pace,
        "momentum": lesson.momentum,
        "staleness": lesson.staleness,
        "learning_rate": lesson.learning_rate,
        "weight_decay": WEIGHT_DECAY,
        "batch_size": lesson.batch_size,
        "workers_min": lesson.workers,
        "workers_max": lesson.workers,
        "until": {"epochs": lesson.epochs},
        "lease_s": LEASE_S,
        "seed": lesson.seed,
    }


def prepared(lesson: Lesson, out: Path) -> ReadyTask:
    path, entry = find_task(str(ROOT / TASKS[lesson.network]))
    kwargs, chosen = ARGUMENTS.get(lesson.network, {}), {"seed": lesson.seed}
    return asyncio.run(make_ready(path, entry, out=out, kwargs=kwargs, plan=chosen, on_progress=lambda text: None))


def main(arguments: Sequence[str]) -> None:
    out = Path(arguments[arguments.index("--out") + 1])
    for line in sys.stdin:
        learned = learn(Lesson(**json.loads(line)), out)
        print(json.dumps(dataclasses.asdict(learned)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
