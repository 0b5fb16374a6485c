"""What a device without PyTorch can train, how exactly, how fast, and what that takes.

Eleven tasks (``portable_tasks``), one for each family of layers, are captured and verified as
``shoal train --portable`` does it: a step from the first model beside PyTorch's own in float64, on batches in which no
ReLU lies within float32's rounding of zero.

    worst_update_error    the largest distance of an update from PyTorch's, as a part of its length
    adamw_error           the same of AdamW's second step, where a gradient is not next to nothing
    speed_ratio           processor time of a step of 32 examples with one thread, onnxruntime's over PyTorch's
    ..._trainer_rss_mb    resident memory of a process that has trained five batches of LeNet
    install_mb            files of Shoal, onnxruntime and all that they need, with the bytecode that pip compiles;
                          ``install_bare_mb`` is without bytecode

``--quick`` captures the step and leaves the evaluation out.

    python -m benchmarks.portable --quick --json
    python -m benchmarks.portable --table    # which tasks of examples/ and papers/ are captured, and why others are not
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import finish, say

_BATCH = 32
_ADAMW = ("mlp", "encoder", "gru")
#: Beside the package itself: where its tasks are.
_ROOT = Path(__file__).parents[1]
_PLACES = ("examples/*/task.py", "examples/*/*_task.py", "papers/*/task.py", "papers/*/*task*.py")


def measured(name: str, *, inner: str = "sgd", quick: bool) -> dict[str, Any]:
    """One task captured, and its step timed beside PyTorch's."""
    import torch

    from benchmarks.portable_tasks import TASKS
    from shoal.plan import Plan
    from shoal.trainer.arrays import write_examples
    from shoal.trainer.placement import place
    from shoal.trainer.portable.capture import capture, settings_of
    from shoal.trainer.portable.run import GraphRun, StepRun
    from shoal.trainer.shards import Examples
    from shoal.trainer.steps import build_model

    torch.set_num_threads(1)
    task = TASKS[name]()
    model = build_model(task, 0)
    placed = place(task, model)
    plan = Plan(batch_size=_BATCH, learning_rate=0.01, inner=inner, lease_batches=32)
    settings = settings_of(plan, task=task, layout=placed.layout)
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_examples(task.examples("train"), Path(folder))
        examples = Examples([Path(folder) / shard.sha256 for shard in manifest.shards])
        began_s = time.process_time()
        graphs = capture(task, model, placed, settings, train=examples, test=examples, evaluates=not quick)
        found = {"error": graphs.error, "bytes": len(graphs.train), "capture_cpu_s": time.process_time() - began_s}
        if inner != "sgd":
            return found
        rows = examples.slice(0, _BATCH)
        import numpy as np

        from shoal.trainer.flat import read_into
        from shoal.trainer.portable.draws import draw_all

        vector = np.empty(placed.layout.size, np.float32)
        read_into(vector, model, placed.layout)
        ours = StepRun(GraphRun(graphs.train, threads=1), graphs.states)
        ours.begin(placed.layout.parameters_size)
        theirs = torch.optim.SGD(model.parameters(), lr=0.01)
        model.train()

        def run_onnx() -> None:
            draws = draw_all(graphs.draws, _BATCH, 1)
            ours.step(vector, rows, rate=0.01, weight_decay=0.0, draws=draws)

        def run_torch() -> None:
            columns = {column: torch.from_numpy(np.array(values)) for column, values in rows.items()}
            x, y = task.collate((columns["x"], columns["y"]), training=True)
            theirs.zero_grad()
            task.loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            theirs.step()
            sum(parameter.sum().item() for parameter in list(model.parameters())[:1])

        turns = 8 if quick else 30
        found["ratio"] = _least_s(run_onnx, turns) / _least_s(run_torch, turns)
    return found


def _least_s(run: Callable[[], None], turns: int) -> float:
    """The least processor time of some runs: what a busy machine adds does not count."""
    run()
    times = []
    for _ in range(turns):
        began_s = time.process_time()
        run()
        times.append(time.process_time() - began_s)
    return min(times)


# Memory ------------------------------------------------------------------------------------------------


def prepare_lenet(folder: Path) -> dict[str, Any]:
    """LeNet's files, for two trainers."""
    import hashlib

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
    settings = settings_of(Plan(batch_size=_BATCH), task=task, layout=placed.layout)
    graphs = capture(task, model, placed, settings, train=Examples(paths), test=Examples(paths))
    file = folder / "graphs"
    with file.open("wb") as out:
        graphs.write(out)
    assert hashlib.sha256(file.read_bytes()).digest()
    return {
        "bundle_dir": str(_ROOT / "benchmarks"),
        "entry": "portable_tasks:LeNet",
        "train": [str(path) for path in paths],
        "layout": placed.layout.to_json(),
        "graphs": str(file),
        "initial": first.model,
    }


