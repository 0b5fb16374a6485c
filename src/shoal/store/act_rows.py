"""The audit log: what operators did, as rows that are appended and never rewritten. A part of the registry.

Each row has a hash over itself and the hash of the row before it. Someone who can write to the database can change or
remove a row, but not without breaking the chain, unless all later rows are written anew; whoever noted the last hash
down finds that, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.store.base import Database
from shoal.wire.limits import REASON_MAX_CHARS

#: The hash before the first row.
FIRST_LINK = "0" * 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ActRow:
    """One act of an operator. ``seq`` counts from 1."""

    seq: int
    at_s: float
    #: The operator's name, and the hash of the certificate that it showed.
    operator: str
    certificate: str
    #: The node's name of the manager that was asked, with its seat where there are several.
    manager: str
    #: What was asked for, such as ``revoke a node``.
    kind: str
    #: The job, node or token that it is about; empty if it is about the cluster.
    subject: str
    #: The details; for an act that was refused, the reason.
    text: str
    #: Whether the manager refused it, after the row before said that it was asked for.
    is_refused: int = 0
    sha256: str = ""


def link(previous: str, row: ActRow) -> str:
    """Return the hash that ties a row to the one before it."""
    content = dataclasses.asdict(dataclasses.replace(row, sha256=""))
    told = json.dumps([previous, *content.values()], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(told.encode()).hexdigest()


def first_broken(rows: Iterable[ActRow], *, previous: str = FIRST_LINK, seq: int = 0) -> int | None:
    """Return the number of the first row that is missing or was changed, or None if the chain is whole.

    ``previous`` and ``seq``: the hash and the number of the row before these; of none if they are the first.
    """
    for row in rows:
        if row.seq != seq + 1 or row.sha256 != link(previous, row):
            return seq + 1
        previous, seq = row.sha256, row.seq
    return None


class ActRows:
    _database: Database

    def add_act(
        self,
        *,
        at_s: float,
        operator: str,
        certificate: str,
        manager: str,
        kind: str,
        subject: str = "",
        text: str = "",
        is_refused: bool = False,
    ) -> ActRow:
        """Append an act; durable when this returns. Managers that share the database append one after the other."""
        with self._database.transaction() as database:
            last = database.rows("SELECT seq, sha256 FROM acts ORDER BY seq DESC LIMIT 1")
            row = ActRow(
                seq=int(last[0]["seq"]) + 1 if last else 1,
                at_s=at_s,
                operator=operator,
                certificate=certificate,
                manager=manager,
                kind=kind,
                subject=subject,
                text=text[:REASON_MAX_CHARS],
                is_refused=int(is_refused),
            )
            row = dataclasses.replace(row, sha256=link(str(last[0]["sha256"]) if last else FIRST_LINK, row))
            database.change(
                "INSERT INTO acts VALUES (:seq, :at_s, :operator, :certificate, :manager, :kind, :subject, :text,"
                " :is_refused, :sha256)",
                dataclasses.asdict(row),
            )
        return row

    def acts(self, *, after: int = 0, limit: int, subject: str = "") -> list[ActRow]:
        """Return acts behind this number, oldest first; with a subject, only those about it."""
        if subject:
            query = "SELECT * FROM acts WHERE seq > ? AND subject = ? ORDER BY seq LIMIT ?"
            return [ActRow(**row) for row in self._database.rows(query, (after, subject, limit))]
        return [
            ActRow(**row)
            for row in self._database.rows("SELECT * FROM acts WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit))
        ]
