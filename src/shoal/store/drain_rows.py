"""Managers that are drained: they take no job, and give away those that they have. A part of the registry."""

from __future__ import annotations

import json

from shoal.errors import Refused
from shoal.roles.manager.seat_watch import Seat, home_of
from shoal.store.base import Database, Statements
from shoal.store.seat import DRAINED, seats_in

_SET_DRAINED = "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class DrainRows:
    _database: Database
    _holder: str

    def seats(self) -> list[Seat]:
        """Return the managers that are alive."""
        return seats_in(self._database)

    def drain_manager(self, address: str, note: str) -> None:
        """Have the manager at this address take no job, also after a restart, and give away those that it has.
        ``note``: who drained it, and why."""
        with self._database.transaction() as database:
            seat = _seat_at(database, address)
            if seat.is_drained:
                raise Refused(f"the manager at {seat.address} is drained already")
            if not any(
                other.address and not other.is_drained for other in seats_in(database) if other.holder != seat.holder
            ):
                raise Refused(
                    f"no other manager could take the jobs of the one at {seat.address}: start another manager"
                    " (`shoal up` with the same --store and --blobs), or run `shoal managers undrain` for one that is"
                    " drained"
                )
            _set_drained(database, {**_drained(database), home_of(seat.holder): note})

    def undrain_manager(self, address: str) -> None:
        """Have a drained manager take jobs again."""
        with self._database.transaction() as database:
            seat = _seat_at(database, address)
            if not seat.is_drained:
                raise Refused(f"the manager at {seat.address} is not drained")
            drained = _drained(database)
            del drained[home_of(seat.holder)]
            _set_drained(database, drained)

    def _is_drained(self, database: Statements) -> bool:
        return home_of(self._holder) in _drained(database)


def _seat_at(database: Statements, address: str) -> Seat:
    found = [seat for seat in seats_in(database) if address and seat.address == address]
    if not found:
        raise Refused(f"no manager is dialled at {address[:80]!r}: `shoal managers` lists those there are")
    if len(found) > 1:
        raise Refused(
            f"{len(found)} managers are dialled at {address[:80]}, so it names none of them: start each with an address"
            " that leads only to it (`shoal up --direct`)"
        )
    return found[0]


def _drained(database: Statements) -> dict[str, str]:
    rows = database.rows("SELECT value FROM facts WHERE name = ?", (DRAINED,))
    return dict(json.loads(rows[0]["value"])) if rows else {}


def _set_drained(database: Statements, drained: dict[str, str]) -> None:
    database.change(_SET_DRAINED, (DRAINED, json.dumps(drained, sort_keys=True)))
