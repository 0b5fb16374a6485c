"""The kinds of events that a cluster's journal holds: a closed list, and how loudly each is logged. Asks nobody."""

from __future__ import annotations

import logging

#: A line of a log that is no event of the journal, and an event of a kind that this release does not know.
LOG, OTHER = "log", "other"

#: Kinds whose events a person should look at.
_WARNINGS = frozenset(
    {
        "alarm",
        "caught",
        "checkpoint",
        "discarded",
        "disk",
        "diverged",
        "expired",
        "failed",
        "fenced",
        "hook-failed",
        "lost",
        "paused",
        "pool-lost",
        "prepare-failed",
        "private",
        "publish-failed",
        "refused",
        "revoked",
        "save-failed",
        "seal-refused",
        "spoilt",
        "store-slow",
        "store-went-back",
        "suspect",
        "trainer-failed",
        "unbound",
        "unprepared",
        "unreachable",
        "void",
        "weighed-down",
        "went-back",
    }
)

#: What a cluster does when nothing is wrong.
_USUAL = frozenset(
    {
        "aggregator",
        "assigned",
        "borrows",
        "budget",
        "called-back",
        "ending",
        "epoch",
        "evaluated",
        "evicted",
        "forming",
        "goal",
        "handed-over",
        "helper",
        "job",
        "joined",
        "leader",
        "lease-returned",
        "node",
        "offload",
        "operator",
        "pace",
        "passed",
        "profiles",
        "published",
        "readmitted",
        "reissued",
        "released",
        "removed",
        "residual",
        "resumed",
        "rolled-back",
        "saturation",
        "shares",
        "started",
        "topology",
        "waived",
    }
)

KINDS: frozenset[str] = _WARNINGS | _USUAL

#: How the reason of an event of kind ``job`` begins where the job ended without success.
_JOB_FAILED = "failed:"


def event_of(kind: str) -> str:
    """The kind, if this release knows it. A leader of another release may tell of others."""
    return kind if kind in KINDS else OTHER


def is_job_failed(kind: str, reason: str) -> bool:
    return kind == "job" and reason.startswith(_JOB_FAILED)


def lost_node(kind: str, reason: str) -> str:
    """The device that the manager declares lost by this event; empty: none."""
    name, is_, rest = reason.partition(" is ")
    return name if kind == "node" and is_ and rest.startswith("lost:") else ""


def level_of(kind: str, reason: str) -> int:
    """How loudly an event is logged."""
    if is_job_failed(kind, reason):
        return logging.ERROR
    if kind in _WARNINGS or lost_node(kind, reason):
        return logging.WARNING
    return logging.INFO
