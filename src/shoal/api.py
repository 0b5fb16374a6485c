"""``shoal.fit`` and friends: train a task on local processes or on a cluster, and get the model back. No torch here."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.callbacks import Callback
from shoal.errors import Corrupt, JobFailed, Misuse, Unreachable
from shoal.handle import PATIENCE_S, Follower, Following, Job, closing_display, failure_with_logs
from shoal.plan import Plan, Until
from shoal.progress import Display, display_here
from shoal.result import Result as Result
from shoal.runtime.paths import default_home
from shoal.runtime.plain_operator import PlainOperator, at_home, for_a_while
from shoal.task import Task
from shoal.trainer.find import source_of
from shoal.trainer.guard import stop_if_importing

if TYPE_CHECKING:
    from torch import nn

    from shoal.wire.messages import Status

#: A manager on this machine that does not answer for this long is gone.
LOCAL_PATIENCE_S = 30.0


def fit(
    task: Task,
    *,
    workers: int = 4,
    until: Until | None = None,
    plan: Plan | None = None,
    start: str | Path | Result | None = None,
    cluster: str | Path | None = None,
    save: str | Path | None = None,
    on_status: Callable[[Status], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Train ``task`` and wait for the result.

    Without ``cluster``, ``workers`` agents start on this machine for the time of the call: real processes, real TLS,
    a throw-away authority. With ``cluster`` (the home of a cluster you operate, such as ``~/.shoal``) the same job
    runs on its nodes, and ``workers`` is the most it may use. ``plan`` says how, such as ``Plan(topology="auto")`` or
    ``Plan(pace="async")``. ``save`` names the file the model is written to.

    ``start`` is a model to begin with: a safetensors file, a folder that Hugging Face's ``save_pretrained`` wrote, an
    earlier result, or with ``cluster`` the id of a job of it, or ``JOB@VERSION``. Tensors with the same name and shape
    are copied; the others are named.

    Ctrl-C stops the job: its last version is saved, and the result has it. A second Ctrl-C leaves at once. If the job
    fails, ``shoal.errors.JobFailed`` names the job and where its logs are. ``progress=False`` shows nothing; if the
    job trains nothing for a minute, the logger ``shoal`` warns of it and says why.
    """
    share = {"workers_max": workers} if cluster else {"workers_min": workers, "workers_max": workers}
    with tempfile.TemporaryDirectory(prefix="shoal-task-") as scratch:
        stop_if_importing()
        return fitted(
            TaskSource(*source_of(task, Path(scratch)), task.arguments, task),
            workers=workers,
            chosen=_chosen(plan, until, share),
            start=_start(start),
            cluster=cluster,
            save=save,
            on_status=on_status,
            callbacks=callbacks,
            progress=progress,
        )


class TaskSource(NamedTuple):
    """A task by the file that defines it."""

    path: Path
    entry: str
    arguments: dict[str, Any]
    #: The task itself, if it was made in this program.
    task: Task | None = None


