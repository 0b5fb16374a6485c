"""Who may join, and who has: tokens, members and their certificates, as rows. A part of the registry.

Where managers share a database, each transaction about members counts an epoch on and marks the rows that it changed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable

from shoal.errors import Misuse
from shoal.store.base import Database, Parameters, Statements
from shoal.store.rows import Certificate, MemberChanges, NodeRow, Redeemed, Token
from shoal.wire.limits import CERTIFICATES_KEPT_PER_NODE, NODE_NAME_MAX_CHARS, REASON_MAX_CHARS

#: How long a token that expired is still listed.
_DEAD_TOKENS_KEPT_S = 30 * 86400.0
#: A node's name is also the common name of its certificate and part of paths and logs.
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")

#: An authority has a row among the certificates of the manager that it is of. The empty issuer is the cluster's.
_ISSUED_BY = (
    "SELECT DISTINCT node FROM certificates WHERE issuer != '' AND issuer IN"
    " (SELECT sha256 FROM certificates WHERE node = ?) ORDER BY node"
)
_REVOKE_ISSUED = (
    "UPDATE certificates SET revoked_s = ? WHERE node = ? AND revoked_s IS NULL AND issuer != '' AND issuer IN"
    " (SELECT sha256 FROM certificates WHERE node = ?)"
)


class MemberRows:
    _database: Database

    @property
    def is_shared(self) -> bool:
        """Other managers may write to it too."""
        raise NotImplementedError

    # Tokens ---------------------------------------------------------------------------------------

    def add_token(
        self,
        *,
        secret: str,
        role: str,
        uses: int,
        now_s: float,
        expires_s: float | None = None,
        label: str = "",
        node_prefix: str = "",
    ) -> Token:
        """Let ``uses`` devices join with this secret, until a wall-clock time or for good."""
        if uses < 1:
            raise Misuse(f"a token is good for at least one device, not {uses}")
        # The prefix is followed by a name, so it alone has to start like one.
        if node_prefix and (problem := _name_problem(node_prefix + "x")):
            raise Misuse(f"node prefix {node_prefix[:80]!r}: {problem}")
        token = Token(
            secret_sha256=_sha256(secret),
            role=role,
            uses_left=uses,
            expires_s=expires_s,
            created_s=now_s,
            label=label,
            node_prefix=node_prefix,
        )
        added = self._change(
            "INSERT INTO tokens VALUES (:secret_sha256, :role, :uses_left, :expires_s, :created_s, :label,"
            " :node_prefix) ON CONFLICT DO NOTHING",
            dataclasses.asdict(token),
        )
        if not added:
            raise Misuse("this token exists already: draw a new secret")
        # `shoal up` makes one at every start: those nobody can remember are not kept.
        self._change("DELETE FROM tokens WHERE expires_s < ?", (now_s - _DEAD_TOKENS_KEPT_S,))
        return token

    def redeem_token(
        self,
        secret: str,
        wanted: str,
        now_s: float,
        *,
        state: str = "enrolled",
        facts_json: str = "{}",
        is_tab: bool = False,
    ) -> Redeemed | str:
        """Spend one use of a token on an identity, or say why not. The name is the wanted one if it is free.

        ``is_tab``: it is shown where tabs of browsers join. A token made for them is good there and nowhere else.

        The name of a revoked node is free for tokens made since: the revoked device does not know their secrets.
        """
        with self._database.transaction() as database:
            token = _good_token(database, secret, now_s, is_tab=is_tab)
            if isinstance(token, str):
                return token
            base = wanted if wanted.startswith(token.node_prefix) else token.node_prefix + wanted
            if problem := _name_problem(base):
                return f"the name {base[:80]!r} cannot be used: {problem}"
            node = _free_name(base, is_taken=functools.partial(_is_taken, database, token))
            database.change(
                "UPDATE tokens SET uses_left = uses_left - 1 WHERE secret_sha256 = ?", (token.secret_sha256,)
            )
            database.change(
                "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state, token_sha256)"
                " VALUES (:node, :role, :facts_json, :now_s, :now_s, :state, :token) ON CONFLICT (node) DO UPDATE SET"
                " role = :role, facts_json = :facts_json, last_seen_s = :now_s, state = :state, token_sha256 = :token,"
                " reason = '', restored_number = NULL, is_forgotten = 0, labels_json = '[]'",
                {
                    "node": node,
                    "role": token.role,
                    "facts_json": facts_json,
                    "now_s": now_s,
                    "state": state,
                    "token": token.secret_sha256,
                },
            )
            self._count_on(database, node)
            return Redeemed(node=node, role=token.role)

    def why_no_invitation(self, secret: str, now_s: float) -> str | None:
        """Return why no tab of a browser can join with this token, or None if one can. It spends nothing."""
        with self._database.transaction() as database:
            token = _good_token(database, secret, now_s, is_tab=True)
        return token if isinstance(token, str) else None

    def tokens(self) -> list[Token]:
        return [Token(**row) for row in self._database.rows("SELECT * FROM tokens ORDER BY created_s, secret_sha256")]

    def revoke_token(self, secret_sha256: str) -> bool:
        """Nobody joins with this token from now on. Whether there was such a token."""
        return self._change("DELETE FROM tokens WHERE secret_sha256 = ?", (secret_sha256,)) > 0

    # Nodes ----------------------------------------------------------------------------------------

    def upsert_node(self, *, node: str, role: str, facts_json: str, state: str, now_s: float) -> None:
        """Record a device as it is now; when it was first seen stays."""
        with self._database.transaction() as database:
            database.change(
                "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state)"
                " VALUES (:node, :role, :facts_json, :now_s, :now_s, :state) ON CONFLICT (node) DO UPDATE SET"
                " role = :role, facts_json = :facts_json, last_seen_s = :now_s, state = :state",
                {"node": node, "role": role, "facts_json": facts_json, "state": state, "now_s": now_s},
            )
            self._count_on(database, node)

    def reserve_node(self, node: str, role: str, *, now_s: float) -> None:
        """Make a member of this name, unless there is one."""
        with self._database.transaction() as database:
            added = database.change(
                "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state)"
                " VALUES (?, ?, '{}', ?, ?, 'enrolled') ON CONFLICT (node) DO NOTHING",
                (node, role, now_s, now_s),
            )
            if added:
                self._count_on(database, node)

    def nodes(self) -> list[NodeRow]:
        return [NodeRow(**row) for row in self._database.rows("SELECT * FROM nodes ORDER BY node")]

    def node(self, node: str) -> NodeRow | None:
        rows = self._database.rows("SELECT * FROM nodes WHERE node = ?", (node,))
        return NodeRow(**rows[0]) if rows else None

    def members_epoch(self) -> int:
        """Return how often members changed. The count is not used by a cluster with one manager."""
        (row,) = self._database.rows("SELECT value FROM counters WHERE name = 'members'")
        return int(row["value"])

    def members_since(self, epoch: int) -> MemberChanges:
        """The members that changed since, as they are by now."""
        with self._database.transaction(writes=False) as database:
            nodes = database.rows("SELECT * FROM nodes WHERE epoch > ? AND epoch > 0 ORDER BY epoch, node", (epoch,))
            certificates = database.rows(
                "SELECT * FROM certificates WHERE epoch > ? AND epoch > 0 ORDER BY number, sha256", (epoch,)
            )
            return MemberChanges(
                epoch=self.members_epoch(),
                nodes=tuple(NodeRow(**row) for row in nodes),
                certificates=tuple(Certificate(**row) for row in certificates),
            )

    def _count_on(self, database: Statements, *nodes: str) -> None:
        """These members change in this transaction: other managers read them again. Such transactions run one after
        the other, so a manager that read up to a count has missed nothing before it."""
        if not self.is_shared:
            return
        database.change("UPDATE counters SET value = value + 1 WHERE name = 'members'")
        epoch = self.members_epoch()
        database.change_each("UPDATE nodes SET epoch = ? WHERE node = ?", ((epoch, node) for node in nodes))
        database.change_each("UPDATE certificates SET epoch = ? WHERE node = ?", ((epoch, node) for node in nodes))

    def set_node_state(self, node: str, state: str, *, reason: str = "") -> None:
        """Hold a member back or let it go on. One that was revoked stays so: only a new token brings its name back."""
        with self._database.transaction() as database:
            changed = database.change(
                "UPDATE nodes SET state = ?, reason = ? WHERE node = ? AND state != 'revoked'",
                (state, reason[:REASON_MAX_CHARS], node),
            )
            self._count_on(database, node)
        if not changed:
            raise Misuse(f"there is no member {node[:80]!r} to hold back or let go on")

    def set_node_card(self, node: str, card: str) -> None:
        """Keep the card that an operator signed for a member."""
        with self._database.transaction() as database:
            changed = database.change("UPDATE nodes SET card = ? WHERE node = ? AND state != 'revoked'", (card, node))
            self._count_on(database, node)
        if not changed:
            raise Misuse(f"there is no member {node[:80]!r} to keep a card of")

    def set_node_labels(self, node: str, labels: tuple[str, ...]) -> None:
        """Keep what an operator says that a member is."""
        with self._database.transaction() as database:
            changed = database.change(
                "UPDATE nodes SET labels_json = ? WHERE node = ? AND state != 'revoked'", (json.dumps(labels), node)
            )
            self._count_on(database, node)
        if not changed:
            raise Misuse(f"there is no member {node[:80]!r} to label")

    def revoke_node(self, node: str, *, now_s: float, reason: str) -> bool:
        """Revoke a member, all its certificates and the token that it knows. Return whether there was such a member.

        Revoking a manager also revokes the certificates that its authority issued, and members with no others.
        """
        with self._database.transaction() as database:
            found = database.rows("SELECT token_sha256 FROM nodes WHERE node = ?", (node,))
            if not found:
                return False
            database.change(
                "UPDATE nodes SET state = 'revoked', revoked_s = ?, reason = ?, restored_number = NULL, card = ''"
                " WHERE node = ?",
                (now_s, reason[:REASON_MAX_CHARS], node),
            )
            database.change("UPDATE certificates SET revoked_s = ? WHERE node = ? AND revoked_s IS NULL", (now_s, node))
            database.change("DELETE FROM tokens WHERE secret_sha256 = ?", (found[0]["token_sha256"],))
            issued = self.issued_by(node)
            for name in [name for name in issued if _revoke_issued(database, name, node, now_s)]:
                database.change(
                    "DELETE FROM tokens WHERE secret_sha256 = (SELECT token_sha256 FROM nodes WHERE node = ?)", (name,)
                )
            self._count_on(database, node, *issued)
            return True

    def issued_by(self, manager: str) -> list[str]:
        """The members that have certificates of this manager's own authority."""
        found = self._database.rows(_ISSUED_BY, (manager,))
        return [str(row["node"]) for row in found]

    def forget_node(self, node: str, *, now_s: float) -> bool:
        """Exclude a lost member and stop listing it. Return whether there was such a member.

        It may know a token that others join with. Unlike revocation, this leaves the token valid.
        """
        with self._database.transaction() as database:
            changed = database.change(
                "UPDATE nodes SET state = 'revoked', revoked_s = COALESCE(revoked_s, ?), is_forgotten = 1,"
                " restored_number = NULL, facts_json = '{}', card = '' WHERE node = ?",
                (now_s, node),
            )
            database.change("UPDATE certificates SET revoked_s = ? WHERE node = ? AND revoked_s IS NULL", (now_s, node))
            database.change("DELETE FROM views WHERE kind = 'node' AND name = ?", (node,))
            self._count_on(database, node)
            return changed > 0

    def add_certificate(self, certificate: Certificate, *, replaces: str = "") -> None:
        """Record what was issued, before it is handed out. The oldest of a member beyond a limit are not kept.

        A certificate that was asked for with another one is not recorded if that one was revoked meanwhile: it would
        be good again as soon as its name is. Nor if that one was superseded meanwhile.
        """
        with self._database.transaction() as database:
            if self._is_revoked(certificate.node, replaces):
                raise Misuse(f"{certificate.node} was revoked: it gets no other certificate")
            issuer = self.certificate(certificate.issuer) if certificate.issuer else None
            if certificate.issuer and (issuer is None or issuer.revoked_s is not None):
                raise Misuse("the authority of this manager was revoked: nothing that it issues is good")
            shown = self.certificate(replaces) if replaces else None
            if shown is not None and shown.superseded_s is not None:
                raise Misuse(f"this certificate of {certificate.node} was replaced: it gets no other")
            database.change(
                "INSERT INTO certificates"
                " (sha256, node, role, key_sha256, issued_s, expires_s, revoked_s, issuer, number)"
                " VALUES (:sha256, :node, :role, :key_sha256, :issued_s, :expires_s, :revoked_s, :issuer,"
                " (SELECT COALESCE(MAX(number), 0) + 1 FROM certificates WHERE node = :node))",
                dataclasses.asdict(certificate),
            )
            # A certificate that is not kept becomes invalid. The newest used one stays, however many were issued since:
            # its owner may never have received those.
            database.change(
                "DELETE FROM certificates WHERE node = :node AND sha256 NOT IN (SELECT sha256 FROM certificates"
                " WHERE node = :node ORDER BY used_s IS NOT NULL AND superseded_s IS NULL DESC, number DESC"
                " LIMIT :kept)",
                {"node": certificate.node, "kept": CERTIFICATES_KEPT_PER_NODE},
            )
            self._count_on(database, certificate.node)

    def use_certificate(self, sha256: str, *, now_s: float) -> bool:
        """Record that a member used this certificate, which supersedes its earlier ones. Return whether it is valid: it
        is not if it is unknown, superseded or revoked.

        Newer certificates that were never used stay valid next to this one: their owner may have crashed before it had
        saved them.
        """
        with self._database.transaction() as database:
            row = self.certificate(sha256)
            if row is None or row.superseded_s is not None or row.revoked_s is not None:
                return False
            database.change(
                "UPDATE certificates SET used_s = ? WHERE sha256 = ? AND used_s IS NULL",
                (now_s, sha256),
            )
            database.change(
                "UPDATE certificates SET superseded_s = ? WHERE node = ? AND number < ? AND superseded_s IS NULL",
                (now_s, row.node, row.number),
            )
            # It has a certificate that was issued since the registry was restored: unrecorded ones are void again.
            database.change(
                "UPDATE nodes SET restored_number = NULL WHERE node = ? AND restored_number < ?", (row.node, row.number)
            )
            self._count_on(database, row.node)
            return True

    def _is_revoked(self, name: str, certificate: str) -> bool:
        node, shown = self.node(name), self.certificate(certificate) if certificate else None
        if node is None:
            return False
        if node.state == "revoked" or (shown is not None and shown.revoked_s is not None):
            return True
        return bool(certificate) and shown is None and node.revoked_s is not None

    def certificate(self, sha256: str) -> Certificate | None:
        rows = self._database.rows("SELECT * FROM certificates WHERE sha256 = ?", (sha256,))
        return Certificate(**rows[0]) if rows else None

    def certificates(self, node: str = "") -> list[Certificate]:
        """Those of a member, or all there are; oldest first."""
        # Two statements: SQLite plans one for both as a scan of all.
        if node:
            found = self._database.rows("SELECT * FROM certificates WHERE node = ? ORDER BY number, sha256", (node,))
        else:
            found = self._database.rows("SELECT * FROM certificates ORDER BY number, sha256")
        return [Certificate(**row) for row in found]

    def _change(self, statement: str, parameters: Parameters) -> int:
        """Run one statement durably; how many rows it touched."""
        with self._database.transaction() as database:
            return database.change(statement, parameters)


