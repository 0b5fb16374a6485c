"""States that people see in ``shoal status``, each in one place. A state is its text on the wire and in the store."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """A job as its manager records it."""

    QUEUED = "queued"
    RUNNING = "running"
    #: An operator stopped it; its leader still makes its last version durable.
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_open(self) -> bool:
        """The job is not over: it has a leader, or will have one."""
        return self in _OPEN

    @property
    def is_ended(self) -> bool:
        return not self.is_open


#: The manager asks for each event which jobs are open.
_OPEN = (JobState.RUNNING, JobState.QUEUED, JobState.STOPPING)


class LeaderPhase(StrEnum):
    """What the leader of a job is doing."""

    #: It lends nothing yet: too few workers, a formation that is being set up, or versions that are not durable.
    WAITING = "waiting"
    TRAINING = "training"
    EVALUATING = "evaluating"
    #: The job is decided; the leader makes the last version durable.
    CLOSING = "closing"
    ENDED = "ended"

    @property
    def is_over(self) -> bool:
        """No lease is lent and no update is merged any more."""
        return self in (LeaderPhase.CLOSING, LeaderPhase.ENDED)


class SealPhase(StrEnum):
    """How far the sum of a group of sealed updates is."""

    #: Its members seal their updates and send them.
    UPLOADING = "uploading"
    #: Aggregators are asked for the sums of the words that they have.
    SUMMING = "summing"
    #: They are asked whether they were told of the same members.
    AGREEING = "agreeing"
    #: They are asked for shares of the masks that are left in the sum; or the helper is asked for their sum.
    OPENING = "opening"
    #: Its sum is known and is merged.
    OPENED = "opened"
    #: It has no sum and never will: its devices seal these updates for no other group.
    VOID = "void"


#: From each phase, those that may follow.
SEAL_MOVES: dict[SealPhase, tuple[SealPhase, ...]] = {
    SealPhase.UPLOADING: (SealPhase.SUMMING, SealPhase.AGREEING, SealPhase.OPENING, SealPhase.VOID),
    SealPhase.SUMMING: (SealPhase.AGREEING, SealPhase.OPENING, SealPhase.VOID),
    SealPhase.AGREEING: (SealPhase.OPENING, SealPhase.VOID),
    SealPhase.OPENING: (SealPhase.OPENED, SealPhase.VOID),
    SealPhase.OPENED: (),
    SealPhase.VOID: (),
}


class WorkerState(StrEnum):
    """A worker as its leader records it."""

    #: It may be lent a lease.
    READY = "ready"
    #: It was told to wait, and why.
    WAITING = "waiting"
    WORKING = "working"
    EVALUATING = "evaluating"
    #: Its update is on its way.
    DELIVERING = "delivering"
    #: Its lease expired.
    LATE = "late"
    #: Its trainer or its preparation failed.
    FAILING = "failing"

    @property
    def may_hold_lease(self) -> bool:
        return self in (WorkerState.DELIVERING, WorkerState.WORKING, WorkerState.WAITING, WorkerState.EVALUATING)


class WorkerPhase(StrEnum):
    """What a worker is doing, in its own words."""

    PREPARING = "preparing"
    READY = "ready"
    TRAINING = "training"
    EVALUATING = "evaluating"
    WAITING = "waiting"
    FAILING = "failing"


#: States of a job that is over.
ENDED: frozenset[str] = frozenset(state for state in JobState if state.is_ended)

#: A leader reports its phase, and the job's state once the job is over.
REPORTED: frozenset[str] = ENDED.union(LeaderPhase)
