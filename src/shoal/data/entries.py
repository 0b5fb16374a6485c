"""Labelled entries that members contribute to a shared set: one JSON object per line. Standard library; no files.

A manager counts the entries of a file whose sender and size it knows already. It keeps nothing of what it parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from shoal.errors import Misuse, PeerViolation
from shoal.wire.limits import CONTRIBUTION_MAX_BYTES, ENTRIES_MAX, ENTRY_MAX_BYTES

#: The columns that may hold the label of an entry.
LABELS = ("y", "label", "labels")


def count_entries(data: bytes) -> int:
    """Return how many entries a file has. Raises PeerViolation unless each is a labelled object of the same columns."""
    if not data.endswith(b"\n"):
        raise PeerViolation("the last entry does not end with a line break")
    lines = data.split(b"\n")[:-1]
    if len(lines) > ENTRIES_MAX:
        raise PeerViolation(f"a file has {len(lines)} entries; the maximum is {ENTRIES_MAX}")
    columns: frozenset[str] = frozenset()
    for number, line in enumerate(lines, start=1):
        found = _columns_of(line, number)
        columns = columns or found
        if found != columns:
            raise PeerViolation(f"line {number} has other columns than the first")
    return len(lines)


def _columns_of(line: bytes, number: int) -> frozenset[str]:
    if len(line) > ENTRY_MAX_BYTES:
        raise PeerViolation(f"line {number} has {len(line)} bytes; the maximum is {ENTRY_MAX_BYTES}")
    try:
        entry = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise PeerViolation(f"line {number} is not JSON") from None
    if not isinstance(entry, dict) or not any(_is_label(entry.get(name)) for name in LABELS):
        raise PeerViolation(f"line {number} is not an object with a label: a number or a text named {_named()}")
    return frozenset(entry)


def _is_label(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def files_of(entries: Iterable[Any], *, source: str) -> list[bytes]:
    """Return entries as files that a manager takes: the same entries give the same bytes. Raises Misuse for an entry
    that it would refuse."""
    files: list[bytes] = []
    lines: list[bytes] = []
    size_bytes = 0
    for number, entry in enumerate(entries, start=1):
        line = _line_of(entry, f"{source}, entry {number}")
        if lines and (size_bytes + len(line) > CONTRIBUTION_MAX_BYTES or len(lines) == ENTRIES_MAX):
            files.append(b"".join(lines))
            lines, size_bytes = [], 0
        lines.append(line)
        size_bytes += len(line)
    files += [b"".join(lines)] if lines else []
    for file in files:
        try:
            count_entries(file)
        except PeerViolation as error:
            raise Misuse(f"{source}: {error.reason}") from None
    return files


def _line_of(entry: Any, where: str) -> bytes:
    if not isinstance(entry, dict):
        raise Misuse(f"{where} is not an object with named columns")
    if not any(_is_label(_plain(entry.get(name))) for name in LABELS):
        raise Misuse(f"{where} has no label: name the column with a number or a text {_named()}")
    try:
        told = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise Misuse(f"{where} cannot be written as JSON: {error}") from None
    line = told.encode() + b"\n"
    if len(line) > ENTRY_MAX_BYTES:
        raise Misuse(f"{where} has {len(line):,} bytes as JSON; the maximum is {ENTRY_MAX_BYTES:,}")
    return line


def _plain(value: Any) -> Any:
    """Return a numpy value or array as plain numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _named() -> str:
    return ", ".join(LABELS[:-1]) + f" or {LABELS[-1]}"
