"""The registry's rows, each as a frozen value. Times are wall-clock seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.states import JobState
from shoal.wire.messages import MetricView


class Redeemed(NamedTuple):
    """The identity that a token was redeemed for."""

    node: str
    role: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A right to join. The secret itself is never stored."""

    secret_sha256: str
    role: str
    uses_left: int
    #: None if it does not expire.
    expires_s: float | None
    created_s: float
    label: str
    #: The name of every node that joins with this token begins with this.
    node_prefix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRow:
    """A device that was enrolled."""

    node: str
    role: str
    facts_json: str
    first_seen_s: float
    last_seen_s: float
    #: ``enrolled``, ``pending``, ``drained`` or ``revoked``.
    state: str
    #: The token that it joined with. Empty if there was none, or it is unknown.
    token_sha256: str = ""
    #: When its name was last revoked, even if it was given again since. None if never.
    revoked_s: float | None = None
    #: Why it is in this state.
    reason: str = ""
    #: In a restored registry: the member's last certificate in the copy. None if all its certificates are recorded.
    restored_number: int | None = None
    #: An operator forgot it: it is excluded and not listed.
    is_forgotten: int = 0
    #: If managers share a registry: the count of changes to members when this one last changed.
    epoch: int = 0
    #: The card that an operator signed for it (``identity.cards``), in hexadecimal, or empty.
    card: str = ""
    #: The labels that an operator gave it, as JSON: a list of ``NAME=VALUE``.
    labels_json: str = "[]"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(json.loads(self.labels_json))


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """An issued certificate, under the hash of all its bytes. It is recorded before its owner gets it."""

    sha256: str
    node: str
    role: str
    #: The hash of its public key.
    key_sha256: str
    issued_s: float
    expires_s: float
    revoked_s: float | None = None
    #: Counts the member's certificates.
    number: int = 0
    #: When it was first used, and when a newer one was, which superseded it.
    used_s: float | None = None
    superseded_s: float | None = None
    #: The hash of the manager's own authority that issued it. Empty if the cluster's authority did.
    issuer: str = ""
    #: Like ``NodeRow.epoch``.
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberChanges:
    """Members that changed since an earlier epoch, with all their certificates, as of ``epoch``."""

    epoch: int
    nodes: tuple[NodeRow, ...]
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """A job and its progress. ``term`` counts its leaders."""

    job: str
    name: str
    spec_json: str
    state: JobState
    reason: str
    term: int
    created_s: float
    ended_s: float | None
    progress_json: str
    #: Its leader under this term. Empty if it has none yet.
    leader: str = ""
    #: Term -> its leader, and the newest durable version then.
    terms_json: str = "{}"
    #: If managers share a depot: the name of its last acknowledged checkpoint. Empty if there is none.
    checkpoint: str = ""
    #: The seat of the manager that has this job. Empty if none has it yet, or the cluster has one manager.
    manager: str = ""


def job_row(row: Mapping[str, Any]) -> JobRow:
    """Return a row of the table as a value."""
    return JobRow(**{**row, "state": JobState(row["state"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochAudit:
    """An epoch in the history. Each batch was applied exactly once if both counts equal the number of batches."""

    epoch: int
    batches: int
    distinct: int
    first_version: int
    last_version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """An event shown to people. ``seq`` counts within its job and is never reused."""

    seq: int
    at_s: float
    kind: str
    text: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRow:
    """A version's results on held-out data."""

    version: int
    epoch: int
    #: None if the version was not measured by this metric.
    accuracy: float | None
    loss: float | None
    examples: int
    at_s: float
    metrics: tuple[MetricView, ...] = ()