def _good_token(database: Statements, secret: str, now_s: float, *, is_tab: bool) -> Token | str:
    """Return the token of this secret, or why it cannot be used now."""
    known = database.rows("SELECT * FROM tokens WHERE secret_sha256 = ?", (_sha256(secret),))
    if not known:
        return "this token is unknown or was revoked: ask the cluster's operator for a new join line"
    token = Token(**known[0])
    if (token.role == "browser") is not is_tab:
        return f"this token makes a {token.role}, which does not join here: ask the operator for another"
    if token.expires_s is not None and now_s >= token.expires_s:
        return "this token has expired: ask the cluster's operator for a new join line"
    if token.uses_left < 1:
        return "this token is used up: ask the cluster's operator for a new join line"
    return token


def _sha256(secret: str) -> str:
    # Secrets are drawn at random with many bits: a slow hash would protect nothing more.
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _name_problem(name: str) -> str | None:
    if not _NODE_NAME.fullmatch(name):
        return "use letters, digits, '.', '_' and '-', with a letter or digit at both ends"
    if len(name) > NODE_NAME_MAX_CHARS:
        return f"use at most {NODE_NAME_MAX_CHARS} characters"
    return None


def _revoke_issued(database: Statements, node: str, manager: str, now_s: float) -> bool:
    """Revoke what a manager's authority issued to a member. Whether that one is shut out: it has nothing else."""
    database.change(_REVOKE_ISSUED, (now_s, node, manager))
    good = "SELECT 1 FROM certificates WHERE node = ? AND revoked_s IS NULL AND superseded_s IS NULL"
    if database.rows(good, (node,)):
        return False
    reason = f"the authority of the manager {manager}, which issued its certificate, was revoked"
    return (
        database.change(
            "UPDATE nodes SET state = 'revoked', revoked_s = ?, reason = ?, restored_number = NULL, card = ''"
            " WHERE node = ? AND state != 'revoked'",
            (now_s, reason, node),
        )
        > 0
    )


