"""Writes what is wrong and what was done about it in one sentence, from the reasons that Shoal has. Pure functions.

The texts are those of the terminal: `cli.render` and `cli.standing` write the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli.render.format import clean, metric_text, plural, span_text
from shoal.cli.standing import standing, without_manager
from shoal.console.failing import LATELY_S, REASON_CHARS, common_reason, is_failing_everywhere, is_stuck
from shoal.roles.manager.publishing import measure
from shoal.runtime.event_kinds import device_of
from shoal.states import JobState

if TYPE_CHECKING:
    from shoal.cli.drift import Drift
    from shoal.wire.messages import EventView, JobView, NodeView, Status

#: How many names a sentence lists. It counts the others.
NAMES_MAX = 3
#: How long the headline reports that the last job failed, if no other job was submitted since.
FAILED_TOLD_S = 86_400.0

#: Kinds of events that report what was done about a lost node.
_REMEDIES = ("lease.returned", "device.assigned", "leader.appointed", "topology.changed")

#: Why each device of a job fails, by the job and by the device.
Failing = Mapping[str, Mapping[str, str]]

#: The worst comes first.
_BY_TONE = ("trouble", "attention", "ok")


@dataclass(frozen=True, slots=True)
class Headline:
    #: ``ok``, ``attention`` or ``trouble``.
    tone: str
    sentence: str


def names_text(names: Sequence[str]) -> str:
    """Return ``a, b and c`` for a few names, or ``a, b, c and 4 others`` for many."""
    shown = [clean(name, 63) for name in names[:NAMES_MAX]]
    if len(names) > NAMES_MAX:
        return f"{', '.join(shown)} and {plural(len(names) - NAMES_MAX, 'other')}"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def cluster_headline(status: Status, *, events: Sequence[EventView], failing: Failing, at_s: float) -> Headline:
    """Describe the cluster in a sentence: the worst first, and what continues nevertheless."""
    members = [node for node in status.nodes if node.standing != "revoked"]
    lost = sorted(node.node for node in members if node.state == "lost" and _matters(node, status, events, at_s))
    failed = [job for job in status.jobs if job.state is JobState.FAILED and 0 <= job.since_s <= LATELY_S]
    if failed:
        told = ", ".join(clean(job.name or job.job, 40) for job in failed[:NAMES_MAX])
        return Headline("trouble", f"{told} failed: {clean(failed[0].reason, REASON_CHARS)}")
    if stuck := [job for job in status.jobs if is_stuck(job, failing.get(job.job, {}))]:
        return _with_others(_stuck_headline(stuck[0], failing.get(stuck[0].job, {})), status)
    if lost:
        return Headline("trouble", _lost_sentence(lost, status, events, at_s))
    if silent := [job for job in status.jobs if standing(job).state == "silent"]:
        return Headline("trouble", f"{clean(silent[0].name, 40)}: {clean(standing(silent[0]).reason, REASON_CHARS)}")
    if suspects := sorted(node.node for node in members if node.state == "suspect"):
        verb = "is" if len(suspects) == 1 else "are"
        why = next(node.reason for node in members if node.node == suspects[0])
        return Headline("attention", f"{names_text(suspects)} {verb} suspect: {clean(why, REASON_CHARS)}")
    if pending := sorted(node.node for node in members if node.standing == "pending"):
        verb = "waits" if len(pending) == 1 else "wait"
        return Headline("attention", f"{names_text(pending)} {verb} for approval: `shoal nodes approve {pending[0]}`")
    return _all_well(status, members, failing)


def unreachable_headline(status: Status | None, *, since_s: float, reason: str) -> Headline:
    """Describe a manager that does not answer: since when, and what its jobs last did."""
    told = f"the manager has not answered for {span_text(since_s)}"
    if why := clean(reason, REASON_CHARS):
        told += f" ({why})"
    jobs = [job for job in status.jobs if job.state.is_open] if status is not None else []
    if status is not None and jobs:
        told += f"; {without_manager(jobs[0], manager=status.manager)}"
    return Headline("trouble", told)


def job_headline(
    job: JobView, *, nodes: Sequence[NodeView], drift: Drift | None, failing: Mapping[str, str]
) -> Headline:
    """Describe a job in a sentence: how good it is by now, and what hinders it."""
    told, name = standing(job), clean(job.name or job.job, 40)
    reason, quality = clean(told.reason, REASON_CHARS), _quality(job)
    at = f"{name} is at {quality}" if quality else f"{name} has not been evaluated yet"
    if is_stuck(job, failing):
        return _stuck_headline(job, failing)
    match told.state:
        case "failed":
            return Headline("trouble", f"{name} failed: {reason}")
        case "silent":
            return Headline("trouble", f"{at}; {reason}")
        case "stopped":
            return Headline("attention", f"{name} was stopped{f' at {quality}' if quality else ''}: {reason}")
        case "finished":
            return Headline("ok", f"{name} is finished{f' at {quality}' if quality else ''}: {reason}")
        case "queued" | "waiting":
            return Headline("attention", f"{at}; it is {told.state}: {reason}")
        case _:
            pass
    if failing:
        verb = "fails" if len(failing) == 1 else "fail"
        rest = f"the other {_workers(job) - len(failing)} go on" if _workers(job) - len(failing) > 1 else "one goes on"
        return Headline("attention", f"{at}; {names_text(sorted(failing))} {verb}: {common_reason(failing)}; {rest}")
    if job.trouble:
        return Headline("attention", f"{at}; {clean(job.trouble, REASON_CHARS)}")
    if lost := sorted(node.node for node in nodes if node.job == job.job and node.state == "lost"):
        return Headline("attention", f"{at}; {names_text(lost)} {'is' if len(lost) == 1 else 'are'} lost")
    if drift is not None:
        return Headline("attention", f"{at}; {drift}")
    if job.discarded:
        return Headline("attention", f"{at}; it discarded {clean(job.discarded, REASON_CHARS)}")
    return Headline("ok", f"{at}; it is {told.state} with {plural(_workers(job), 'worker')}")


def _matters(node: NodeView, status: Status, events: Sequence[EventView], at_s: float) -> bool:
    """Whether to report a lost device: it was lost lately, or a job counts on it. One that left days ago is not."""
    if any(job.job == node.job and job.state.is_open for job in status.jobs):
        return True
    return any(_is_about(event, node.node) and at_s - event.at_s <= LATELY_S for event in events)


def _is_about(event: EventView, node: str) -> bool:
    return event.kind == "device.lost" and device_of(event.kind, event.reason) == node


def _lost_sentence(lost: Sequence[str], status: Status, events: Sequence[EventView], at_s: float) -> str:
    told = f"{names_text(lost)} {'is' if len(lost) == 1 else 'are'} lost"
    if len(lost) == 1:
        why = next((node.reason for node in status.nodes if node.node == lost[0]), "")
        told += f": {clean(why, REASON_CHARS)}" if why else ""
    if running := [job for job in status.jobs if job.state is JobState.RUNNING]:
        left = [node for node in status.nodes if node.job == running[0].job and node.state != "lost"]
        name = clean(running[0].name or running[0].job, 40)
        told += f"; {name} continues on {plural(len(left), 'device')}" if left else f"; {name} has no worker left"
    if done := _remedy(lost[0], events, at_s):
        told += f". {done}"
    return told


def _remedy(node: str, events: Sequence[EventView], at_s: float) -> str:
    """Return what was done about the loss of a node: the newest decision that names it, or one that followed."""
    recent = [event for event in events if at_s - event.at_s <= LATELY_S]
    after = next((number for number, event in enumerate(recent) if _is_about(event, node)), None)
    if after is None:
        return ""
    for event in recent[after + 1 :]:
        if event.kind in _REMEDIES and (node in event.reason or event.kind in ("device.assigned", "leader.appointed")):
            return clean(event.reason, REASON_CHARS)
    return ""


def _stuck_headline(job: JobView, failing: Mapping[str, str]) -> Headline:
    """Describe a job whose every device fails: why, and what an operator can do."""
    remedy = f"Mend what it names, stop this job with `shoal jobs stop {clean(job.job, 80)}` and submit it again"
    name = clean(job.name or job.job, 40)
    if not is_failing_everywhere(job, failing):
        return Headline("trouble", f"{name} does not train: {clean(job.trouble, REASON_CHARS)}. {remedy}")
    names = names_text(sorted(failing))
    on = f"its only device, {names}" if len(failing) == 1 else f"all {len(failing)} of its devices ({names})"
    return Headline("trouble", f"{name} fails on {on}: {common_reason(failing)}. {remedy}")


def _with_others(headline: Headline, status: Status) -> Headline:
    """Add the number of other open jobs to a headline."""
    others = sum(job.state.is_open for job in status.jobs) - 1
    if others < 1:
        return headline
    verb = "is" if others == 1 else "are"
    return Headline(headline.tone, f"{headline.sentence}; {plural(others, 'other job')} {verb} open")


def _all_well(status: Status, members: Sequence[NodeView], failing: Failing) -> Headline:
    alive = sum(node.state == "alive" for node in members)
    told = f"{plural(alive, 'device')} {'is' if alive == 1 else 'are'} alive"
    open_jobs = [job for job in status.jobs if job.state.is_open]
    if not members:
        return Headline("attention", "no device has joined yet: run the line that `shoal up` printed on each one")
    if not open_jobs:
        return _no_job(status, told)
    lines = [job_headline(job, nodes=status.nodes, drift=None, failing=failing.get(job.job, {})) for job in open_jobs]
    worst = min(lines, key=lambda line: _BY_TONE.index(line.tone))
    if len(open_jobs) > 1 and worst.tone == "ok":
        return Headline("ok", f"{told}; {len(open_jobs)} jobs train, and none is in trouble")
    return _with_others(Headline(worst.tone, f"{told}; {worst.sentence}"), status)


def _no_job(status: Status, told: str) -> Headline:
    last = status.jobs[-1] if status.jobs else None
    if last is not None and last.state is JobState.FAILED and 0 <= last.since_s <= FAILED_TOLD_S:
        name = clean(last.name or last.job, 40)
        failed = f"{name} failed {span_text(last.since_s)} ago: {clean(last.reason, REASON_CHARS)}"
        return Headline("attention", f"{told}, and no job is open; {failed}")
    return Headline("ok", f"{told}; no job is open: start one with `shoal train TASK`")


def _quality(job: JobView) -> str:
    metric = measure(job.progress, job.plan.judged_by) if job.progress is not None else None
    if metric is None or metric.value is None:
        return ""
    return metric_text(metric) if metric.name == "accuracy" else f"{clean(metric.name, 30)} {metric_text(metric)}"


def _workers(job: JobView) -> int:
    return len(job.progress.workers) if job.progress is not None else 0
