"""A job's story in lines of text, for logs and pipes: every turn at once, progress now and then. Reads no clock."""

from __future__ import annotations

from shoal.cli.job_history import News, Story
from shoal.cli.render.format import bytes_text, clean, metric_text, metrics_text, plural, rate_text, span_text
from shoal.roles.manager.publishing import measure
from shoal.runtime.event_kinds import ROUTINE
from shoal.states import JobState

#: Progress without news is told at most this often.
EVERY_S = 5.0

#: Kinds of events that other lines report (an evaluation, the end of the job), or that come with every batch.
_QUIET_KINDS = frozenset({*ROUTINE, "device.assigned", "job.finished", "job.failed", "job.stopped"})

#: Ends after which the model is of use.
_GOOD_ENDS = (JobState.FINISHED, JobState.STOPPED)


class PlainLines:
    """Feed it what each Status added; it gives the lines to print now."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._told_s = float("-inf")
        self._told: tuple[int, int, str] | None = None

    def lines(self, story: Story, news: News, now_s: float) -> list[str]:
        told = [f"{event.kind}: {clean(event.reason)}" for event in news.events if event.kind not in _QUIET_KINDS]
        for view in news.evaluations:
            told.append(
                f"epoch {view.epoch}: {metrics_text(view.metrics) or 'no metrics'}, "
                f"version {view.version}, {span_text(view.seconds)}"
            )
        if news.evaluations and (drift := story.drift) is not None:
            told.append(str(drift))
        if news.state:
            reason = _reason(story)
            told.append(f"{news.state}: {reason}" if reason else news.state)
        elif news.trouble:
            told.append(f"trouble: {clean(news.trouble)}")
        if told:
            self._told_s = now_s
        elif now_s - self._told_s >= self._every_s and (line := self._progress(story)):
            self._told_s = now_s
            told.append(line)
        return told

    def _progress(self, story: Story) -> str:
        progress = story.progress
        if progress is None or story.ended:
            return ""
        stands = (progress.version, progress.batches_applied, progress.state)
        if stands == self._told:
            return ""
        self._told = stands
        return (
            f"epoch {progress.epoch + 1}: {progress.batches_applied:,}/{progress.batches_total:,} batches, "
            f"{plural(len(progress.workers), 'worker')}, {rate_text(progress.examples_per_s)} examples/s, "
            f"{bytes_text(progress.bytes_up)} up, {bytes_text(progress.bytes_down)} down"
        )


def _reason(story: Story) -> str:
    """Return why the job is in its state. At its end, add how good the model is unless the reason gives the figure."""
    reason, progress = clean(story.reason), story.progress
    last = measure(progress, story.judged_by) if progress is not None and story.state in _GOOD_ENDS else None
    if last is None or metric_text(last).replace(" ", "") in reason.replace(" ", ""):
        return reason
    return f"{reason}, {clean(last.name, 30)} {metric_text(last)}"
