"""Entries that members contributed to shared sets, as rows: who gave which file, and what an operator decided.

A part of the registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import Refused
from shoal.store.base import Database, Statements
from shoal.wire.limits import CONTRIBUTIONS_PER_MEMBER

PENDING, APPROVED, REJECTED = "pending", "approved", "rejected"

_OF_SET = "SELECT * FROM contributions WHERE set_name = ? AND number > ? ORDER BY number LIMIT ?"
_OF_ALL = "SELECT * FROM contributions WHERE number > ? ORDER BY number LIMIT ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributionRow:
    """One file of entries. ``number`` counts from 1."""

    number: int
    set_name: str
    sha256: str
    node: str
    #: The hash of the certificate that its contributor showed.
    certificate: str
    entries: int
    size_bytes: int
    at_s: float
    state: str = PENDING
    #: The operator who decided. Empty while it is pending.
    decided_by: str = ""


class ContributionRows:
    _database: Database

    def check_quota(self, node: str, size_bytes: int, *, quota_bytes: int) -> None:
        """Raise Refused if a member may not add a file of this size."""
        _check_quota(self._database, node, size_bytes, quota_bytes)

    def contribution(self, set_name: str, sha256: str) -> ContributionRow | None:
        return _find(self._database, set_name, sha256)

    def add_contribution(
        self,
        *,
        set_name: str,
        sha256: str,
        node: str,
        certificate: str,
        entries: int,
        size_bytes: int,
        at_s: float,
        quota_bytes: int,
    ) -> ContributionRow:
        """Add a file of entries, or return the row of the same file in the same set: it counts once. Durable when this
        returns. Raises Refused over the quota."""
        with self._database.transaction() as database:
            if (known := _find(database, set_name, sha256)) is not None:
                return known
            _check_quota(database, node, size_bytes, quota_bytes)
            last = database.rows("SELECT MAX(number) AS last FROM contributions")
            row = ContributionRow(
                number=int(last[0]["last"] or 0) + 1,
                set_name=set_name,
                sha256=sha256,
                node=node,
                certificate=certificate,
                entries=entries,
                size_bytes=size_bytes,
                at_s=at_s,
            )
            database.change(
                "INSERT INTO contributions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.number, set_name, sha256, node, certificate, entries, size_bytes, at_s, PENDING, ""),
            )
            return row

    def contributions(self, set_name: str = "", *, after: int = 0, limit: int) -> list[ContributionRow]:
        """Return what was added to a set, or to all, after this number."""
        parameters = (set_name, after, limit) if set_name else (after, limit)
        return [ContributionRow(**row) for row in self._database.rows(_OF_SET if set_name else _OF_ALL, parameters)]

    def settle_contributions(self, rows: Iterable[ContributionRow], state: str, *, by: str) -> None:
        """Record an operator's decision about all of these rows. Raises Refused, and records nothing, if one of them
        changed since it was read."""
        with self._database.transaction() as database:
            for row in rows:
                changed = database.change(
                    "UPDATE contributions SET state = ?, decided_by = ? WHERE number = ? AND state = ?",
                    (state, by, row.number, row.state),
                )
                if not changed:
                    raise Refused(f"another operator decided about {row.sha256[:12]}… at this moment: look again")

    def contributed(self) -> frozenset[str]:
        """Return the hashes of the files that were not rejected."""
        rows = self._database.rows("SELECT DISTINCT sha256 FROM contributions WHERE state != ?", (REJECTED,))
        return frozenset(str(row["sha256"]) for row in rows)


def _find(database: Statements, set_name: str, sha256: str) -> ContributionRow | None:
    rows = database.rows("SELECT * FROM contributions WHERE set_name = ? AND sha256 = ?", (set_name, sha256))
    return ContributionRow(**rows[0]) if rows else None


def _check_quota(database: Statements, node: str, size_bytes: int, quota_bytes: int) -> None:
    (found,) = database.rows(
        "SELECT COUNT(*) AS files, COALESCE(SUM(CASE WHEN state != ? THEN size_bytes ELSE 0 END), 0) AS used_bytes"
        " FROM contributions WHERE node = ?",
        (REJECTED, node),
    )
    if int(found["files"]) >= CONTRIBUTIONS_PER_MEMBER:
        raise Refused(f"{node} gave {CONTRIBUTIONS_PER_MEMBER} files already, which is the limit of a member")
    left_bytes = quota_bytes - int(found["used_bytes"])
    if size_bytes > left_bytes:
        raise Refused(
            f"{size_bytes / 1e6:,.1f} MB are over the quota: {node} may add {max(0, left_bytes) / 1e6:,.1f} MB more"
            f" of {quota_bytes / 1e6:,.0f} MB (`shoal up --contribute-mb`)"
        )