def resident(engine: str, given: dict[str, Any]) -> dict[str, Any]:
    """Train five batches in this process; what it holds then."""
    import numpy as np

    from shoal.learning.layout import Layout
    from shoal.trainer.prepared_job import first_model
    from shoal.trainer.protocol import TrainerSettings
    from shoal.trainer.shared import SharedVectors

    layout = Layout.from_json(given["layout"])
    plain = given | {"layout": layout, "train": tuple(given["train"])}
    settings = TrainerSettings(**plain, seed=0, batch_size=_BATCH, learning_rate=0.01)
    shared = SharedVectors.create(layout.size)
    if engine == "onnx":
        from shoal.trainer.portable.steps import OnnxTrainer as Trainer
    else:
        from shoal.trainer.steps import TorchTrainer as Trainer  # type: ignore[assignment]
    trainer = Trainer(settings, shared)
    _, first = first_model(Path(given["initial"]))
    shared.model[:] = first
    result = trainer.train(0, [0, 1, 2, 3, 4])
    assert result.finite
    assert np.any(shared.update)
    assert ("torch" in sys.modules) == (engine == "torch")
    status = Path("/proc/self/status").read_text()
    kb = re.search(r"VmRSS:\s+(\d+)", status)
    assert kb is not None
    return {"rss_mb": int(kb.group(1)) / 1024}


# What is installed -------------------------------------------------------------------------------------


def installed_mb() -> tuple[float, float]:
    """Megabytes of all packages that a device without PyTorch installs: with bytecode, and without."""
    wanted, found = ["shoal", "onnxruntime"], set[str]()
    whole = bare = 0
    while wanted:
        name = re.split(r"[ ;<>=!\[(~]", wanted.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in package.files or ():
            path = Path(str(file.locate()))
            size = path.stat().st_size if path.is_file() else 0
            whole += size
            bare += 0 if path.suffix == ".pyc" else size
        wanted += [need for need in package.requires or () if "extra ==" not in need]
    # Shoal itself may be installed as a link to its source.
    own = sum(path.stat().st_size for path in (_ROOT / "src" / "shoal").rglob("*.py"))
    return (whole + 2 * own) / 1e6, (bare + own) / 1e6


# Tasks of the repository -------------------------------------------------------------------------------


def table() -> list[dict[str, Any]]:
    """Each task of examples/ and papers/, and what ``shoal train --portable`` would say of it."""
    import asyncio

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


def _part(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.portable", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def _said(process: subprocess.Popen[str], *, timeout_s: float = 1800.0) -> list[dict[str, Any]]:
    out, _ = process.communicate(timeout=timeout_s)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def run(*, quick: bool) -> dict[str, Any]:
    from benchmarks.portable_tasks import TASKS

    names = list(TASKS)
    flags = ("--quick",) if quick else ()
    # Two at a time: each has one thread.
    halves = [_part("--models", ",".join(names[start::2]), *flags) for start in range(2)]
    rows = [row for half in halves for row in _said(half)]
    with tempfile.TemporaryDirectory() as folder:
        others = [_part("--models", ",".join(_ADAMW), "--inner", "adamw", "--quick")]
        given = json.dumps(prepare_lenet(Path(folder)))
        adamw = _said(others[0])
        memory = {engine: _said(_part("--resident", engine, "--given", given))[0] for engine in ("onnx", "torch")}
    captured = [row for row in rows if "error" in row]
    for row in rows:
        say(f"{row['model']:12} " + (row.get("refused") or f"{row['error']:.1e} {row.get('ratio', 0):.2f}"))
    whole, bare = installed_mb()
    ratios = {row["model"]: round(row["ratio"], 3) for row in captured}
    return {
        "models": len(names),
        "captured": len(captured),
        "worst_update_error": max(row["error"] for row in captured),
        "adamw_error": max(row["error"] for row in adamw),
        "onnx_trainer_rss_mb": memory["onnx"]["rss_mb"],
        "torch_trainer_rss_mb": memory["torch"]["rss_mb"],
        "install_mb": whole,
        "install_bare_mb": bare,
        "speed_ratio": ratios,
        "speed_ratio_mean": math.exp(sum(map(math.log, ratios.values())) / len(ratios)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--table", action="store_true", help="say of each task of the repository whether it is captured"
    )
    parser.add_argument("--models", default="", help=argparse.SUPPRESS)
    parser.add_argument("--inner", default="sgd", help=argparse.SUPPRESS)
    parser.add_argument("--resident", default="", help=argparse.SUPPRESS)
    parser.add_argument("--given", type=json.loads, default={}, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.resident:
        finish(resident(given.resident, given.given))
    elif given.models:
        from shoal.trainer.portable.trace import Unportable

        for name in given.models.split(","):
            try:
                finish({"model": name, **measured(name, inner=given.inner, quick=given.quick)})
            except Unportable as error:
                finish({"model": name, "refused": str(error)})
    elif given.table:
        finish({"tasks": table()})
    else:
        finish(run(quick=given.quick))


if __name__ == "__main__":
    main()
