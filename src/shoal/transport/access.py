"""Who may call what and say what: role x verb x message, in one table. What is not in it is refused.

A role is that of the certificate, or what is known of its owner now: to the manager, a member that waits to be approved
is ``pending``; to a node that leads, in whole or in part, one that works for it is a ``worker``, and others are nobody;
among devices without a manager each is a ``mate``.
Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from shoal.errors import PeerViolation
from shoal.transport.base import SHUT_OUT
from shoal.transport.names import RemoteIdentity
from shoal.wire.messages import (
    Admit,
    ApproveNode,
    AskCheckpoint,
    AskModel,
    AskPool,
    AskStatus,
    AskTokens,
    AskVersions,
    Assign,
    Bar,
    Blob,
    Call,
    Caught,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Conclude,
    Count,
    Disband,
    Dismiss,
    DrainNode,
    Evaluated,
    Failed,
    Finished,
    Forget,
    Form,
    Formed,
    Gathered,
    Given,
    Go,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Leads,
    Leave,
    Lend,
    Made,
    MakeToken,
    Measure,
    Message,
    NeedRight,
    Noted,
    Offer,
    OutOfReach,
    Part,
    Pass,
    Piece,
    Pool,
    Progress,
    PublishModel,
    Ready,
    Refused,
    Release,
    Released,
    Renew,
    Result,
    RevokeNode,
    RevokeToken,
    Right,
    RollBackModel,
    Route,
    Routed,
    Spoilt,
    Standing,
    StepDown,
    SteppedDown,
    StopJob,
    Submit,
    Taken,
    Task,
    TransferJob,
    UndrainNode,
    Update,
    Values,
    Wait,
    Want,
    Welcome,
    Work,
)

#: What a worker says to its leader, and a sub-leader to the leader it sums up for: it is one of its workers.
_TO_LEADER = frozenset({Ready, Offer, Update, Evaluated, Failed, Formed, Made, Routed, Spoilt, Gathered})

#: What a leader says to its workers and to its sub-leaders.
_FROM_LEADER = frozenset({Work, Wait, Go, Refused, Finished, Form, Count, Pass, Disband, Route})

#: Verb -> role -> what it may say there. A role without a row may not call the verb at all.
MAY_SAY: dict[str, dict[str, frozenset[type[Message]]]] = {
    "Control": {
        "node": frozenset(
            {Hello, Heartbeat, Leave, OutOfReach, Leads, Progress, Noted, Released, SteppedDown}  # the last as a leader
        ),
        "worker": frozenset({Hello, Heartbeat, Leave}),
        "pending": frozenset({Hello, Heartbeat, Leave}),
        "mate": frozenset({Standing, Call, Want}),
    },
    "Work": {
        "node": _TO_LEADER | {AskCheckpoint, Checkpoint, Lend, NeedRight, Result},
        # Sub-leaders are on devices alone: a piece is for them.
        "worker": _TO_LEADER | {Piece},
        # It may hold the stream open, so that approval finds it there, and say nothing.
        "pending": frozenset(),
        "mate": frozenset({Part, Given}),
        # As an analyst: it borrows from the pool.
        "operator": frozenset({AskPool, Task, Right, Caught, Forget}),
    },
    "Fetch": {
        "node": frozenset({Blob}),
        "operator": frozenset({Blob}),
    },
    "Operate": {
        "operator": frozenset(
            {
                Submit,
                StopJob,
                TransferJob,
                AskStatus,
                AskModel,
                AskVersions,
                PublishModel,
                RollBackModel,
                MakeToken,
                AskTokens,
                RevokeToken,
                RevokeNode,
                ApproveNode,
                DrainNode,
                UndrainNode,
            }
        ),
    },
    "Store": {
        "operator": frozenset({Blob}),
    },
    "Renew": {
        "node": frozenset({Renew}),
        "operator": frozenset({Renew}),
        "pending": frozenset({Renew}),
    },
}

#: Verb -> the role of whom we dialled -> what it may say to us there. A leader is a node like any other: it may lend
#: work and have its workers sum up for it, and makes nobody a worker or a leader.
MAY_ANSWER: dict[str, dict[str, frozenset[type[Message]]]] = {
    "Control": {
        "manager": frozenset(
            {Welcome, HeartbeatSeen, Assign, Dismiss, Admit, Bar, Conclude, HandOver, StepDown, Release}
        ),
        "node": frozenset({Welcome, HeartbeatSeen}),
    },
    "Work": {
        "manager": _FROM_LEADER
        | {Checkpoint, CheckpointKept, CheckpointRefused}
        | {Measure, Task, Right, Pool, NeedRight, Result},
        "node": _FROM_LEADER | {Taken, Values},
    },
}

#: The same by the names of messages, which is what a stream knows before it builds one.
_NAMES = {
    verb: {role: frozenset(kind.__name__ for kind in kinds) for role, kinds in row.items()}
    for verb, row in MAY_SAY.items()
}
_ANSWERS = {
    verb: {role: frozenset(kind.__name__ for kind in kinds) for role, kinds in row.items()}
    for verb, row in MAY_ANSWER.items()
}
_WHAT_IT_IS = {"pending": "one who waits to be approved (`shoal nodes approve`)"}
_NOTHING: frozenset[str] = frozenset()


def may_answer(role: str, verb: str) -> Container[str]:
    """The names of what one of this role may say where we called it."""
    return _ANSWERS.get(verb, {}).get(role, _NOTHING)


class ShutOut(PeerViolation):
    """A member that is one no more. Knocking again is no offence of its own: its name may have a new owner."""

    def __init__(self, reason: str, *, peer: str) -> None:
        super().__init__(f"{SHUT_OUT}: {reason}", peer=peer)


class NotHere(ShutOut):
    """A member, but not one whom this node serves, or not yet: no offence."""

    def __init__(self, reason: str, *, peer: str) -> None:
        PeerViolation.__init__(self, reason, peer=peer)


class Members(Protocol):
    """The cluster's own word on a member, beyond what its certificate says."""

    def role_now(self, peer: RemoteIdentity) -> str:
        """The role it has at this moment. Raises ShutOut, with the reason, for one that has none any more.

        Asked for every message: it must be quick.
        """
        ...

    def check_key(self, peer: RemoteIdentity, verb: str) -> None:
        """Raise ShutOut, with the reason, if the certificate of this caller was replaced. Asked once a call."""
        ...

    async def let_in(self, peer: RemoteIdentity, verb: str) -> None:
        """What it calls is done now: certificates that it had before this one are of no use any more.

        Raises ShutOut, or NotHere, with the reason, for one that is not to come in; it may take a moment to tell.
        """
        ...


