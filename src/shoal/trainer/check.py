"""Check a task before it is sent: is a lease a pure function, what crosses the network, what is measured. No torch.

Devices train a lease again when one of them is lost, so the same lease must give the same update: in a second process,
and after another lease.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.plan import Plan
from shoal.trainer.bundle import unpack
from shoal.trainer.host import TrainerHost
from shoal.trainer.package import ReadyTask, trainer_settings
from shoal.trainer.protocol import EvalResult

#: Held-out examples that are evaluated, to see which metrics there are.
_JUDGED_MAX = 64

_BATCHES_MAX = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCheck:
    """What a check of a task found."""

    #: The first tensor in which two updates of one lease differ, and when; `None` if they are the same.
    differs: str | None
    layout: Layout
    base_bytes: int
    #: Seconds that a batch took to train.
    batch_s: float
    engine: str
    judged: EvalResult | None

    @property
    def is_pure(self) -> bool:
        return self.differs is None


async def check_task(ready: ReadyTask, plan: Plan, *, local_folder: str = "", threads: int = 1) -> TaskCheck:
    """Train one lease three times in two processes, with another lease in between, and compare every value."""
    prepared = ready.prepared
    with tempfile.TemporaryDirectory(prefix="shoal-check-") as directory:
        unpack(ready.bundle, Path(directory))
        settings = trainer_settings(
            ready,
            plan,
            bundle_dir=directory,
            torch_threads=threads,
            is_local=plan.data == "local",
            local_folder=local_folder,
        )
        host = TrainerHost()
        try:
            loaded = await host.start(settings)
            held = loaded.train_examples
            if not held:
                raise Misuse("there are no examples to train on here: name a folder of them with --data")
            # A device evaluates and trains its new examples first, once. After this lease none is new, so that the
            # leases to compare train the same examples.
            fresh = (await _lease(host, prepared.model, plan, held, which=1)).fresh if settings.is_local else None
            first = await _lease(host, prepared.model, plan, held, which=0)
            other = await _lease(host, prepared.model, plan, held, which=1)
            again = await _lease(host, prepared.model, plan, held, which=0)
            judged = await _judge(host, prepared.test.examples) or fresh
            await host.kill()
            await host.start(dataclasses.replace(settings, local_seen=held))
            elsewhere = await _lease(host, prepared.model, plan, held, which=0)
        finally:
            await host.kill()
            await host.stop()
    if len({lease.held for lease in (first, other, again, elsewhere)}) > 1:
        raise Misuse("the examples changed while the task was checked: check it with a copy of the folder")
    differs = _difference(prepared.layout, first.update, again.update, "after another lease in the same process")
    differs = differs or _difference(prepared.layout, first.update, elsewhere.update, "in another process")
    base_bytes = sum(map(os.path.getsize, prepared.base_paths))
    batch_s = min(first.batch_s, other.batch_s, again.batch_s)
    return TaskCheck(
        differs=differs,
        layout=prepared.layout,
        base_bytes=base_bytes,
        batch_s=batch_s,
        engine=loaded.engine,
        judged=judged,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    """The result of a lease."""

    update: np.ndarray
    batch_s: float
    #: How many local examples this device had.
    held: int
    #: The evaluation on examples that were new on this device, if there were some.
    fresh: EvalResult | None


async def _lease(host: TrainerHost, model: str, plan: Plan, examples: int, *, which: int) -> _Trained:
    """Train one lease from the first model."""
    from shoal.trainer.prepared_job import first_model

    _, flat = await asyncio.to_thread(first_model, Path(model))
    host.shared.model[:] = flat
    count = min(plan.lease_batches, _BATCHES_MAX)
    if plan.data == "local":
        result = await host.learn(0, which, min(examples, count * plan.batch_size))
    else:
        total = -(-examples // plan.batch_size)
        numbers = [(which * count + number) % total for number in range(min(count, total))]
        result = await host.train(0, numbers)
    if not result.finite:
        raise Misuse("training gave values that are not finite: try a lower learning rate")
    batches = -(-result.examples // plan.batch_size)
    fresh = EvalResult(examples=result.fresh, metrics=result.fresh_metrics, seconds=0.0) if result.fresh else None
    return _Trained(
        update=host.shared.update.copy(), batch_s=result.seconds / max(1, batches), held=result.held, fresh=fresh
    )


async def _judge(host: TrainerHost, examples: int) -> EvalResult | None:
    return await host.evaluate(0, min(examples, _JUDGED_MAX)) if examples else None


def _difference(layout: Layout, first: np.ndarray, second: np.ndarray, when: str) -> str | None:
    ours, theirs = layout.views(first), layout.views(second)
    for name in ours:
        if ours[name].tobytes() != theirs[name].tobytes():
            gap = float(np.abs(ours[name] - theirs[name]).max())
            return f"{name} differs by up to {gap:.3g} {when}"
    return None