def _is_taken(database: Statements, token: Token, name: str) -> bool:
    """Whether a device that joins with this token cannot have the name."""
    query = "SELECT 1 FROM nodes WHERE node = ? AND (state != 'revoked' OR revoked_s >= ?)"
    return bool(database.rows(query, (name, token.created_s)))


#: So many numbers are tried one after the other. Beyond them a free one is found by halves, which may pass over a
#: number that became free: of 100,000 devices that want one name, the last would ask for each of them otherwise.
_NUMBERS_IN_TURN = 8


def _free_name(wanted: str, *, is_taken: Callable[[str], bool]) -> str:
    """The wanted name, or wanted-2, wanted-3, ...; shortened where the number would make it too long."""

    def name(number: int) -> str:
        suffix = f"-{number}" if number > 1 else ""
        return wanted[: NODE_NAME_MAX_CHARS - len(suffix)] + suffix

    for number in range(1, _NUMBERS_IN_TURN + 1):
        if not is_taken(name(number)):
            return name(number)
    taken, free = _NUMBERS_IN_TURN, 2 * _NUMBERS_IN_TURN
    while is_taken(name(free)):
        taken, free = free, 2 * free
    while free - taken > 1:
        between = (taken + free) // 2
        taken, free = (between, free) if is_taken(name(between)) else (taken, between)
    return name(free)
