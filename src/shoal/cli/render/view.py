"""A job's picture on a terminal: how it stands, who does the work, what was decided and why. Pure drawing.

Texts of peers enter as `Text` after `clean`, never as markup: a device's name must not paint the operator's screen.
"""

from __future__ import annotations

import textwrap
from datetime import datetime
from typing import TYPE_CHECKING

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.cli.foremost import foremost
from shoal.cli.job_history import Story
from shoal.cli.render.format import (
    NOTHING,
    bytes_text,
    clean,
    is_slow,
    lease_text,
    metric_text,
    metrics_text,
    number_text,
    plural,
    rate_text,
    share_text,
    slowness_text,
    span_text,
    sparkline,
)
from shoal.cli.render.private_facts import spent_text
from shoal.cli.render.topologies import topology_text
from shoal.cli.standing import since_text
from shoal.roles.manager.publishing import measure
from shoal.runtime.event_kinds import is_fault

if TYPE_CHECKING:
    from shoal.plan import Until
    from shoal.wire.messages import EventView, ServedView, WorkerView

STATE_STYLES = {
    "training": "green",
    "evaluating": "cyan",
    "finished": "bold green",
    "running": "green",
    "waiting": "yellow",
    "queued": "yellow",
    "silent": "yellow",
    "unknown": "yellow",
    "stopping": "cyan",
    "closing": "cyan",
    "failed": "bold red",
    "stopped": "magenta",
    "working": "green",
    "ready": "cyan",
    "alive": "green",
    "loading": "yellow",
    "suspect": "yellow",
    "dormant": "cyan",
    "elsewhere": "cyan",
    "failing": "red",
    "stalled": "red",
    "lost": "red",
    "pending": "yellow",
    "drained": "magenta",
    "revoked": "bold red",
}
#: Faults that cost work, and good news. Other faults are yellow, other events cyan.
_ALARMS = frozenset(
    {"job.failed", "lease.failed", "preparation.failed", "device.lost", "device.revoked", "save.failed"}
)
_GOOD_NEWS = frozenset({"job.evaluated", "epoch.done", "job.finished", "job.resumed", "device.returned"})

_DEVICE_CHARS = 18
_WIDE_CHARS = 120
_METRICS_SHOWN = 3
_SPARKLINE_CHARS = 20
#: Lines that are not devices or events: both frames, the header's four lines, the table's head and a note.
_FIXED_LINES = 12
_EVENTS_MIN = 3
_DEVICES_MIN = 3
_ABSENT_ROWS = 1
#: Why a device is loading that reports no step of it.
_NOT_MET = "has not reached the leader yet"


def render(story: Story, *, width: int, height: int, note: str = "") -> RenderableType:
    """The whole picture, at most ``height`` lines high. ``note`` is a last line of ours, such as how to leave."""
    workers = devices_of(story)
    extra = has_verdict(story) + has_topology(story) + (story.drift is not None) + (story.served is not None)
    spare = height - _FIXED_LINES - extra - _EVENTS_MIN - _DEVICES_MIN
    # A note that says how a job stands is not cut off where there is room for all of it.
    more_lines = max(len(textwrap.wrap(note, max(width - 2, 1))) - 1, 0)
    more_lines = more_lines if more_lines <= spare else 0
    room = _EVENTS_MIN + _DEVICES_MIN + max(spare - more_lines, 0)
    device_rows = min(max(len(workers), _ABSENT_ROWS), room - _EVENTS_MIN)
    parts: list[RenderableType] = [_header(story, width), _devices(workers, rows=device_rows, width=width)]
    parts.append(_events(foremost(story.events, room - device_rows), width=width))
    if note:
        told = Text(note, style="dim") if more_lines else _one_line(Text(note, style="dim"))
        parts.append(Padding(told, (0, 1)))
    return Group(*parts)


def state_text(state: str) -> Text:
    return Text().append(f"● {clean(state, 20) or 'unknown'}", style=STATE_STYLES.get(state, "default"))


def until_text(until: Until) -> str:
    """``97 % accuracy or 5 epochs``, or ``it is stopped``."""
    ends = []
    if until.accuracy is not None:
        ends.append(f"{until.accuracy * 100:g} % accuracy")
    ends.extend(clean(str(condition), 80) for condition in (*until.goals, *until.plateaus))
    if until.epochs is not None:
        ends.append(plural(until.epochs, "epoch"))
    if until.seconds is not None:
        ends.append(span_text(until.seconds))
    if until.endless and not ends:
        ends.append("it is stopped")
    return " or ".join(ends)


