"""The member register: who may join this cluster and who belongs to it. The registry keeps it; this answers what
operators ask.

Its commands write to the disk and are called in a thread. Times are the manager's wall clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from shoal.errors import Misuse, Refused, ShoalError
from shoal.identity.cards import card_until_s, day_of
from shoal.identity.identity import Authority, certificate_sha256
from shoal.identity.join_code import new_secret
from shoal.identity.names import DEVICE_ROLES, RemoteIdentity
from shoal.identity.tokens import ENROLLABLE_ROLES, Denial, Grant, Lapsed
from shoal.net.access import NotHere, ShutOut
from shoal.net.base import SHUT_OUT
from shoal.store.registry import Registry
from shoal.store.rows import Certificate, MemberChanges, NodeRow, Redeemed, Token
from shoal.where import LABELS_MAX, parse_labels
from shoal.wire.messages import (
    ApproveNode,
    AskTokens,
    Done,
    DrainNode,
    LabelNode,
    MakeToken,
    Message,
    NodeView,
    Renew,
    Renewed,
    RevokeNode,
    RevokeToken,
    TokenList,
    TokenMade,
    TokenView,
    UndrainNode,
    clip,
)

log = logging.getLogger("shoal")

#: What an operator may ask of the roll.
RegisterCommand = MakeToken | AskTokens | RevokeToken | RevokeNode | ApproveNode | DrainNode | UndrainNode | LabelNode

#: States in which a member is held back.
HELD = ("pending", "drained")

#: Enough of a hash to tell tokens apart, and to type.
TOKEN_ID_CHARS = 8

TOKEN_USES_MAX = 100_000
TOKEN_VALID_MAX_S = 366 * 86400.0
LABEL_MAX_CHARS = 60
REASON_SHOWN_CHARS = 400

#: An alarm about one member and address is told once in this time, with how often it was raised since.
ALARM_EVERY_S = 60.0
#: Members and addresses whose last alarm is remembered.
ALARMS_REMEMBERED = 1000

#: How long after its certificate ran out a member may still have another by proving that it holds the key.
LAPSED_MAX_S = 180 * 86400.0

_JOIN_ANEW = "ask for a new line, and join with `shoal join LINE --anew`"

_STANDS = {"enrolled": "a member like any other", "pending": "not approved yet", "drained": "drained already"}


class MemberRegister:
    """Also the tokens of an enrolment server (``identity.tokens``) and the members of a server (``net.access``).

    What it says of a member is read from memory, for it is asked for every message; ``refresh`` and ``catch_up`` bring
    that up to date and belong to the event loop, as do those two.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._line: Callable[[str], str] | None = None
        #: Makes the link that a browser opens; None: there is no door for tabs.
        self.link: Callable[[str], str] | None = None
        self._authority: Authority | None = None
        #: Newcomers wait until an operator approves them.
        self.approves_newcomers = False
        #: Says why a member is not let in at this moment, if it is not.
        self.guard: Callable[[RemoteIdentity, str], Awaitable[str]] | None = None
        #: Hears of every alarm: one line that says what to do.
        self.on_alarm: Callable[[str], None] = log.warning
        #: Where other managers change members too: up to which change they are known here. Read first, so that what
        #: changes meanwhile is read again.
        self._epoch = registry.members_epoch() if registry.is_shared else 0
        self._reading = asyncio.Lock()
        self._reads_begun = 0
        #: Members that another manager changed, and nobody was told of yet.
        self._news: dict[str, NodeRow] = {}
        self._nodes: dict[str, NodeRow] = {row.node: row for row in registry.nodes()}
        #: Certificates that were issued and are not revoked.
        self._good: set[str] = set()
        #: Those that a newer one of the same member replaced, and when.
        self._superseded: dict[str, float] = {}
        #: Those that are good and were used.
        self._used: set[str] = set()
        #: Members that have recorded certificates: an unrecorded certificate of such a member is an older one.
        self._recorded: set[str] = set()
        #: Authorities of managers' own, by their hashes, whose they are, and those that were revoked.
        self._authorities: dict[str, str] = {}
        self._void_authorities: dict[str, str] = {}
        #: (member, address) -> when an alarm was last told, and how many were not told since.
        self._alarms: dict[tuple[str, str], tuple[float, int]] = {}
        for row in registry.certificates():
            self._heed(row)

    def open_to(self, line: Callable[[str], str]) -> None:
        """Devices can join: ``line`` makes the line to paste out of a secret."""
        self._line = line

    # Members ------------------------------------------------------------------------------------------

    def role_now(self, peer: RemoteIdentity) -> str:
        for shown in peer.authorities:
            if shown not in self._authorities:
                raise ShutOut(self._why_void(shown), peer=peer.node)
        node = self._nodes.get(peer.node)
        if node is None:
            raise ShutOut("this cluster does not know it: join again with a new line", peer=peer.node)
        if node.state == "revoked":
            raise ShutOut(self.why_revoked(node), peer=peer.node)
        if node.revoked_s is not None and peer.certificate not in self._good:
            raise ShutOut(f"this certificate was {self.why_revoked(node)}", peer=peer.node)
        if peer.role != node.role:
            raise ShutOut(f"it is {node.role} now and not {peer.role}: join again with a new line", peer=peer.node)
        return "pending" if node.state == "pending" else peer.role

    def _why_void(self, authority: str) -> str:
        if manager := self._void_authorities.get(authority):
            return f"its certificate is of the manager {manager}, whose authority was revoked: {_JOIN_ANEW}"
        return f"its certificate is of a manager that never ran this cluster: {_JOIN_ANEW}"

    @property
    def has_devices(self) -> bool:
        """A device has joined and was not shut out."""
        return any(node.role in DEVICE_ROLES and node.state != "revoked" for node in self._nodes.values())

    def devices(self) -> list[str]:
        """Devices that may work, whether they are here or not."""
        return [node.node for node in self._nodes.values() if node.role in DEVICE_ROLES and node.state == "enrolled"]

    def held(self) -> dict[str, str]:
        """Members that are held back, and how."""
        return {node.node: node.state for node in self._nodes.values() if node.state in HELD}

    def revoked(self) -> list[NodeRow]:
        """Return the members that are shut out."""
        return [node for node in self._nodes.values() if node.state == "revoked"]

    @property
    def epoch(self) -> int:
        """Up to which change members are known here, where managers share a store."""
        return self._epoch

    def why_revoked(self, node: NodeRow) -> str:
        when = _minute(node.revoked_s or 0.0)
        reason = f" ({node.reason})" if node.reason else ""
        return f"revoked on {when}{reason}: {_JOIN_ANEW}"

    def member(self, name: str) -> NodeRow | None:
        """What is known of a member, without asking the registry."""
        return self._nodes.get(name)

    def refresh(self, name: str) -> NodeRow | None:
        """Heed what the registry says of a member by now. The caller acts on it: ``catch_up`` tells it to nobody."""
        node = self._look_up(name)
        self._news.pop(name, None)
        return node

    def _look_up(self, name: str) -> NodeRow | None:
        node = self._registry.node(name)
        if node is not None:
            self._note_news(node)
            self._nodes[name] = node
        for row in self._registry.certificates(name):
            self._heed(row)
        return node

    # What other managers changed ----------------------------------------------------------------------

    async def catch_up(self) -> list[NodeRow]:
        """Heed what other managers changed. The members whose standing is another since this was last called: those
        that are revoked are to be expelled, the others held back or employed."""
        await self._read_changes()
        news, self._news = list(self._news.values()), {}
        return news

    async def meet(self, peer: RemoteIdentity) -> None:
        """It calls: what another manager did about it a moment ago counts here."""
        try:
            await self._read_changes()
        except ShoalError as error:
            # What is known decides. A manager that is cut off for long shuts its doors.
            log.debug("members are not up to date: %s", error)

    async def _read_changes(self) -> None:
        """As of a moment after this was called. Of many that wait, one reads for all."""
        if not self._registry.is_shared:
            return
        wanted = self._reads_begun + 1
        async with self._reading:
            if self._reads_begun >= wanted:
                return
            self._reads_begun += 1
            if await asyncio.to_thread(self._registry.members_epoch) != self._epoch:
                self._apply(await asyncio.to_thread(self._registry.members_since, self._epoch))

    def _apply(self, changes: MemberChanges) -> None:
        newer = set()
        for node in changes.nodes:
            before = self._nodes.get(node.node)
            if before is not None and before.epoch > node.epoch:
                continue  # it changed since they were read, and was refreshed here
            newer.add(node.node)
            self._note_news(node)
            self._nodes[node.node] = node
        for row in changes.certificates:
            if row.node in newer:
                self._heed(row)
        self._epoch = changes.epoch

    def _note_news(self, node: NodeRow) -> None:
        before = self._nodes.get(node.node)
        if self._registry.is_shared and (before is None or _standing(before) != _standing(node)):
            self._news[node.node] = node

    def _heed(self, row: Certificate) -> None:
        if row.role == "manager":
            self._heed_authority(row)
            return
        self._recorded.add(row.node)
        if row.revoked_s is None:
            self._good.add(row.sha256)
        else:
            self._good.discard(row.sha256)
        if row.superseded_s is not None:
            self._superseded[row.sha256] = row.superseded_s
            self._used.discard(row.sha256)
        elif row.used_s is not None:
            self._used.add(row.sha256)

    def _heed_authority(self, row: Certificate) -> None:
        if row.revoked_s is None:
            self._authorities[row.sha256] = row.node
        else:
            self._authorities.pop(row.sha256, None)
            self._void_authorities[row.sha256] = row.node

    def is_replaced(self, certificate_pem: bytes) -> bool:
        """Whether a newer certificate of the same member was used."""
        return certificate_sha256(certificate_pem) in self._superseded

    # Keys that were replaced --------------------------------------------------------------------------

    def check_key(self, peer: RemoteIdentity, verb: str) -> None:
        """Raise ShutOut, and an alarm, if this certificate was replaced by one that its member has used since."""
        since_s = self._superseded.get(peer.certificate)
        if since_s is None and (peer.certificate in self._good or peer.node not in self._recorded):
            return
        node = self._nodes.get(peer.node)
        if node is None or (node.revoked_s is not None and peer.certificate not in self._good):
            return  # role_now refuses it, for that reason
        if since_s is None and node.restored_number is not None:
            return  # issued after the copy was made from which this registry was restored
        raise ShutOut(self._replaced(peer.node, since_s, address=peer.address, at=verb), peer=peer.node)

    async def let_in(self, peer: RemoteIdentity, verb: str) -> None:
        """It comes in with this certificate, unless the guard says why not: older ones of it are void from now on."""
        if self.guard is not None and (reason := await self.guard(peer, verb)):
            raise NotHere(reason, peer=peer.node)
        if peer.certificate in self._used or peer.certificate not in self._good:
            return
        try:
            await asyncio.to_thread(self._registry.use_certificate, peer.certificate, now_s=time.time())
        except ShoalError as error:
            # It may work on: its older keys are retired with its next call.
            log.warning("that %s uses its new certificate could not be written down: %s", peer.node, error)
            return
        self._look_up(peer.node)

    def refuse_replaced(self, lapsed: Lapsed, *, address: str) -> str:
        """A caller used a replaced certificate's key to ask for a new one: raise an alarm, and say why not."""
        return f"{SHUT_OUT}: {self._replaced(lapsed.node, lapsed.superseded_s, address=address, at='the join port')}"

    def _replaced(self, node: str, since_s: float | None, *, address: str, at: str) -> str:
        when = f" on {_minute(since_s)}" if since_s is not None else ""
        self.alarm(
            node,
            address,
            f"a key of {node} that was replaced{when} was used from {address or 'an unknown address'} ({at}), and"
            f" refused. Either an old copy of {node} was restored there, or its key was stolen: if you do not know that"
            f" device, `shoal nodes revoke {node}`, then join the real {node} again: `shoal token create` here,"
            " `shoal join LINE --anew` there",
        )
        return f"the key of this certificate was replaced{when} by a newer one of {node}: {_JOIN_ANEW}"

    def alarm(self, node: str, address: str, text: str) -> None:
        """Tell an operator, once in a while for the same member and address."""
        now_s = time.monotonic()
        told_s, more = self._alarms.pop((node, address), (float("-inf"), 0))
        if now_s - told_s < ALARM_EVERY_S:
            self._alarms[node, address] = told_s, more + 1
            return
        while len(self._alarms) >= ALARMS_REMEMBERED:
            del self._alarms[next(iter(self._alarms))]
        self._alarms[node, address] = now_s, 0
        self.on_alarm(f"{text} ({more} more such attempts since the last alarm)" if more else text)

    def redeem(
        self,
        secret: str,
        *,
        wanted: str,
        now_s: float,
        facts: Mapping[str, str] | None = None,
        is_tab: bool = False,
    ) -> Grant | Denial:
        state = "pending" if self.approves_newcomers else "enrolled"
        told = json.dumps(dict(facts or {}))
        outcome = self._registry.redeem_token(secret, wanted, now_s, state=state, facts_json=told, is_tab=is_tab)
        if not isinstance(outcome, Redeemed):
            return Denial(reason=outcome)
        self.refresh(outcome.node)
        return Grant(node=outcome.node, role=outcome.role)

    def why_not_invited(self, secret: str, *, now_s: float) -> str | None:
        """Return why a tab cannot join with this token, or None if it can. Nothing is spent."""
        return self._registry.why_no_invitation(secret, now_s)

    def record(self, certificate_pem: bytes, *, now_s: float, replaces: str = "") -> float:
        """A certificate was issued: it is durable here before anyone is handed it. When it expires."""
        from shoal.identity import certificates

        issued = certificates.issued(certificate_pem)
        row = Certificate(
            sha256=certificate_sha256(certificate_pem),
            node=issued.peer.node,
            role=issued.peer.role,
            key_sha256=issued.key_sha256,
            issued_s=now_s,
            expires_s=issued.expires_s,
            issuer=self._authority.own_sha256 if self._authority is not None else "",
        )
        self._registry.add_certificate(row, replaces=replaces)
        self._heed(row)
        return row.expires_s

    def sign_with(self, authority: Authority) -> None:
        """Certificates can be renewed: this authority issues them. A manager's own is on the books from now on.

        Raises Misuse for one that was revoked, and for one under the name of another member.
        """
        if authority.name:
            self._admit_authority(authority)
        self._authority = authority

    def _admit_authority(self, authority: Authority) -> None:
        from shoal.identity import certificates

        now_s, own = time.time(), certificates.own_authority(authority.own_pem)
        self.reserve(authority.name, "manager", now_s=now_s)
        known = self._nodes.get(authority.name)
        if known is not None and known.role != "manager":
            raise Misuse(
                f"a member is called {authority.name} already: issue this manager's authority under another name"
            )
        if known is not None and known.state == "revoked":
            raise Misuse(
                f"the authority of the manager {authority.name} was revoked on {_minute(known.revoked_s or 0.0)}: issue"
                " another one, under another name"
            )
        if self._registry.certificate(authority.own_sha256) is None:
            row = Certificate(
                sha256=authority.own_sha256,
                node=authority.name,
                role="manager",
                key_sha256=own.key_sha256,
                issued_s=now_s,
                expires_s=own.expires_s,
            )
            self._registry.add_certificate(row)
            self._heed(row)
        log.info("this manager signs with its own authority, %s, until %s", authority.name, day_of(own.expires_s))

    def shut_out_with(self, manager: str) -> list[NodeRow]:
        """Members that were shut out with a manager's authority, by the registry, and that nobody here heard of."""
        gone = []
        for name in self._registry.issued_by(manager):
            before = self._nodes.get(name)
            node = self._look_up(name)
            if node is not None and node.state == "revoked" and (before is None or before.state != "revoked"):
                gone.append(node)
                self._news.pop(name, None)
        return gone

    def renew(self, peer: RemoteIdentity, asked: Renew) -> Renewed:
        """Another certificate for a member, under the name and role that it has."""
        if self._authority is None:
            raise Refused("certificates cannot be renewed yet: the manager is still starting")
        now_s = time.time()
        certificate_pem = self._authority.issue(node=peer.node, role=peer.role, csr_pem=asked.csr_pem.encode())
        expires_s = self.record(certificate_pem, now_s=now_s, replaces=peer.certificate)
        log.info("%s has a new certificate, until %s", peer.node, day_of(expires_s))
        return Renewed(certificate_pem=certificate_pem.decode("ascii"), issued_s=now_s, expires_s=expires_s)

    def lapsed(self, certificate_sha256: str, *, now_s: float) -> Lapsed | Denial:
        row = self._registry.certificate(certificate_sha256)
        if row is not None and self._registry.is_shared:
            self._look_up(row.node)
        node = self._nodes.get(row.node) if row else None
        if row is None or node is None:
            return Denial(reason=f"this certificate is not known here: {_JOIN_ANEW}")
        if row.revoked_s is not None or node.state == "revoked":
            return Denial(reason=f"{SHUT_OUT}: {self.why_revoked(node)}")
        if row.role != node.role:
            return Denial(reason=f"{node.node} is {node.role} now and not {row.role}: {_JOIN_ANEW}")
        if now_s > row.expires_s + LAPSED_MAX_S:
            days = LAPSED_MAX_S / 86400
            return Denial(
                reason=f"the certificate ran out on {day_of(row.expires_s)}, over {days:g} days ago: {_JOIN_ANEW}"
            )
        return Lapsed(node=row.node, role=row.role, key_sha256=row.key_sha256, superseded_s=row.superseded_s)

    def reserve(self, name: str, role: str, *, now_s: float) -> None:
        """A member that did not join through a token: the manager, and the operator on its machine."""
        if name not in self._nodes:
            self._registry.reserve_node(name, role, now_s=now_s)
            self.refresh(name)

    def listed(self, present: Iterable[str]) -> set[str]:
        """The members that people see: those present, and those that are not here and stand out or have a card."""
        names = set(present)
        for node in list(self._nodes.values()):
            if node.is_forgotten:
                names.discard(node.node)
            elif node.state != "enrolled" or node.card:
                names.add(node.node)
        return names

    def shown(self, views: Sequence[NodeView], names: Collection[str] | None = None) -> tuple[NodeView, ...]:
        """What people see of members, with how they stand: of these, or of all that are listed."""
        listed = self.listed(view.node for view in views) if names is None else set(names)
        seen = {view.node: view for view in views if view.node in listed}
        for name in listed:
            node = self._nodes.get(name)
            if node is not None and node.state != "enrolled":
                view = seen.get(name) or NodeView(node=name, state="lost")
                reason = clip(self._why(node), REASON_SHOWN_CHARS)
                seen[name] = dataclasses.replace(view, standing=node.state, reason=reason)
            if node is not None and node.card:
                away = NodeView(node=name, state="lost", reason="not seen since the manager started")
                until_s = card_until_s(bytes.fromhex(node.card))
                seen[name] = dataclasses.replace(seen.get(name) or away, card_until_s=until_s)
        return tuple(seen[name] for name in sorted(seen))

    def _why(self, node: NodeRow) -> str:
        match node.state:
            case "revoked":
                return self.why_revoked(node)
            case "pending":
                return f"waits to be approved: shoal nodes approve {node.node}"
        return f"finishes its lease and gets no other{f': {node.reason}' if node.reason else ''}"

    # What operators ask -------------------------------------------------------------------------------

    def answer(self, command: RegisterCommand, *, by: str) -> Message:
        """Carry out what ``by`` asked for; durable when this returns. Call ``refresh`` for the member it was about."""
        match command:
            case MakeToken():
                return self._make_token(command)
            case AskTokens():
                found = (token for token in self._registry.tokens() if token.secret_sha256.startswith(command.token))
                return TokenList(tokens=tuple(_view(token) for token in found))
            case RevokeToken():
                return self._revoke_token(command.token)
            case RevokeNode():
                return self._revoke_node(command, by)
            case ApproveNode():
                return self._approve(command, by)
            case DrainNode():
                done = f"finishes the lease it has and gets no other; undo with `shoal nodes undrain {command.node}`"
                return self._move(
                    command.node, "drained", when="enrolled", done=done, reason=_signed(command.reason, by)
                )
            case LabelNode():
                return self._label(command)
            case UndrainNode():
                return self._move(
                    command.node, "enrolled", when="drained", done="may be given work again", reason=f"by {by}"
                )

    def _revoke_node(self, command: RevokeNode, by: str) -> Done:
        node = self._known(command.node)
        if self._authority is not None and node.node == self._authority.name:
            raise Refused(f"this manager signs with the authority {node.node}: revoke it at another manager")
        is_authority = node.role == "manager" and node.node in self._authorities.values()
        if node.role not in DEVICE_ROLES and not node.token_sha256 and not is_authority:
            raise Refused(f"{node.node} lives beside the cluster's key: to be rid of it, create a new cluster")
        if node.node == by:
            raise Refused(f"{by} would shut itself out: revoke it as another operator")
        if node.state == "revoked":
            raise Refused(f"{node.node} was {self.why_revoked(node)}")
        self._registry.revoke_node(
            node.node, now_s=time.time(), reason=clip(_signed(command.reason, by), REASON_SHOWN_CHARS)
        )
        if is_authority:
            shut_out = len(self._registry.issued_by(node.node))
            return Done(
                reason=f"the authority of the manager {node.node} is void, and so is what it issued to {shut_out}"
                " members: a device without another certificate joins again with a new line and --anew"
            )
        void = "; the line it joined with is void: `shoal token create` makes another" if node.token_sha256 else ""
        return Done(reason=f"{node.node} is shut out{void}")

    def _approve(self, command: ApproveNode, by: str) -> Done:
        if not command.card:
            return self._move(
                command.node, "enrolled", when="pending", done="may work from now on", reason=f"approved by {by}"
            )
        node = self._known(command.node)
        if node.state == "revoked":
            raise Refused(f"{node.node} was {self.why_revoked(node)}")
        if node.role != "node":
            raise Refused(f"{node.node} is {node.role}: only a device with an agent has a card")
        until_s = card_until_s(command.card)
        if until_s <= time.time():
            raise Refused("this card has run out, or is not a card: sign another with `shoal nodes approve`")
        self._registry.set_node_card(node.node, command.card.hex())
        if node.state == "pending":
            self._move(node.node, "enrolled", when="pending", done="", reason=f"approved by {by}")
        return Done(reason=f"{node.node} may be in sealed groups with signed members until {day_of(until_s)}")

    def _label(self, command: LabelNode) -> Done:
        node = self._known(command.node)
        if node.state == "revoked":
            raise Refused(f"{node.node} was {self.why_revoked(node)}")
        if node.role not in DEVICE_ROLES:
            raise Refused(f"{node.node} is {node.role} and does not work: only devices have labels")
        known = {**parse_labels(node.labels), **parse_labels(command.labels)}
        kept = tuple(f"{name}={value}" for name, value in sorted(known.items()) if value)
        if len(kept) > LABELS_MAX:
            raise Refused(f"{node.node} would have {len(kept)} labels: at most {LABELS_MAX}")
        self._registry.set_node_labels(node.node, kept)
        return Done(reason=f"{node.node} is labelled {', '.join(kept) or 'as it says itself'}")

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return what operators say that members are, of those with labels."""
        return {node.node: node.labels for node in self._nodes.values() if node.labels}

    def cards(self) -> dict[str, bytes]:
        """Return the cards of members that have one."""
        return {node.node: bytes.fromhex(node.card) for node in self._nodes.values() if node.card}

    def _move(self, name: str, state: str, *, when: str, done: str, reason: str = "") -> Done:
        node = self._known(name)
        if node.state == "revoked":
            raise Refused(f"{name} was {self.why_revoked(node)}")
        if node.state != when:
            raise Refused(f"{name} is {_STANDS[node.state]}: see `shoal nodes`")
        if state == "drained" and node.role not in DEVICE_ROLES:
            raise Refused(f"{name} is {node.role} and does not work: only devices are drained")
        self._registry.set_node_state(name, state, reason=clip(reason, REASON_SHOWN_CHARS))
        return Done(reason=f"{name} {done}")

    def check_forget(self, name: str) -> None:
        """Refuse to forget a member that is no device, unless it was revoked."""
        node = self._known(name)
        if node.role not in DEVICE_ROLES and node.state != "revoked":
            raise Refused(f"{name} is {node.role} and not a device: shut it out with `shoal nodes revoke {name}` first")

    def _known(self, name: str) -> NodeRow:
        node = self._registry.node(name)
        if node is None or node.is_forgotten:
            raise Refused(f"there is no member {name!r}: `shoal nodes` lists those there are")
        return node

    def _make_token(self, wanted: MakeToken) -> TokenMade:
        if self._line is None:
            raise Refused("nobody can join yet: the manager is still starting, try again in a moment")
        if wanted.role not in ENROLLABLE_ROLES:
            raise Refused(f"a token makes one of {', '.join(ENROLLABLE_ROLES)}, not {wanted.role[:40]!r}")
        if wanted.role == "browser" and self.link is None:
            raise Refused(
                "no browser can join: start the manager with `shoal up --browser https://NAME:PORT` and a certificate,"
                " or --browser http://127.0.0.1:7075 for browsers on its own machine"
            )
        if not 1 <= wanted.uses <= TOKEN_USES_MAX:
            raise Refused(f"a token is good for 1 to {TOKEN_USES_MAX:,} devices, not {wanted.uses:,}")
        if not 0 < wanted.valid_s <= TOKEN_VALID_MAX_S:
            raise Refused(f"a token is valid for up to {TOKEN_VALID_MAX_S / 3600:g} hours: choose fewer")
        if len(wanted.label) > LABEL_MAX_CHARS or not wanted.label.isprintable():
            raise Refused(f"a label has up to {LABEL_MAX_CHARS} printable characters")
        return self.new_token(role=wanted.role, uses=wanted.uses, valid_s=wanted.valid_s, label=wanted.label)

    def new_token(self, *, role: str, uses: int, valid_s: float, label: str) -> TokenMade:
        """A token that is durable when this returns, and the line that carries its secret."""
        line = self.link if role == "browser" else self._line
        if line is None:
            raise Misuse("the roll is not open yet: call open_to first")
        secret, now_s = new_secret(), time.time()
        token = self._registry.add_token(
            secret=secret, role=role, uses=uses, now_s=now_s, expires_s=now_s + valid_s, label=label
        )
        return TokenMade(token=_view(token), join_line=line(secret))

    def _revoke_token(self, wanted: str) -> Done:
        # Short enough to type by mistake, a start names nothing: not even where it happens to be the only one.
        found = [token for token in self._registry.tokens() if token.secret_sha256.startswith(wanted)]
        if len(wanted) < TOKEN_ID_CHARS or not found:
            raise Refused(f"there is no token {wanted[:80]!r}: `shoal token list` shows their ids")
        if len(found) > 1 or not self._registry.revoke_token(found[0].secret_sha256):
            raise Refused(f"{wanted[:80]!r} names no single token any more: look again with `shoal token list`")
        return Done(reason=f"nobody joins with token {_id(found[0])} any more; devices that joined with it stay")


def _standing(node: NodeRow) -> tuple[object, ...]:
    """What decides whether it may come in and work. Revoked and let in again is another standing."""
    return node.state, node.role, node.revoked_s, node.is_forgotten, node.card


def _minute(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))


def _signed(reason: str, by: str) -> str:
    return f"by {by}: {reason}" if reason else f"by {by}"


def _id(token: Token) -> str:
    return token.secret_sha256[:TOKEN_ID_CHARS]


def _view(token: Token) -> TokenView:
    return TokenView(
        token=_id(token),
        role=token.role,
        uses_left=token.uses_left,
        expires_s=token.expires_s or 0.0,
        made_s=token.created_s,
        label=token.label[:LABEL_MAX_CHARS],
    )