class AnyKey:
    """Every certificate is as good as another of the same name: for nodes that keep no roll."""

    def check_key(self, peer: RemoteIdentity, verb: str) -> None:
        pass

    async def let_in(self, peer: RemoteIdentity, verb: str) -> None:
        pass


class AsCertified(AnyKey):
    """Every member is what its certificate says."""

    def role_now(self, peer: RemoteIdentity) -> str:
        return peer.role


class Access:
    """The table, applied to the members of one cluster."""

    def __init__(self, *, cluster: str, members: Members | None = None) -> None:
        self._cluster = cluster
        self._members: Members = members or AsCertified()

    def check_call(self, peer: RemoteIdentity, verb: str) -> None:
        """Raise unless this peer may call this verb now."""
        role = self._role(peer)
        if role not in MAY_SAY.get(verb, {}):
            raise PeerViolation(f"{_WHAT_IT_IS.get(role, f'a {role}')} may not call {verb}", peer=peer.node)

    def check_key(self, peer: RemoteIdentity, verb: str) -> None:
        """Raise if this caller's certificate was replaced."""
        self._members.check_key(peer, verb)

    async def let_in(self, peer: RemoteIdentity, verb: str) -> None:
        await self._members.let_in(peer, verb)

    def heard(self, peer: RemoteIdentity, verb: str) -> Container[str]:
        """The names of what this peer may say there, at the moment each is asked for."""
        return _Heard(self, peer, verb)

    def may_say(self, peer: RemoteIdentity, verb: str, name: str) -> bool:
        return name in _NAMES.get(verb, {}).get(self._role(peer), _NOTHING)

    def _role(self, peer: RemoteIdentity) -> str:
        if peer.cluster != self._cluster:
            raise PeerViolation(f"belongs to cluster {peer.cluster}, not {self._cluster}", peer=peer.node)
        return self._members.role_now(peer)


class _Heard:
    def __init__(self, access: Access, peer: RemoteIdentity, verb: str) -> None:
        self._access = access
        self._peer = peer
        self._verb = verb

    def __contains__(self, name: object) -> bool:
        return self._access.may_say(self._peer, self._verb, str(name))