def fitted(
    source: TaskSource,
    *,
    workers: int,
    chosen: dict[str, Any],
    start: str | Path = "",
    cluster: str | Path | None = None,
    save: str | Path | None = None,
    on_status: Callable[[Status], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Do what ``fit`` does, with a plan as plain values."""
    stop_if_importing()
    if workers < 1:
        raise Misuse(f"training takes at least one worker, not {workers}")
    began_s = time.monotonic()
    place = at_home(Path(cluster).expanduser()) if cluster else for_a_while(workers)
    watch = Following(
        callbacks=tuple(callbacks),
        on_status=on_status or (lambda status: None),
        stops_on_interrupt=True,
        patience_s=PATIENCE_S if cluster else LOCAL_PATIENCE_S,
        save=Path(save) if save else None,
        began_s=began_s,
    )
    with closing_display(display_here(wanted=progress)) as display, PlainOperator(place) as operator:
        job = _submitted(operator, source, chosen, start, display)
        try:
            return Follower(job, operator, display, watch).run()
        except (JobFailed, Unreachable) as error:
            if cluster is None:
                raise failure_with_logs(error, job, operator) from error
            error.add_note(f"`shoal jobs show {job.id} --traceback` shows more of it")
            raise
        except BaseException as error:
            if cluster is not None:
                error.add_note(f"job {job.id} may still run: shoal.job({job.id!r}, cluster={str(cluster)!r})")
            raise


def submit(
    task: Task,
    *,
    workers: int | None = None,
    until: Until | None = None,
    plan: Plan | None = None,
    start: str | Path | Result | None = None,
    cluster: str | Path | None = None,
    progress: bool = True,
) -> Job:
    """Start ``task`` on a cluster that runs, and return at once with a handle; the job needs this program no longer.

    ``cluster`` is the home of the cluster you operate, ``~/.shoal`` if not said. ``workers`` is the most it may use.
    """
    stop_if_importing()
    if workers is not None and workers < 1:
        raise Misuse(f"training takes at least one worker, not {workers}")
    home = _home(cluster)
    chosen = _chosen(plan, until, {} if workers is None else {"workers_max": workers})
    with closing_display(display_here(wanted=progress)) as display, PlainOperator(at_home(home)) as operator:
        # Before anything is prepared: a cluster that does not run should be told at once.
        operator.ask(lambda each: each.jobs_called(""))
        with tempfile.TemporaryDirectory(prefix="shoal-task-") as scratch:
            source = TaskSource(*source_of(task, Path(scratch)), task.arguments, task)
            job = _submitted(operator, source, chosen, _start(start), display)
        display.note(f"job {job.id} is queued")
    return Job(job.id, home, task=task, whole=job.whole)


def jobs(cluster: str | Path | None = None, *, ended_page: int = 0) -> list[Job]:
    """Return the latest jobs of a cluster that ended, oldest first, and then its open ones.

    ``ended_page``: this page of all ended jobs instead, the latest first. Pages are counted from 1; behind the last
    one the list is empty.
    """
    stop_if_importing()
    if ended_page < 0:
        raise Misuse(f"pages of ended jobs are counted from 1, not {ended_page}")
    home = _home(cluster)
    with PlainOperator(at_home(home)) as operator:
        told = operator.ask(lambda each: each.ended_jobs(ended_page) if ended_page else each.jobs_called(""))
        return [Job(view.job, home) for view in told.jobs]


def job(id: str, cluster: str | Path | None = None, *, task: Task | None = None) -> Job:
    """The job with this id, or this start of an id. With its ``task``, its result can make the model."""
    from shoal.cli.select_job import pick_job

    stop_if_importing()
    home = _home(cluster)
    if not id:
        raise Misuse("a job is found by its id: shoal.jobs() lists them")
    with PlainOperator(at_home(home)) as operator:
        found = pick_job(operator.ask(lambda each: each.jobs_called(id)), id).job
    return Job(found, home, task=task)


def load(path: str | Path, task: Task, *, seed: int = 0) -> nn.Module:
    """The task's model with the values of a safetensors file, in evaluation mode.

    ``seed`` is the job's: what ``Task.model`` draws and does not keep in the file is drawn again.
    """
    from shoal.trainer.trained import trained_model

    if not Path(path).is_file():
        raise Misuse(f"there is no file {path}: `shoal model pull` writes one")
    try:
        return trained_model(task, Path(path), seed=seed)
    except (KeyError, RuntimeError, Corrupt, Misuse) as error:
        raise Misuse(f"{path} does not hold a model of {type(task).__name__}: {error}") from None


def _home(cluster: str | Path | None) -> Path:
    return Path(cluster).expanduser() if cluster else default_home()


def _chosen(plan: Plan | None, until: Until | None, share: dict[str, int]) -> dict[str, Any]:
    """What differs from the task's own plan, as plain values."""
    from shoal.wire.encoding import to_json

    ends = {} if until is None else {"until": until}
    return {**(to_json(plan) if plan else {}), **share, **ends}


def _start(start: str | Path | Result | None) -> str | Path:
    if isinstance(start, Result):
        if start.path is None:
            raise Misuse(f"job {start.job} has no model to start from")
        return start.path
    return start or ""


def _submitted(
    operator: PlainOperator, source: TaskSource, chosen: dict[str, Any], start: str | Path, display: Display
) -> Job:
    path, entry, arguments, task = source
    ready = operator.ask_telling(
        lambda each, tell: each.prepare(path, entry, kwargs=arguments, plan=chosen, start=start, on_progress=tell),
        display.step,
    )
    for note in ready.notes:
        display.note(note)
    found = operator.ask_telling(lambda each, tell: each.submit(ready, plan=chosen, on_progress=tell), display.step)
    return Job(found, operator.home, task=task, operator=operator, whole=bool(start))
