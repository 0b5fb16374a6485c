"""``shoal.fit``: train a task on local processes or on a cluster, and get the model back. No torch here."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import Misuse, ShoalError
from shoal.plan import Plan, Until
from shoal.states import JobState
from shoal.task import Task
from shoal.trainer.find import source_of
from shoal.trainer.guard import stop_if_importing

if TYPE_CHECKING:
    from torch import nn

    from shoal.wire.messages import JobView, Status

POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a job came to."""

    job: str
    state: JobState
    reason: str
    #: Share of held-out examples that are right; None if the task has none.
    accuracy: float | None
    loss: float | None
    seconds: float
    version: int
    workers: int
    #: The model as a safetensors file.
    path: Path
    task: Task
    #: With which the job built its model.
    seed: int = 0

    def model(self) -> nn.Module:
        """The task's model with the trained parameters, in evaluation mode."""
        from shoal.trainer.trained import trained_model

        return trained_model(self.task, self.path, seed=self.seed)


def fit(
    task: Task,
    *,
    workers: int = 4,
    until: Until | None = None,
    plan: Plan | None = None,
    cluster: str | Path | None = None,
    save: str | Path | None = None,
    on_status: Callable[[Status], None] | None = None,
) -> Result:
    """Train ``task`` and wait for the result.

    Without ``cluster``, ``workers`` agents start on this machine for the time of the call: real processes, real TLS,
    a throw-away authority. With ``cluster`` (the home of a cluster you operate, such as ``~/.shoal``) the same job
    runs on its nodes, and ``workers`` is the most it may use. ``plan`` says how, such as ``Plan(shape="auto")`` or
    ``Plan(pace="async")``. ``save`` names the file the model is written to.
    """
    stop_if_importing()
    if workers < 1:
        raise Misuse(f"training takes at least one worker, not {workers}")
    work = _fit(
        task,
        workers=workers,
        until=until,
        plan=plan,
        cluster=Path(cluster).expanduser() if cluster else None,
        save=Path(save) if save else None,
        on_status=on_status or (lambda status: None),
    )
    return _run(work)


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, also where an event loop runs already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[Result | BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="shoal-fit")
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


async def _fit(
    task: Task,
    *,
    workers: int,
    until: Until | None,
    plan: Plan | None,
    cluster: Path | None,
    save: Path | None,
    on_status: Callable[[Status], None],
) -> Result:
    from shoal.runtime.operator import Operator
    from shoal.wire.encoding import to_json

    path, entry = source_of(task)
    changes: dict[str, Any] = {"workers_max": workers} if cluster else {"workers_min": workers, "workers_max": workers}
    if until is not None:
        changes["until"] = until
    chosen = {**(to_json(plan) if plan else {}), **changes}
    target = save or Path(tempfile.mkdtemp(prefix="shoal-")) / "model.safetensors"
    started_s = time.monotonic()
    async with _home(cluster, workers) as home, Operator.open(home) as operator:
        ready = await operator.prepare(path, entry, kwargs=task.arguments, plan=chosen)
        job = await operator.submit(ready, plan=chosen)
        while True:
            status = await operator.status(job)
            on_status(status)
            view = status.jobs[0]
            if view.state.is_ended:
                break
            await asyncio.sleep(POLL_S)
        if view.state is JobState.FAILED:
            raise ShoalError(f"job {job} failed: {view.reason}")
        await operator.pull_model(job, target)
    return _result(view, task=task, path=target, seconds=time.monotonic() - started_s)


def _result(view: JobView, *, task: Task, path: Path, seconds: float) -> Result:
    progress = view.progress
    return Result(
        job=view.job,
        state=view.state,
        reason=view.reason,
        accuracy=progress.accuracy if progress else None,
        loss=progress.loss if progress else None,
        seconds=seconds,
        version=progress.version if progress else 0,
        workers=len(progress.workers) if progress else 0,
        path=path,
        task=task,
        seed=view.plan.seed,
    )


@asynccontextmanager
async def _home(cluster: Path | None, workers: int) -> AsyncIterator[Path]:
    """The home of the cluster to train on: the given one, or one that lives as long as the call."""
    from shoal.runtime.local import LocalCluster

    if cluster is not None:
        yield cluster
        return
    async with LocalCluster(workers=workers) as local:
        yield local.home
