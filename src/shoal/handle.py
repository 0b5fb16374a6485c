"""A job on a cluster as an object: status, events, stop, result. Blocks; needs no event loop, and no torch."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.callbacks import STOP, Callback, CallbackReply
from shoal.errors import JobFailed, Refused, ShoalError, Unreachable
from shoal.history import History
from shoal.progress import Display, Quiet, WaitWatch, display_here
from shoal.result import Result
from shoal.runtime.plain_operator import PlainOperator, at_home
from shoal.states import JobState

if TYPE_CHECKING:
    from shoal.task import Task
    from shoal.wire.messages import EventView, JobView, Status

POLL_S = 0.5

#: A manager that restarts is back within seconds; a machine that reboots within minutes.
PATIENCE_S = 180.0

#: A job's last evaluation and events are stored a moment after its end is reported.
SETTLE_S = 0.6


class Job:
    """A job that was submitted. It continues without this object, which holds no connection between calls."""

    def __init__(
        self,
        job: str,
        home: Path,
        *,
        task: Task | None = None,
        operator: PlainOperator | None = None,
        whole: bool = False,
    ) -> None:
        self.id = job
        self._home = home
        self._task = task
        #: Stays open as long as the caller of ``fit`` waits.
        self._operator = operator
        #: Whether to fetch the model with the frozen tensors: if they came from a file, the task cannot build them.
        self.whole = whole

    def status(self) -> JobView:
        """Return the job's view: ``.state``, ``.reason``, ``.plan``, ``.progress`` and more."""
        return self._ask().jobs[0]

    @property
    def history(self) -> History:
        """Return the job's evaluations until now."""
        return History(self._ask().evaluations)

    def events(self) -> Iterator[EventView]:
        """Yield decisions and their reasons as they come: ``.kind``, ``.reason``, ``.at_s``. Ends when the job ends.

        Begins with the latest events. If many come within half a second, some may be skipped.
        """
        after, is_over = 0, False
        with self._connected() as operator:
            while True:
                status = _asked(operator, self.id, after)
                for event in status.events:
                    after = max(after, event.seq)
                    yield event
                if is_over:
                    return
                is_over = status.jobs[0].state.is_ended
                time.sleep(SETTLE_S if is_over else POLL_S)

    def stop(self, reason: str = "") -> None:
        """Ask the job to end. Its last version is saved; ``result`` fetches it."""
        with self._connected() as operator:
            operator.ask(lambda each: each.stop(self.id, reason))

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        save: str | Path | None = None,
    ) -> Result:
        """Follow the job to its end. Ctrl-C, and ``TimeoutError`` after ``timeout_s``, leave it running."""
        with self._connected() as operator, closing_display(display_here(wanted=progress)) as display:
            watch = Following(callbacks=tuple(callbacks), timeout_s=timeout_s, save=Path(save) if save else None)
            return Follower(self, operator, display, watch).run()

    def result(self, timeout_s: float | None = None, *, save: str | Path | None = None) -> Result:
        """Wait for the job's end and return its result with the model. Prints nothing, but warns if the job makes no
        progress for a minute."""
        return self.wait(timeout_s, progress=False, save=save)

    def __repr__(self) -> str:
        return f"<Job {self.id} of the cluster in {self._home}>"

    @property
    def task(self) -> Task | None:
        return self._task

    def _ask(self) -> Status:
        with self._connected() as operator:
            return _asked(operator, self.id, 0)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[PlainOperator]:
        if self._operator is not None:
            yield self._operator
            return
        with PlainOperator(at_home(self._home)) as operator:
            yield operator


def _asked(operator: PlainOperator, job: str, after: int) -> Status:
    status = operator.ask(lambda each: each.status(job, after))
    if not status.jobs:
        raise Refused(f"the cluster knows no job {job}: see shoal.jobs()")
    return status


@contextlib.contextmanager
def closing_display(display: Display) -> Iterator[Display]:
    try:
        yield display
    finally:
        display.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    """The options for following a job."""

    callbacks: tuple[Callback, ...] = ()
    on_status: Callable[[Status], None] = lambda status: None
    #: Whether the first Ctrl-C stops the job instead of leaving it.
    stops_on_interrupt: bool = False
    timeout_s: float | None = None
    patience_s: float = PATIENCE_S
    #: Where its model is written. `None` for a new folder.
    save: Path | None = None
    #: When the caller began to wait, by the monotonic clock.
    began_s: float | None = None


