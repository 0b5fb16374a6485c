"""What is wrong with a job and with a device, in one sentence each, from what leaders reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.roles.manager.preparation import Unprepared, kind_of
from shoal.states import LeaderPhase, WorkerState
from shoal.wire.messages import Progress

#: Devices that a sentence names.
_NAMED_MAX = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTrouble:
    sentence: str = ""
    #: Devices that fail, also those that were let go because they could not prepare the job.
    failing: int = 0
    #: Devices fail, and none trains.
    stalled: bool = False


NO_TROUBLE = JobTrouble()


def job_trouble(progress: Progress | None, unprepared: Mapping[str, Unprepared]) -> JobTrouble:
    """Return what is wrong with an open job. ``progress``: the last report of its present leader."""
    workers = progress.workers if progress is not None else ()
    failing = {view.node: view.reason for view in workers if view.state == WorkerState.FAILING}
    healthy = {view.node for view in workers if view.node not in failing}
    spared = {node: each.reason for node, each in unprepared.items() if node not in healthy}
    count, every = len(failing | spared), len(failing | spared) + len(healthy)
    stalled = count > 0 and not healthy
    if progress is not None and progress.reason and progress.state in (LeaderPhase.TRAINING, LeaderPhase.EVALUATING):
        # A leader that trains gives a reason only if something is wrong.
        return JobTrouble(sentence=progress.reason, failing=max(count, 1), stalled=stalled)
    if not count:
        return NO_TROUBLE
    cannot = set(spared) >= set(failing)
    what = "cannot prepare it" if cannot else "fail"
    sentence = f"{count} of {every} devices {what}: {_reasons({**failing, **spared})}"
    if every == 1:
        (node,) = failing | spared
        sentence = f"{node} {'cannot prepare it' if cannot else 'fails'}: {_reasons({**failing, **spared})}"
    return JobTrouble(sentence=sentence, failing=count, stalled=stalled)


def _reasons(by_node: Mapping[str, str]) -> str:
    """The most frequent reason, with the devices it is not on by name."""
    kinds: dict[str, list[str]] = {}
    for node in sorted(by_node):
        kinds.setdefault(kind_of(by_node[node]), []).append(node)
    first, *others = sorted(kinds.values(), key=len, reverse=True)
    told = by_node[first[0]] or "no reason is known"
    if not others:
        return told
    rest = [node for nodes in others for node in nodes]
    names = ", ".join(rest[:_NAMED_MAX]) + (f" and {len(rest) - _NAMED_MAX} more" if len(rest) > _NAMED_MAX else "")
    return f"{told}; {names} for another reason"


def node_troubles(
    jobs: Iterable[tuple[str, Progress | None, Mapping[str, Unprepared]]], *, now_s: float
) -> dict[str, str]:
    """Return device -> what is wrong with it, for the devices of these open jobs that fail."""
    found: dict[str, str] = {}
    for job, progress, unprepared in jobs:
        for node, each in unprepared.items():
            wait_s = each.until_s - now_s
            again = f"; tries again in {wait_s:.0f} s" if wait_s > 0 else ""
            found[node] = f"cannot prepare {job}: {each.reason}{again}"
        for view in progress.workers if progress is not None else ():
            if view.state == WorkerState.FAILING:
                found[view.node] = f"fails in {job}: {view.reason}"
    return found