def clock_text(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "??:??:??"


# How it stands -----------------------------------------------------------------------------------------------


def _header(story: Story, width: int) -> RenderableType:
    name = clean(story.job.name, 40) if story.job else story.job_id
    title = Text.assemble(("Shoal", "bold cyan"), (f"  {name}", "bold"), (f"  {story.job_id}", "dim"))
    place = Text(f"cluster {clean(story.cluster, 40)}", style="dim")
    lines = [_state_line(story), _epoch_line(story, width), _quality_line(story)]
    if (drift := story.drift) is not None:
        lines.append(_one_line(Text(str(drift), style="yellow")))
    if story.served is not None:
        lines.append(_one_line(_served_text(story.served)))
    lines.append(_pace_line(story))
    if has_topology(story):
        lines.append(_topology_line(story))
    if has_verdict(story):
        lines.append(_crew_line(story))
    return Panel(
        Group(*lines),
        title=title,
        title_align="left",
        subtitle=place,
        subtitle_align="right",
        box=ROUNDED,
        border_style="cyan",
        padding=(0, 1),
    )


def _served_text(served: ServedView) -> Text:
    judged = f", {metrics_text(served.metrics)}" if served.metrics else ""
    if served.accuracy is not None:
        judged = f", {share_text(served.accuracy)} of {served.examples:,}"
    text = Text(f"serves version {served.version:,}{judged}")
    if served.hold:
        return text.append(f"  held back: {clean(served.hold)}", style="yellow")
    return text.append(f"  {clean(served.reason)}", style="dim")


def _state_line(story: Story) -> RenderableType:
    left = state_text(story.state)
    if since := since_text(story.standing):
        left.append(f" {since}", style="dim")
    if reason := clean(story.reason):
        is_trouble = story.job is not None and story.job.trouble != ""
        left.append(f"  {reason}", style="red" if is_trouble else "default" if story.ended else "dim")
    seconds = story.progress.seconds if story.progress else 0.0
    return _two_sides(left, Text(span_text(seconds), style="bold"))


def _epoch_line(story: Story, width: int) -> RenderableType:
    progress = story.progress
    if progress is None or progress.batches_total < 1:
        until = until_text(story.job.plan.until) if story.job else ""
        return Text(f"until {until}" if until else "", style="dim")
    total, applied = progress.batches_total, progress.batches_applied
    # Between two epochs the ledger counts the one to come, which a finished job never starts.
    done = story.ended and applied == 0
    label = Text().append(f"epoch {progress.epoch if done else progress.epoch + 1}", style="bold")
    if story.job:
        label.append(f"  until {until_text(story.job.plan.until)}", style="dim")
    share = 1.0 if done else min(1.0, applied / total)
    count = "all batches" if done else f"{applied:,}/{total:,} batches"
    row = Table.grid(expand=True, padding=(0, 2, 0, 0))
    row.add_column(no_wrap=True, overflow="ellipsis", max_width=max(10, width // 2))
    row.add_column(ratio=1, min_width=8)
    row.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=1.0, completed=share, complete_style="green", finished_style="green")
    row.add_row(label, bar, Text(f"{count}  {share:4.0%}"))
    return row


def _quality_line(story: Story) -> RenderableType:
    progress = story.progress
    metrics = progress.metrics if progress else ()
    first = measure(progress, story.judged_by) if progress else None
    name, figure = (first.name, metric_text(first)) if first is not None else ("accuracy", NOTHING)
    line = Text.assemble((f"{clean(name, 30)} ", "dim"), (figure, "bold green" if first is not None else "dim"))
    if curve := sparkline(story.curve, _SPARKLINE_CHARS):
        line.append(f"  {curve}", style="green")
    others = [metric for metric in metrics if metric.name not in (name, "loss")]
    if name != "loss":
        line.append("   loss ", style="dim").append(number_text(progress.loss if progress else None))
    line.append("   training loss ", style="dim").append(number_text(progress.train_loss if progress else None))
    for metric in others[:_METRICS_SHOWN]:
        line.append(f"   {clean(metric.name, 30)} ", style="dim").append(metric_text(metric))
    return _one_line(line)


def _pace_line(story: Story) -> RenderableType:
    progress = story.progress
    if progress is None:
        return Text("nothing trained yet", style="dim")
    facts = [
        ("version ", f"{progress.version:,}", f" (saved {progress.durable_version:,})"),
        ("", rate_text(progress.rounds_per_s), " rounds/s"),
        ("", rate_text(progress.examples_per_s), " examples/s"),
    ]
    if progress.staleness_max > 0:
        late = f" versions late (at most {progress.staleness_max:,})"
        facts.append(("updates ", number_text(progress.staleness), late))
    if progress.epsilon:
        spent = spent_text(progress.epsilon, progress.epsilon_worst, progress.participations_worst)
        facts.append(("epsilon ", spent, ""))
    left = Text()
    for number, (before, value, after) in enumerate(facts):
        left.append("   " if number else "").append(before, style="dim").append(value).append(after, style="dim")
    if progress.refused:
        left.append(f"   {progress.refused:,} refused", style="yellow")
    right = Text.assemble(
        ("↑ ", "dim"), bytes_text(progress.bytes_up), ("  ↓ ", "dim"), bytes_text(progress.bytes_down)
    )
    return _two_sides(left, right)


def has_topology(story: Story) -> bool:
    """The leader has said where updates meet."""
    return story.progress is not None and story.progress.topology != ""


def _topology_line(story: Story) -> RenderableType:
    """Why it is so comes after it, as far as there is room: `shoal plan explain` has all of it."""
    progress, job = story.progress, story.job
    assert progress is not None
    assert job is not None
    line = Text.assemble(("topology ", "dim"), topology_text(progress, job.plan))
    if reason := clean(progress.topology_reason, 400):
        line.append(f"   {reason}", style="dim")
    return _one_line(line)


def has_verdict(story: Story) -> bool:
    """It is known whether one more worker would bring anything."""
    return story.progress is not None and story.progress.saturation in ("gains", "saturated")


def _crew_line(story: Story) -> RenderableType:
    progress = story.progress
    assert progress is not None
    style = "yellow" if progress.saturation == "saturated" else "default"
    left = Text(clean(progress.saturation_reason, 400), style)
    right = Text.assemble(
        ("a round ", "dim"), lease_text(progress.round_s), (f", {lease_text(progress.sync_s)} not training", "dim")
    )
    return _two_sides(left, right)


# Who does the work -------------------------------------------------------------------------------------------


def devices_of(story: Story) -> list[WorkerView]:
    """The leader's workers by name, and those the manager gave to the job that the leader has not met yet."""
    from shoal.wire.messages import WorkerView

    known = list(story.progress.workers) if story.progress else []
    names = {worker.node for worker in known}
    if not story.ended:
        for node in story.nodes:
            if node.job == story.job_id and node.node not in names:
                state = "loading" if node.state == "alive" else node.state
                known.append(WorkerView(node=node.node, state=state, reason=node.preparing or _NOT_MET))
    return sorted(known, key=lambda worker: worker.node)


def _devices(workers: list[WorkerView], *, rows: int, width: int) -> RenderableType:
    wide = width >= _WIDE_CHARS
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("device", no_wrap=True, max_width=_DEVICE_CHARS, overflow="ellipsis")
    for name in ("batches", "share", "lease time") if wide else ("batches", "lease time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("pace", no_wrap=True)
    for name in ("sent", "received", "failed") if wide else ("traffic", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state, and why", no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
    shown, left_out = _shown(workers, rows)
    total = sum(worker.batches for worker in workers)
    for worker in shown:
        table.add_row(*_device_row(worker, total=total, wide=wide))
    if not workers:
        table.add_row(Text("none yet", style="dim"))
    title = Text(f"{plural(len(workers), 'device')}{f', {left_out} not shown' if left_out else ''}", style="dim")
    return Panel(table, title=title, title_align="left", box=ROUNDED, border_style="dim", padding=(0, 1))


def _shown(workers: list[WorkerView], rows: int) -> tuple[list[WorkerView], int]:
    """Where not all fit, those in trouble come first: they are why a person looks."""
    if len(workers) <= rows:
        return workers, 0
    ranked = sorted(workers, key=lambda worker: (-_trouble(worker), worker.node))
    return ranked[:rows], len(workers) - rows


def _trouble(worker: WorkerView) -> float:
    alarm = worker.state in ("lost", "failing", "suspect")
    return 1e6 * alarm + 1e3 * min(worker.failures, 900) + min(max(worker.slowness, 0.0), 900.0)


def _device_row(worker: WorkerView, *, total: int, wide: bool) -> list[RenderableType]:
    row: list[RenderableType] = [Text(clean(worker.node, 63), style="bold"), Text(f"{worker.batches:,}")]
    if wide:
        row.append(Text(f"{worker.batches / total:.0%}" if total > 0 else NOTHING, style="dim"))
    row.append(Text(lease_text(worker.lease_s)))
    slow = worker.lease_s > 0 and is_slow(worker.slowness)
    row.append(
        Text(slowness_text(worker.slowness) if worker.lease_s > 0 else NOTHING, style="yellow" if slow else "dim")
    )
    moved = (worker.bytes_up, worker.bytes_down)
    row += [Text(bytes_text(size), style="dim") for size in (moved if wide else (sum(moved),))]
    row.append(Text(f"{worker.failures:,}", style="red" if worker.failures else "dim"))
    state = state_text(worker.state)
    row.append(state.append(f"  {clean(worker.reason)}", style="dim") if worker.reason else state)
    return row


# What was decided, and why -----------------------------------------------------------------------------------


def _events(events: list[EventView], *, width: int) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for event in events:
        table.add_row(Text(clock_text(event.at_s), style="dim"), event_kind(event), Text(clean(event.reason)))
    if not events:
        table.add_row(Text("nothing yet", style="dim"))
    title = Text("what happened, and why", style="dim")
    return Panel(table, title=title, title_align="left", box=ROUNDED, border_style="dim", padding=(0, 1))


def event_kind(event: EventView) -> Text:
    if event.kind in _ALARMS:
        style = "red"
    elif is_fault(event.kind):
        style = "yellow"
    else:
        style = "green" if event.kind in _GOOD_NEWS else "cyan"
    return Text(clean(event.kind, 30), style=style)


def _two_sides(left: Text, right: Text) -> Table:
    row = Table.grid(expand=True, padding=(0, 2, 0, 0))
    row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(left, right)
    return row


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