class Follower:
    """Follows one job to its end: displays it, calls callbacks, stops it if one asks for that, fetches its model."""

    def __init__(self, job: Job, operator: PlainOperator, display: Display | None, watch: Following) -> None:
        self._job = job
        self._operator = operator
        self._display = display or Quiet()
        self._watch = watch
        self._began_s = time.monotonic() if watch.began_s is None else watch.began_s
        self._heard_s = time.monotonic()
        self._history = History()
        self._view: JobView | None = None
        self._waits = WaitWatch()
        #: Why the job should stop, and whether the cluster was asked to stop it.
        self._stop_reason = ""
        self._stop_told = False

    def run(self) -> Result:
        """Follow the job to its end. Raises ``JobFailed`` if it failed. Callbacks are called at its end in any case."""
        started: list[Callback] = []
        path: Path | None = None
        try:
            for callback in self._watch.callbacks:
                started.append(callback)
                self._heed(callback, callback.on_start(self._job))
            view = self._follow()
            if view.state is not JobState.FAILED:
                path = self._pull()
        finally:
            if started or self._view is not None:
                result = self._result(path)
                for callback in started:
                    callback.on_end(result)
        if view.state is JobState.FAILED:
            raise JobFailed(f"job {self._job.id} failed: {view.reason}", job=self._job.id)
        return result

    def _follow(self) -> JobView:
        while True:
            try:
                view = self._look()
                if view is not None and view.state.is_ended:
                    time.sleep(SETTLE_S)
                    return self._look() or view
                self._check_time()
                time.sleep(POLL_S)
            except KeyboardInterrupt:
                if self._stop_reason or not self._watch.stops_on_interrupt:
                    raise
                self._stop_reason = "stopped by Ctrl-C"
                self._display.note(f"stopping {self._job.id}: its last version is saved. Ctrl-C again leaves at once")

    def _look(self) -> JobView | None:
        """Ask for the job's view once, and pass it on. Return None if the manager does not answer."""
        try:
            if self._stop_reason and not self._stop_told:
                # A job that ended in between is stopped already.
                with contextlib.suppress(Refused):
                    self._operator.ask(lambda each: each.stop(self._job.id, self._stop_reason))
                self._stop_told = True
            status = _asked(self._operator, self._job.id, 0)
        except Unreachable as error:
            silent_s = time.monotonic() - self._heard_s
            if silent_s >= self._watch.patience_s:
                raise Unreachable(f"no answer for {silent_s:.0f} s: {error}") from error
            return None
        self._heard_s = time.monotonic()
        view = self._view = status.jobs[0]
        new = self._history.take(status.evaluations)
        self._watch.on_status(status)
        self._display.show(view, self._history, new)
        if (waits := self._waits.look(view, self._heard_s)) is not None:
            self._display.warn(waits)
        for callback in self._watch.callbacks:
            for row in new:
                self._heed(callback, callback.on_evaluation(row))
            self._heed(callback, callback.on_progress(view))
        return view

    def _heed(self, callback: Callback, reply: CallbackReply | None) -> None:
        if reply is STOP and not self._stop_reason:
            self._stop_reason = f"stopped by {type(callback).__name__}"

    def _check_time(self) -> None:
        limit_s = self._watch.timeout_s
        if limit_s is not None and time.monotonic() - self._began_s >= limit_s:
            raise TimeoutError(f"job {self._job.id} has not ended within {limit_s:g} s; it goes on")

    def _pull(self) -> Path | None:
        target = self._watch.save or Path(tempfile.mkdtemp(prefix="shoal-")) / "model.safetensors"
        try:
            self._operator.ask(lambda each: each.pull_model(self._job.id, target, whole=self._job.whole))
        except Refused:
            # Stopped before anything was saved.
            return None
        return target

    def _result(self, path: Path | None) -> Result:
        view = self._view
        progress = view.progress if view else None
        return Result(
            job=self._job.id,
            state=view.state if view else JobState.QUEUED,
            reason=view.reason if view else "",
            accuracy=progress.accuracy if progress else None,
            loss=progress.loss if progress else None,
            seconds=time.monotonic() - self._began_s,
            version=progress.version if progress else 0,
            workers=len(progress.workers) if progress else 0,
            took_part=progress.took_part if progress else 0,
            path=path,
            task=self._job.task,
            seed=view.plan.seed if view else 0,
            history=self._history,
        )


def failure_with_logs(error: ShoalError, job: Job, operator: PlainOperator) -> JobFailed:
    """Return the same failure, with the logs of its temporary cluster kept on this machine."""
    from shoal.runtime.kept_logs import keep_logs

    events: tuple[EventView, ...] = ()
    tracebacks: tuple[EventView, ...] = ()
    with contextlib.suppress(ShoalError):
        events = operator.ask(lambda each: each.status(job.id)).events
        tracebacks = operator.ask(lambda each: each.status(job.id, tracebacks=True)).events
    folder = keep_logs(operator.home, job.id, events=events, tracebacks=tracebacks)
    return JobFailed(f"{error}; its logs are in {folder}", job=job.id, logs=str(folder))
