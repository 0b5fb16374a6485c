"""What a device without PyTorch can train, how exactly, how fast, and what that takes.

Eleven tasks (``portable_tasks``), one for each family of layers, and the models, losses, optimisers and augmentations
of ``portable_more_tasks`` are captured and verified as
``shoal train --portable`` does it: a step from the first model beside PyTorch's own in float64, on batches in which no
ReLU lies within float32's rounding of zero.

    worst_update_error    the largest distance of an update from PyTorch's, as a part of its length
    adamw_error           the same of AdamW's second step, where a gradient is not next to nothing
    speed_ratio           processor time of a step of 32 examples with one thread, onnxruntime's over PyTorch's, with
                          the task's own optimiser: the median of pairs of steps, one by each, in turn;
                          ``slowest_ratio_to_torch`` is the largest, of ``slowest_model``
    ..._trainer_rss_mb    resident memory of an agent's confined trainer that has trained five batches of LeNet;
                          ``..._peak_mb`` is the most that it ever held
    install_mb            files of Shoal, onnxruntime and all that they need, with the bytecode that pip compiles;
                          ``install_bare_mb`` is without bytecode; ``install_trimmed_mb`` is what is left, and what
                          Python compiles of it, where a device removes what nothing of it opens (docs/portable.md)
    cpu_s                 processor time of all of it
    seconds               how long all of it took, by the clock; a machine that does other work too takes longer

``--quick`` has the eleven families only. It captures the step, leaves the evaluation out, and times fewer steps.

    python -m benchmarks.portable --quick --json
    python -m benchmarks.portable --table    # which tasks of examples/ and papers/ are captured, and why others are not
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import queue
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.portable_install import installed_mb, trimmed_mb
from benchmarks.portable_memory import BATCH, resident
from testbed.results import finish, say

#: Those that take longest come first, so that both workers end at about the same time.
MODELS = ("lstm", "gru", "resnet", "transformer", "encoder", "mobile", "dropout", "mlp", "waves", "lenet", "unet")
_ADAMW = ("mlp", "encoder", "gru")
#: Beside the package itself: where its tasks are.
_ROOT = Path(__file__).parents[1]
_PLACES = ("examples/*/task.py", "examples/*/*_task.py", "papers/*/task.py", "papers/*/*task*.py")


def measured(name: str, *, inner: str = "sgd", quick: bool) -> dict[str, Any]:
    """One task captured, and its step timed beside PyTorch's."""
    import torch

    from shoal.plan import Plan
    from shoal.trainer.arrays import write_examples
    from shoal.trainer.placement import place
    from shoal.trainer.portable.capture import capture, settings_of
    from shoal.trainer.portable.run import GraphRun, StepRun
    from shoal.trainer.shards import Examples
    from shoal.trainer.steps import build_model

    torch.set_num_threads(1)
    task = all_tasks()[name]()
    model = build_model(task, 0)
    placed = place(task, model)
    plan = Plan(batch_size=BATCH, learning_rate=0.01, inner=inner, lease_batches=32)
    settings = settings_of(plan, task=task, layout=placed.layout)
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_examples(task.examples("train"), Path(folder))
        examples = Examples([Path(folder) / shard.sha256 for shard in manifest.shards])
        began_s = time.process_time()
        graphs = capture(task, model, placed, settings, train=examples, test=examples, evaluates=not quick)
        found = {"error": graphs.error, "bytes": len(graphs.train), "capture_cpu_s": time.process_time() - began_s}
        if inner != "sgd":
            return found
        rows = examples.slice(0, BATCH)
        import numpy as np

        from shoal.trainer.flat import read_into
        from shoal.trainer.judging import loss_of
        from shoal.trainer.portable.capture import given_rows
        from shoal.trainer.portable.draws import draw_all
        from shoal.trainer.trial import lease_of

        vector = np.empty(placed.layout.size, np.float32)
        read_into(vector, model, placed.layout)
        ours = StepRun(GraphRun(graphs.train, threads=1), graphs.states)
        ours.begin(placed.layout.parameters_size)
        theirs = task.optimizer(model) or torch.optim.SGD(model.parameters(), lr=0.01)
        lease = lease_of(task, placed)
        model.train()

        def run_onnx() -> None:
            draws = draw_all(graphs.draws, BATCH, 1)
            ours.step(vector, rows, rate=0.01, weight_decay=0.0, draws=draws)

        def run_torch() -> None:
            columns = {column: torch.from_numpy(np.array(values)) for column, values in rows.items()}
            batch = task.collate(given_rows(columns), training=True)
            theirs.zero_grad()
            loss_of(task, model, batch, lease).backward()  # type: ignore[no-untyped-call]
            theirs.step()
            sum(parameter.sum().item() for parameter in list(model.parameters())[:1])

        found["ratio"] = paired_ratio(run_onnx, run_torch, 9 if quick else 41)
    return found


