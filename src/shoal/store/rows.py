"""What the registry gives back: one frozen value a row. Knows no SQL. Times are wall-clock seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.states import JobState
from shoal.wire.messages import MetricView


class Redeemed(NamedTuple):
    """What a token bought: an identity in the cluster."""

    node: str
    role: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A right to join. The secret itself is never stored."""

    secret_sha256: str
    role: str
    uses_left: int
    #: None: it does not expire.
    expires_s: float | None
    created_s: float
    label: str
    #: Every node that joins with this token has a name that starts so.
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
    #: The token it joined with; empty: none, or not known.
    token_sha256: str = ""
    #: When its name was last revoked, also where it was given again since. None: never.
    revoked_s: float | None = None
    #: Why it is in this state.
    reason: str = ""
    #: In a registry that was restored: the last certificate of this member that the copy knew. None: it knows them all.
    restored_number: int | None = None
    #: An operator forgot it: it is shut out, and not listed.
    is_forgotten: int = 0
    #: Where managers share a registry: the count of changes of members at which this one changed last.
    epoch: int = 0
    #: The card that an operator signed for it (``identity.cards``), in hexadecimal; empty: none.
    card: str = ""
    #: What an operator says that it is, as JSON: a list of ``NAME=VALUE``.
    labels_json: str = "[]"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(json.loads(self.labels_json))


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """A certificate that was issued, by the hash of all of it. It is recorded before anyone is handed it."""

    sha256: str
    node: str
    role: str
    #: The hash of its public key.
    key_sha256: str
    issued_s: float
    expires_s: float
    revoked_s: float | None = None
    #: Of this member's certificates, the how-manieth it is.
    number: int = 0
    #: When it was first used, and when a newer one was: that one superseded it.
    used_s: float | None = None
    superseded_s: float | None = None
    #: The manager's own authority that issued it, by its hash; empty: the cluster's did.
    issuer: str = ""
    #: As in ``NodeRow``.
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberChanges:
    """Members that changed since some epoch, with all their certificates, as of another."""

    epoch: int
    nodes: tuple[NodeRow, ...]
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """A job and how far it came. ``term`` counts its leaders."""

    job: str
    name: str
    spec_json: str
    state: JobState
    reason: str
    term: int
    created_s: float
    ended_s: float | None
    progress_json: str
    #: Who leads it under this term; empty: nobody yet.
    leader: str = ""
    #: Term -> who was given it, and the newest durable version then.
    terms_json: str = "{}"
    #: The name of its last checkpoint that was acknowledged, where managers share a depot; empty: none was.
    checkpoint: str = ""
    #: The manager whose job it is, by its seat; empty: nobody's yet, or the only manager's.
    manager: str = ""


def job_row(row: Mapping[str, Any]) -> JobRow:
    """Return a row of the table as a value."""
    return JobRow(**{**row, "state": JobState(row["state"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochAudit:
    """What the history says of one epoch: exactly once means ``batches == distinct ==`` the batches there are."""

    epoch: int
    batches: int
    distinct: int
    first_version: int
    last_version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, to be told. ``seq`` counts within its job and is never reused."""

    seq: int
    at_s: float
    kind: str
    text: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRow:
    """How good a version is on held-out data."""

    version: int
    epoch: int
    #: None: it has no metric of this name.
    accuracy: float | None
    loss: float | None
    examples: int
    at_s: float
    metrics: tuple[MetricView, ...] = ()
