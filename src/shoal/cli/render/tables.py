"""Nodes, jobs and evaluations as tables. Pure drawing; texts of peers enter cleaned and never as markup."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from shoal.cli.render.format import (
    NOTHING,
    bytes_text,
    clean,
    count_text,
    metric_text,
    metrics_text,
    number_text,
    rate_text,
    share_text,
    span_text,
)
from shoal.cli.render.view import clock_text, event_kind, state_text, until_text
from shoal.cli.standing import standing
from shoal.roles.manager.publishing import measure

if TYPE_CHECKING:
    from shoal.identity.discovery import Found
    from shoal.plan import Plan
    from shoal.wire.messages import (
        ActView,
        ContributionView,
        EvaluationView,
        EventView,
        ExecutorView,
        Facts,
        JobView,
        ManagerView,
        MetricView,
        NodeView,
        TokenView,
        VersionList,
    )


def _table(*columns: str, right: Sequence[str] = (), last_grows: bool = True) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for name in columns:
        is_last = last_grows and name == columns[-1]
        table.add_column(name, justify="right" if name in right else "left", no_wrap=not is_last, overflow="fold")
    return table


def nodes_table(nodes: Sequence[NodeView]) -> Table:
    # Few clusters have labels: then there is no column for them.
    labels = ("labels",) if any(node.labels for node in nodes) else ()
    # Nor has a cluster with one manager a column for it.
    manager = ("manager",) if any(node.manager for node in nodes) else ()
    names = ("node", "state", *manager, "heard", "job", *labels, "device", "cpus", "memory", "load", "torch", "why")
    table = _table(*names, right=("cpus",))
    for node in nodes:
        facts = node.facts
        table.add_row(
            Text(clean(node.node), style="bold"),
            state_text(node.standing or node.state),
            *((Text(clean(node.manager, 80) or NOTHING),) if manager else ()),
            f"{span_text(node.heard_s)} ago" if node.heard_s >= 0 else NOTHING,
            Text(clean(node.job) or NOTHING),
            *((Text(clean(" ".join(node.labels)) or NOTHING),) if labels else ()),
            Text(" ".join(filter(None, (clean(facts.host, 24), clean(facts.arch, 12)))) or NOTHING),
            str(facts.cpus or NOTHING),
            _memory(node.memory_free_mb, facts.memory_mb),
            f"{node.load:.1f}",
            _engine(facts),
            _why_text(node),
        )
    return table


def _why_text(node: NodeView) -> Text:
    """What is wrong with a device; else why it is not simply alive."""
    if node.trouble:
        return Text(clean(node.trouble), style="red")
    return Text("" if node.reason == "connected" else clean(node.reason), style="dim")


def _engine(facts: Facts) -> Text:
    if facts.is_hub:
        return Text("hub: sums, trains nothing")
    if facts.torch:
        return Text(clean(facts.torch, 16))
    if facts.onnx:
        return Text(f"none; onnx {clean(facts.onnx, 16)}")
    return Text("none: cannot train", style="yellow")


def versions_table(told: VersionList, *, now_s: float) -> Table:
    served = told.served.version if told.served else -1
    # Most tasks have no other metric: then there is no column for them.
    has_others = any(_others(each.metrics) for each in told.versions)
    names = ("version", "", "right", "examples", "loss", *(("metrics",) if has_others else ()), "published", "why")
    table = _table(*names, right=("version", "examples"))
    for each in reversed(told.versions):
        is_served = each.version == served
        table.add_row(
            Text(f"{each.version:,}", style="bold" if is_served else ""),
            Text("served", style="green") if is_served else "",
            share_text(each.accuracy),
            f"{each.examples:,}" if each.examples else NOTHING,
            number_text(each.loss),
            *((Text(metrics_text(_others(each.metrics))),) if has_others else ()),
            f"{span_text(max(0.0, now_s - each.at_s))} ago",
            Text(clean(told.served.reason if told.served and is_served else each.reason)),
        )
    return table


def _others(metrics: Sequence[MetricView]) -> list[MetricView]:
    """Metrics that have no column of their own."""
    return [metric for metric in metrics if metric.name not in ("accuracy", "loss")]


def executors_table(executors: Sequence[ExecutorView]) -> Table:
    """The pool: who multiplies for others, how fast, what they did, and who was caught."""
    columns = ("tasks", "late", "refused", "caught")
    table = _table("lends", "state", "operations/s", "latency", *columns, "done", "why", right=columns)
    for executor in executors:
        caught = Text(str(executor.caught), style="bold red" if executor.caught else "")
        table.add_row(
            Text(clean(executor.node), style="bold"),
            state_text(executor.state),
            rate_text(executor.multiply_adds_per_s) if executor.multiply_adds_per_s else NOTHING,
            span_text(executor.latency_s) if executor.latency_s else NOTHING,
            str(executor.tasks),
            str(executor.late),
            str(executor.refused),
            caught,
            count_text(executor.multiply_adds) if executor.multiply_adds else NOTHING,
            Text(clean(executor.reason, 120), style="dim"),
        )
    return table


def managers_table(managers: Sequence[ManagerView]) -> Table:
    """Each manager by the address that devices dial, what it has, and whether it takes jobs."""
    table = _table(
        "manager", "state", "jobs", "devices", "taken over", "seat", "why", right=("jobs", "devices", "taken over")
    )
    for view in managers:
        state = "trouble" if view.trouble else "drained" if view.is_drained else "serves"
        table.add_row(
            Text(clean(view.manager), style="bold"),
            Text(state, style={"trouble": "bold red", "drained": "yellow"}.get(state, "green")),
            str(view.jobs),
            str(view.devices),
            str(view.jobs_taken),
            Text(clean(view.seat) or NOTHING, style="dim"),
            Text(clean(view.trouble, 200), style="dim"),
        )
    return table


def _memory(free_mb: int, total_mb: int) -> str:
    if not total_mb:
        return NOTHING
    return f"{free_mb / 1024:.1f} of {total_mb / 1024:.1f} GB free" if free_mb else f"{total_mb / 1024:.1f} GB"


def tokens_table(tokens: Sequence[TokenView], *, now_s: float) -> Table:
    table = _table("token", "for", "uses left", "expires", "made", "label", right=("uses left",))
    for token in tokens:
        left_s = token.expires_s - now_s
        over = bool(token.expires_s) and left_s <= 0
        table.add_row(
            Text(clean(token.token), style="bold"),
            Text(clean(token.role)),
            Text(str(token.uses_left)) if token.uses_left else Text("none: used up", style="yellow"),
            Text("expired", style="yellow") if over else f"in {span_text(left_s)}" if token.expires_s else "never",
            f"{span_text(max(0.0, now_s - token.made_s))} ago",
            Text(clean(token.label) or NOTHING, style="dim"),
        )
    return table


def clusters_table(found: Sequence[Found]) -> Table:
    table = _table("cluster", "devices join at", "its authority's hash begins")
    for each in found:
        table.add_row(Text(each.cluster, style="bold"), each.endpoint, Text(each.fingerprint[:16], style="dim"))
    return table


#: Below this, a list of jobs has fewer columns: how each stands, and why, is what it is read for.
_WIDE_CHARS = 110
#: Columns of metrics in a table of evaluations.
_METRICS_MAX = 6

_ALWAYS = ("job", "state", "for", "accuracy", "why")
_IF_WIDE = ("job", "name", "state", "for", "epoch", "accuracy", "trained", "leader", "manager", "workers", "why")


def jobs_table(jobs: Sequence[JobView], *, width: int = _WIDE_CHARS) -> Table:
    columns: tuple[str, ...] = _IF_WIDE if width >= _WIDE_CHARS else _ALWAYS
    if not any(job.manager for job in jobs):
        columns = tuple(name for name in columns if name != "manager")
    table = _table(*columns, right=("epoch", "accuracy"))
    for job in jobs:
        progress, told = job.progress, standing(job)
        cells: dict[str, str | Text] = {
            "job": Text(clean(job.job), style="bold"),
            "name": Text(clean(job.name, 30)),
            "state": state_text(told.state),
            "for": span_text(told.since_s) if told.since_s >= 0 else NOTHING,
            "epoch": str(progress.epoch) if progress else NOTHING,
            "accuracy": _judged_cell(job),
            "trained": span_text(progress.seconds) if progress else NOTHING,
            "leader": clean(job.leader) if job.leader else NOTHING,
            "manager": clean(job.manager, 80) if job.manager else NOTHING,
            "workers": str(len(progress.workers)) if progress else NOTHING,
            "why": Text(clean(told.reason), style="red" if job.trouble else "dim"),
        }
        table.add_row(*(cells[name] for name in columns))
    return table


def _judged_cell(job: JobView) -> str:
    """The metric that the job is judged by; its name too, unless it is accuracy."""
    metric = measure(job.progress, job.plan.judged_by) if job.progress else None
    if metric is None or metric.name == "accuracy":
        return metric_text(metric)
    return f"{clean(metric.name, 20)} {metric_text(metric)}"


def plan_table(plan: Plan) -> Table:
    table = _table("plan", "", last_grows=False)
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        table.add_row(Text(field.name, style="dim"), until_text(value) if field.name == "until" else str(value))
    return table


def evaluations_table(views: Sequence[EvaluationView]) -> Table:
    metrics = list(dict.fromkeys(metric.name for view in views for metric in view.metrics))[:_METRICS_MAX]
    metrics = metrics or ["accuracy", "loss"]
    names = ("version", "epoch", *(clean(name, 20) for name in metrics), "examples", "after")
    table = _table(*names, right=names, last_grows=False)
    for view in views:
        figures = {metric.name: metric for metric in view.metrics}
        cells = (f"{view.version:,}", str(view.epoch), *(metric_text(figures.get(name)) for name in metrics))
        table.add_row(*cells, f"{view.examples:,}", span_text(view.seconds))
    return table


def acts_table(acts: Sequence[ActView]) -> Table:
    table = _table("at", "operator", "what", "about", "details")
    for act in acts:
        told = Text(f"refused: {clean(act.text)}", style="yellow") if act.is_refused else Text(clean(act.text))
        when = Text(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(act.at_s)), style="dim")
        table.add_row(when, Text(clean(act.operator), style="bold"), act.kind, Text(clean(act.subject)), told)
    return table


def events_table(events: Sequence[EventView]) -> Table:
    table = _table("at", "what", "why")
    for event in events:
        table.add_row(Text(clock_text(event.at_s), style="dim"), event_kind(event), Text(clean(event.reason)))
    return table


def contributions_table(found: Sequence[ContributionView]) -> Table:
    table = _table("set", "file", "entries", "size", "from", "when", "state", right=("entries", "size"))
    for view in found:
        decided = f"{view.state} by {clean(view.by)}" if view.by else view.state
        table.add_row(
            Text(clean(view.set)),
            Text(view.sha256[:12]),
            count_text(view.entries),
            bytes_text(view.size_bytes),
            Text(clean(view.node)),
            clock_text(view.at_s),
            Text(decided),
        )
    return table