def all_tasks() -> dict[str, Any]:
    from benchmarks.portable_more_tasks import MORE_TASKS
    from benchmarks.portable_tasks import TASKS

    return MORE_TASKS | TASKS


def paired_ratio(ours: Callable[[], None], theirs: Callable[[], None], pairs: int) -> float:
    """The median of processor time of ours over theirs, each pair one after the other and each second one the other
    way round: what else the machine does slows both, and neither always finds the other's data in the caches."""
    ours()
    theirs()
    ratios = []
    for pair in range(pairs):
        first, second = (theirs, ours) if pair % 2 else (ours, theirs)
        first_s, second_s = _cpu_s(first), _cpu_s(second)
        ratios.append(second_s / first_s if pair % 2 else first_s / second_s)
    return median(ratios)


def _cpu_s(run: Callable[[], None]) -> float:
    began_s = time.process_time()
    run()
    return time.process_time() - began_s


# Memory ------------------------------------------------------------------------------------------------


def prepare_lenet(folder: Path) -> dict[str, Any]:
    """LeNet's files, for two trainers."""
    from benchmarks.portable_tasks import LeNet
    from shoal.plan import Plan
    from shoal.trainer.arrays import write_examples
    from shoal.trainer.first_files import write_first
    from shoal.trainer.placement import place
    from shoal.trainer.portable.capture import capture, settings_of
    from shoal.trainer.shards import Examples
    from shoal.trainer.steps import build_model

    task = LeNet()
    model = build_model(task, 0)
    placed = place(task, model)
    first = write_first(placed, out=folder, key="lenet", start=None, report=lambda line: None)
    paths = [folder / shard.sha256 for shard in write_examples(task.examples("train"), folder).shards]
    settings = settings_of(Plan(batch_size=BATCH), task=task, layout=placed.layout)
    graphs = capture(task, model, placed, settings, train=Examples(paths), test=Examples(paths))
    file = folder / "graphs"
    with file.open("wb") as out:
        graphs.write(out)
    return {
        "bundle_dir": str(_ROOT / "benchmarks"),
        "entry": "portable_tasks:LeNet",
        "train": [str(path) for path in paths],
        "layout": placed.layout.to_json(),
        "graphs": str(file),
        "initial": first.model,
    }


# Tasks of the repository -------------------------------------------------------------------------------


def table() -> list[dict[str, Any]]:
    """Each task of examples/ and papers/, and what ``shoal train --portable`` would say of it."""
    from shoal.trainer.find import find_task
    from shoal.trainer.package import laid_over, make_ready, plan_from
    from shoal.trainer.portable.capturing import capture_ready

    async def asked(path: Path) -> str:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found, entry = find_task(str(path))
                ready = await make_ready(found, entry, out=Path(folder))
            except Exception as error:
                return f"not prepared: {error}"
            plan = plan_from(laid_over(ready.prepared.plan, {}))
            return (await capture_ready(ready, plan, folder=Path(folder))).told

    files = sorted({path for place in _PLACES for path in _ROOT.glob(place)})
    rows = []
    for path in files:
        name = str(path.relative_to(_ROOT))
        rows.append({"task": name, "told": asyncio.run(asked(path))})
        say(f"{name:40} {rows[-1]['told']}")
    return rows


