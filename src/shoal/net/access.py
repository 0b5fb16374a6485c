"""Who may call what and send what: role x verb x message, in one table. Everything else is refused.

A caller's role is that of its certificate, or its current standing. To the manager, a member that waits to be approved
is ``pending``. To a node that leads, or aggregates, a node that works for it is a ``worker``, and it serves no others.
Among devices without a manager, each is a ``peer``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from shoal.errors import PeerViolation
from shoal.identity.names import RemoteIdentity
from shoal.net.base import SHUT_OUT
from shoal.wire.messages import MESSAGES, Caller, Verb

_Table = dict[str, dict[str, frozenset[str]]]


def _table(rows: Iterable[tuple[str, Mapping[Verb, tuple[Caller, ...]]]]) -> _Table:
    table: dict[str, dict[str, set[str]]] = {}
    for name, said in rows:
        for verb, roles in said.items():
            for role in roles:
                table.setdefault(verb, {}).setdefault(role, set()).add(name)
    return {verb: {role: frozenset(names) for role, names in row.items()} for verb, row in table.items()}


#: Verb -> role -> the names of what it may say there: a stream knows a name before it builds a message. A role without
#: a row may not call the verb at all.
MAY_SAY = _table((name, kind.rule.said_by) for name, kind in MESSAGES.items())
# A member that waits to be approved may hold the stream open, so that it is there when approved, but sends nothing.
MAY_SAY["Work"]["pending"] = frozenset()

#: Verb -> the role of the node that we called -> what it may send to us there. A leader is an ordinary node: it may
#: lease out work and make its workers aggregators, but may not make any node a worker or a leader.
MAY_ANSWER = _table((name, kind.rule.answered_by) for name, kind in MESSAGES.items())

_WHAT_IT_IS = {"pending": "a device that waits to be approved (`shoal nodes approve`)"}
_NOTHING: frozenset[str] = frozenset()


def may_answer(role: str, verb: str) -> Container[str]:
    """Return the names of the messages that a node of this role may send where we called it."""
    return MAY_ANSWER.get(verb, {}).get(role, _NOTHING)


class ShutOut(PeerViolation):
    """A former member calls. A repeated call does not count as an offence: its name may have a new owner."""

    def __init__(self, reason: str, *, peer: str) -> None:
        super().__init__(f"{SHUT_OUT}: {reason}", peer=peer)


class NotHere(ShutOut):
    """A member calls that this node does not serve, or not yet. This is not an offence."""

    def __init__(self, reason: str, *, peer: str) -> None:
        PeerViolation.__init__(self, reason, peer=peer)


class Members(Protocol):
    """The cluster's own word on a member, beyond what its certificate says."""

    async def meet(self, peer: RemoteIdentity) -> None:
        """It calls. Learn what is new about it, before anything else is asked; nothing is refused here."""
        ...

    def role_now(self, peer: RemoteIdentity) -> str:
        """The role it has at this moment. Raises ShutOut, with the reason, for one that has none any more.

        Asked for every message: it must be quick.
        """
        ...

    def check_key(self, peer: RemoteIdentity, verb: str) -> None:
        """Raise ShutOut, with the reason, if the caller's certificate was replaced. Called once per call."""
        ...

    async def let_in(self, peer: RemoteIdentity, verb: str) -> None:
        """Admit a call, which makes the caller's earlier certificates invalid.

        Raises ShutOut or NotHere with the reason if the caller may not come in. It may take a moment to decide.
        """
        ...


class AnyKey:
    """Every certificate is as good as another of the same name: for nodes that keep no roll."""

    async def meet(self, peer: RemoteIdentity) -> None:
        pass

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

    async def meet(self, peer: RemoteIdentity) -> None:
        await self._members.meet(peer)

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
        return name in MAY_SAY.get(verb, {}).get(self._role(peer), _NOTHING)

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
