"""What each device does, and why, from the views of the manager and of its leader. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shoal.cli.render import format
from shoal.states import WorkerState

if TYPE_CHECKING:
    from shoal.wire.messages import JobView, NodeView, WorkerView

#: The activities of a device. A lane is a row of these.
ACTIVITIES = ("train", "evaluate", "download", "upload", "wait", "prepare", "lead", "idle", "lost")

TEXT_CHARS = 240
NAME_CHARS = 80

#: Below this, a device's last heartbeat counts as current: they come about once a second, so other values are noise.
HEARD_NOW_S = 5.0
MEMORY_STEP_MB = 32

#: Texts of a cluster repeat from device to device and from second to second.
_TEXTS_KEPT = 4096

#: A leader sees a lease go out and an update come in. It cannot distinguish the download of the model from the training
#: in between, so both are ``train``.
_ACTIVITY_OF: dict[str, str] = {
    WorkerState.WORKING: "train",
    WorkerState.EVALUATING: "evaluate",
    WorkerState.DELIVERING: "upload",
    WorkerState.READY: "wait",
    WorkerState.WAITING: "wait",
    WorkerState.LATE: "wait",
    WorkerState.FAILING: "wait",
}
_WORDS = {
    "train": "trains a lease",
    "evaluate": "evaluates a version",
    "upload": "its update is on its way",
    "wait": "waits for a lease",
}


@lru_cache(_TEXTS_KEPT)
def clean(text: str, limit_chars: int) -> str:
    """Return a text as one printable line, as on a terminal."""
    return format.clean(text, limit_chars)


@dataclass(frozen=True, slots=True)
class Doing:
    does: str
    why: str
    #: ``leader``, ``worker``, ``hub``, ``spare`` or empty.
    role: str


def doing(node: NodeView, worker: WorkerView | None, jobs: Sequence[JobView]) -> Doing:
    """Return what a node is doing now. ``jobs`` are the open ones."""
    leads = [job for job in jobs if job.leader == node.node]
    role = "leader" if leads else "hub" if node.facts.is_hub else "worker" if node.job else ""
    reason = clean(node.reason, TEXT_CHARS)
    if node.state == "lost":
        return Doing("lost", reason or "not heard", role)
    if worker is not None and node.job:
        # A state of a later release counts as a wait, but its text is shown.
        does = _ACTIVITY_OF.get(worker.state, "wait")
        why = clean(worker.reason, TEXT_CHARS) or _WORDS[does]
        if worker.state in (WorkerState.LATE, WorkerState.FAILING):
            why = f"{worker.state}: {why}"
        return Doing(does, why, role)
    if node.job and node.facts.is_hub:
        return Doing("lead", "a hub: sums up updates of others", role)
    if node.job:
        return Doing("prepare", clean(node.preparing, TEXT_CHARS) or "has not reached the leader yet", role)
    if leads:
        return Doing("lead", f"leads {clean(leads[0].name or leads[0].job, 40)}", role)
    return _idle(node, jobs, reason)


def _idle(node: NodeView, jobs: Sequence[JobView], reason: str) -> Doing:
    if node.standing:
        return Doing("idle", reason or node.standing, "")
    if node.facts.is_hub:
        return Doing("idle", "a hub: no job with a tree needs it", "hub")
    if not node.facts.torch and not node.facts.onnx:
        return Doing("idle", "has no PyTorch: it can lead, not train", "")
    if not jobs:
        return Doing("idle", "no job is open", "")
    full = next((job for job in jobs if job.progress and len(job.progress.workers) >= job.plan.workers_max), None)
    if full is not None:
        return Doing("idle", f"spare: {clean(full.name, 40)} takes at most {full.plan.workers_max}", "spare")
    return Doing("idle", reason or "waits for a job", "spare")


def node_state(
    node: NodeView, worker: WorkerView | None, jobs: Sequence[JobView], *, fails: str = ""
) -> dict[str, Any]:
    """Return a node's object of the ``state`` document. Values are rounded, so that noise does not count as a change.

    ``fails`` is why the node fails at its job, or "" if it does not.
    """
    now = doing(node, worker, jobs)
    told: dict[str, Any] = {
        "state": clean(node.state, 20),
        "standing": clean(node.standing, 20),
        "reason": clean(node.reason, TEXT_CHARS),
        "job": clean(node.job, NAME_CHARS),
        "manager": clean(node.manager, NAME_CHARS),
        "does": now.does,
        "why": now.why,
        "role": now.role,
        "address": clean(node.facts.host, 60),
        "machine": clean(node.facts.arch, 20),
        "cores": node.facts.cpus,
        "memory_mb": node.facts.memory_mb,
        "load": round(node.load, 1),
        "memory_free_mb": node.memory_free_mb // MEMORY_STEP_MB * MEMORY_STEP_MB,
        "heard_s": coarse_s(node.heard_s) if node.heard_s >= 0 else None,
    }
    if fails and node.state != "lost":
        told["fails"] = clean(fails, TEXT_CHARS)
    if worker is not None:
        told |= {
            "slowness": round(worker.slowness, 2),
            "batches": worker.batches,
            "bytes_up": worker.bytes_up,
            "bytes_down": worker.bytes_down,
            "lease_s": significant(worker.lease_s),
            "train_s": significant(worker.train_s),
            "failures": worker.failures,
        }
    return told


def coarse_s(span_s: float) -> float:
    """Round a span that is sent repeatedly: to 0 below 5 s, then to seconds, later to ten seconds, then to minutes."""
    if span_s < HEARD_NOW_S:
        return 0.0
    step = 1 if span_s < 60 else 10 if span_s < 3600 else 60
    return float(int(span_s // step) * step)


def significant(value: float | None, digits: int = 3) -> float | None:
    """Return a value with as many digits as people read, or None if it is not a number."""
    if value is None or value != value or abs(value) == float("inf"):
        return None
    return float(f"{value:.{digits}g}")