# The whole ---------------------------------------------------------------------------------------------


class _Worker:
    """A process with one thread that captures what it is told, one after the other: PyTorch is imported once."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.portable", "--worker"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, item: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(item) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"a process ended with {item['model']}")

    def close(self) -> None:
        self._process.communicate(timeout=60)


def serve() -> None:
    """A worker's side."""
    from shoal.trainer.portable.refusal import Unportable

    for line in sys.stdin:
        item = json.loads(line)
        try:
            if folder := item.pop("files", ""):
                found = prepare_lenet(Path(folder))
            else:
                found = item | measured(item["model"], inner=item["inner"], quick=item["quick"])
        except Unportable as error:
            found = item | {"refused": str(error)}
        print(json.dumps(found), flush=True)


def answers(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What workers say to each item; two work at a time, and take what is left."""
    workers: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    made = [_Worker(), _Worker()]

    def ask(item: dict[str, Any]) -> dict[str, Any]:
        worker = workers.get()
        try:
            return worker.ask(item)
        finally:
            workers.put(worker)

    try:
        for worker in made:
            workers.put(worker)
        with ThreadPoolExecutor(len(made)) as threads:
            return list(threads.map(ask, items))
    finally:
        for worker in made:
            worker.close()


async def taken(given: dict[str, Any]) -> tuple[dict[str, float], dict[str, float], float]:
    """Memory of the two trainers, and disk of a trimmed device: what one takes says nothing of the others."""
    return await asyncio.gather(resident("onnx", given), resident("torch", given), asyncio.to_thread(trimmed_mb, given))


def run(*, quick: bool) -> dict[str, Any]:
    began_s = time.monotonic()
    names = MODELS if quick else tuple(all_tasks())
    items = [{"model": name, "inner": "sgd", "quick": quick} for name in names]
    items += [{"model": name, "inner": "adamw", "quick": True} for name in _ADAMW]
    with tempfile.TemporaryDirectory() as folder:
        *rows, given = answers([*items, {"model": "lenet", "files": folder}])
        onnx, torch, trimmed = asyncio.run(taken(given))
    adamw = [row for row in rows if row["inner"] == "adamw"]
    rows = [row for row in rows if row["inner"] != "adamw"]
    captured = [row for row in rows if "error" in row]
    for row in rows:
        say(f"{row['model']:12} " + (row.get("refused") or f"{row['error']:.1e} {row.get('ratio', 0):.2f}"))
    whole, bare = installed_mb()
    ratios = {row["model"]: round(row["ratio"], 3) for row in captured}
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "models": len(names),
        "captured": len(captured),
        "worst_update_error": max(row["error"] for row in captured),
        "adamw_error": max(row["error"] for row in adamw),
        "onnx_trainer_rss_mb": onnx["rss_mb"],
        "onnx_trainer_peak_mb": onnx["peak_mb"],
        "torch_trainer_rss_mb": torch["rss_mb"],
        "install_mb": whole,
        "install_bare_mb": bare,
        "install_trimmed_mb": trimmed,
        "speed_ratio": ratios,
        "slowest_ratio_to_torch": max(ratios.values()),
        "slowest_model": max(ratios, key=lambda model: ratios[model]),
        "refused": {row["model"]: row["refused"] for row in rows if "refused" in row},
        "speed_ratio_mean": math.exp(sum(map(math.log, ratios.values())) / len(ratios)),
        "cpu_s": sum(each.ru_utime + each.ru_stime for each in used),
        "seconds": time.monotonic() - began_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--table", action="store_true", help="say of each task of the repository whether it is captured"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        serve()
    elif given.table:
        finish({"tasks": table()})
    else:
        finish(run(quick=given.quick))


if __name__ == "__main__":
    main()
