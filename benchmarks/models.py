"""The kinds of work that people bring, each as a small real job on two agents of one running cluster.

python -m benchmarks.models --json            every kind
python -m benchmarks.models --quick --json    ten of them, within two minutes
python -m benchmarks.models --real-size --json    LoRA on the shapes of Qwen2.5-0.5B
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import models_pure, models_real_size
from shoal.errors import ShoalError
from shoal.learning.layout import Layout
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.package import ReadyTask
from shoal.wire.messages import Status
from testbed.results import finish, say

KINDS_FILE = Path("benchmarks/models_tasks/kinds.py")
WORKERS = 2
#: The longest that one job may take.
JOB_S = 240.0

#: What every kind of work has, unless it says otherwise.
PLAN: dict[str, Any] = {"batch_size": 16, "learning_rate": 0.05, "workers_min": 2, "until": {"epochs": 3}}


@dataclass(frozen=True)
class Kind:
    """One kind of work: a task, what its plan has otherwise, and what must have come of it."""

    task: str
    plan: dict[str, Any] = field(default_factory=dict)
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: The metric that tells whether it learned, and the least (or with ``lower`` the most) it may end with.
    metric: str = "accuracy"
    goal: float = 0.6
    lower: bool = False
    needs: tuple[str, ...] = ()
    quick: bool = False

    def is_met(self, metrics: Mapping[str, float]) -> bool:
        found = metrics.get(self.metric)
        return found is not None and (found <= self.goal if self.lower else found >= self.goal)


_LORA = {"batch_size": 4, "lease_batches": 1, "learning_rate": 0.5, "until": {"epochs": 2}}

KINDS: dict[str, Kind] = {
    "classifier": Kind("Classifier", quick=True),
    "cnn_batchnorm": Kind("CnnBatchNorm", {"until": {"epochs": 5}}, quick=True),
    "schedule": Kind("Classifier", {"schedule": "warmup 5 cosine 60", "learning_rate": 0.1}),
    "frozen_backbone": Kind("FrozenBackbone", {"until": {"epochs": 5}}, quick=True),
    "lora": Kind("Lora", _LORA, metric="loss", goal=7.7, lower=True, needs=("peft", "transformers"), quick=True),
    "bf16_base": Kind(
        "Lora", _LORA, {"base": "bfloat16"}, metric="loss", goal=7.7, lower=True, needs=("peft", "transformers")
    ),
    "token_classification": Kind("TokenClassification", {"learning_rate": 0.5}, quick=True),
    "segmentation": Kind("Segmentation", {"learning_rate": 0.5}, goal=0.9),
    "adamw": Kind("Classifier", {"outer": "adamw", "outer_rate": 0.01}, quick=True),
    "inner_adamw": Kind("Classifier", {"inner": "adamw", "learning_rate": 0.01, "lease_batches": 8}),
    "own_optimizer": Kind("OwnOptimizer", {"lease_batches": 8}),
    "kept_optimizer": Kind("OwnOptimizer", {"inner_state": "kept"}),
    "regression": Kind("Regression", metric="mae", goal=1.5, lower=True, quick=True),
    "f1_auc": Kind("Faults", metric="auc", goal=0.8, quick=True),
    "autoencoder": Kind("Autoencoder", metric="loss", goal=4.0, lower=True, quick=True),
    "detection_ragged": Kind("Detection", {"until": {"epochs": 4}}, metric="loss", goal=1.2, lower=True),
    "iterable": Kind("Streamed"),
    "columns": Kind("Columns", metric="f1", goal=0.6, quick=True),
    "bytes": Kind("Bytes", {"until": {"epochs": 5}}, goal=0.4),
    "larger_than_disk": Kind("Classifier", {"shuffle": "window"}),
    "augmentation": Kind("Augmented", {"until": {"epochs": 5}}),
    "clipping": Kind("Classifier", {"clip_gradient": 1.0}),
    "accumulation": Kind("Classifier", {"accumulate": 2, "lease_batches": 2, "learning_rate": 0.1}),
    "mixed_precision": Kind("Classifier", {"precision": "bfloat16"}),
    "two_optimizers": Kind("TwoOptimizers"),
    "weighted_classes": Kind("WeightedClasses"),
    "fedprox": Kind("FedProx", {"lease_batches": 4}, metric="loss", goal=0.3, lower=True),
    "fedyogi": Kind("Classifier", {"outer": "yogi", "outer_rate": 0.01, "lease_batches": 4, "until": {"epochs": 6}}),
    "early_stopping": Kind("Classifier", {"until": {"epochs": 12, "plateaus": [{"metric": "loss", "patience": 2}]}}),
}


@dataclass(frozen=True)
class Done:
    """What came of one kind."""

    works: bool
    reason: str
    seconds: float
    update_bytes: float
    layout: Layout


async def run(names: list[str]) -> dict[str, Any]:
    """Prepare and train each kind; the next is prepared while one trains."""
    done: dict[str, Done] = {}
    ready: dict[str, ReadyTask] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-models-") as directory:
        cache = Path(directory) / "cache"
        async with LocalCluster(workers=WORKERS, cache=cache) as cluster, Operator.open(cluster.home) as operator:
            preparing = {name: asyncio.create_task(_prepare(operator, name)) for name in names[:1]}
            for number, name in enumerate(names):
                try:
                    ready[name] = await preparing[name]
                except ShoalError as error:
                    say(f"{name}: {error}")
                for following in names[number + 1 : number + 2]:
                    preparing[following] = asyncio.create_task(_prepare(operator, following))
                if name in ready:
                    done[name] = await _train(operator, name, ready[name])
                    verdict = "works" if done[name].works else "FAILS"
                    say(f"{name}: {verdict} in {done[name].seconds:.1f} s, {done[name].reason}")
            adamw_error = await models_pure.adamw_error(operator, cluster.home) if "adamw" in ready else None
            pure = await asyncio.to_thread(models_pure.compare, {n: (ready[n], _plan_of(n)) for n in ready})
    lora, head = _ratio(done.get("lora")), _ratio(done.get("frozen_backbone"))
    return {
        "kinds": len(names),
        "work": sum(each.works for each in done.values()),
        "fail": sorted(name for name in names if name not in done or not done[name].works),
        "lora_update_bytes": _bytes(done.get("lora")),
        "lora_update_ratio": lora,
        "head_update_bytes": _bytes(done.get("frozen_backbone")),
        "head_update_ratio": head,
        "outer_adamw_error": adamw_error,
        "same_bytes_as_before": models_pure.same_bytes_as_before(),
        "pure": f"{sum(pure.values())} of {len(pure)}",
        "impure": sorted(name for name, is_pure in pure.items() if not is_pure),
    }


def _plan_of(name: str) -> dict[str, Any]:
    return {**PLAN, **KINDS[name].plan}


async def _prepare(operator: Operator, name: str) -> ReadyTask:
    kind = KINDS[name]
    return await operator.prepare(KINDS_FILE, f"kinds:{kind.task}", name=name, kwargs=kind.kwargs, plan=_plan_of(name))


async def _train(operator: Operator, name: str, ready: ReadyTask) -> Done:
    kind, began_s = KINDS[name], time.monotonic()
    job = await operator.submit(ready, plan=_plan_of(name))
    status = await operator.status(job)
    while not status.jobs[0].state.is_ended and time.monotonic() - began_s < JOB_S:
        await asyncio.sleep(0.3)
        status = await operator.status(job)
    view = status.jobs[0]
    if not view.state.is_ended:
        await operator.stop(job)
    metrics = latest_metrics(status)
    told = ", ".join(f"{metric} {value:.3g}" for metric, value in metrics.items())
    is_good = view.state == "finished" and kind.is_met(metrics)
    reason = told if view.state == "finished" else f"{view.state}: {view.reason}"
    return Done(is_good, reason, time.monotonic() - began_s, update_bytes(status), ready.prepared.layout)


def latest_metrics(status: Status) -> dict[str, float]:
    """The figures of the last evaluation."""
    if not status.evaluations:
        return {}
    return {each.name: each.value for each in status.evaluations[-1].metrics if each.value is not None}


def update_bytes(status: Status) -> float:
    """Mean bytes that an update took on the wire, by the leader's own count."""
    progress = status.jobs[0].progress
    if progress is None:
        return 0.0
    plan = status.jobs[0].plan
    updates = sum(worker.batches for worker in progress.workers) / plan.lease_batches
    return progress.bytes_up / updates if updates else 0.0


def _bytes(done: Done | None) -> int | None:
    return None if done is None else round(done.update_bytes)


def _ratio(done: Done | None) -> float | None:
    """Bytes of an update over those of the tensors that are trained."""
    return None if done is None else done.update_bytes / (4 * done.layout.size)


def _installed(kind: Kind) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in kind.needs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ten kinds, within two minutes")
    parser.add_argument("--real-size", action="store_true", help="LoRA on 494 million frozen values in bfloat16")
    parser.add_argument("--only", action="append", default=[], metavar="KIND", help="this kind alone; may be repeated")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    if given.real_size:
        finish(asyncio.run(models_real_size.run()))
        return
    chosen = [name for name, kind in KINDS.items() if (kind.quick or not given.quick) and name in (given.only or KINDS)]
    missing = sorted(name for name in chosen if not _installed(KINDS[name]))
    if missing:
        say(f"not run, for want of packages (pip install transformers peft): {', '.join(missing)}")
    began_s = time.monotonic()
    result = asyncio.run(run([name for name in chosen if name not in missing]))
    finish({**result, "not_run": missing, "seconds": time.monotonic() - began_s})


if __name__ == "__main__":
    main()
