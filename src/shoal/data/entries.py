"""Labelled entries that members contribute to a shared set: one JSON object per line. Standard library; no files.

A manager counts the entries of a file whose sender and size it knows already. It keeps nothing of what it parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from shoal.errors import Misuse, PeerViolation
from shoal.wire.limits import CONTRIBUTION_MAX_BYTES, ENTRIES_MAX, ENTRY_MAX_BYTES, ENTRY_MAX_DEPTH

#: The columns that may hold the label of an entry.
LABELS = ("y", "label", "labels")

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKET = re.compile(rb"[\[\]{}]")
#: Numbers shorter than this fit in 64 bits.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def count_entries(data: bytes) -> int:
    """Return how many entries a file has. Raises PeerViolation unless each is a labelled object of the same columns,
    in the one way in which `files_of` writes it: two ways to write an entry would make two entries of it."""
    if not data.endswith(b"\n"):
        raise PeerViolation("the last entry does not end with a line break")
    # Before there is an object for each line.
    if (count := data.count(b"\n")) > ENTRIES_MAX:
        raise PeerViolation(f"a file has {count} entries; the maximum is {ENTRIES_MAX}")
    lines = data.split(b"\n")[:-1]
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
    if _depth_of(line) > ENTRY_MAX_DEPTH:
        raise PeerViolation(f"line {number} has values within values, deeper than {ENTRY_MAX_DEPTH}")
    try:
        entry = json.loads(line, parse_constant=_refuse, parse_int=_whole if _LONG_NUMBER.search(line) else None)
        written = _written(entry)
    except (ValueError, RecursionError):
        raise PeerViolation(f"line {number} is not JSON of finite numbers, whole numbers of 64 bits and text") from None
    if not isinstance(entry, dict) or not any(_is_label(entry.get(name)) for name in LABELS):
        raise PeerViolation(f"line {number} is not an object with a label: a number or a text named {_named()}")
    if written != line:
        raise PeerViolation(f"line {number} is not as `shoal contribute` writes it: columns in order, and no spaces")
    return frozenset(entry)


def _depth_of(line: bytes) -> int:
    """Return how deep a line is, if it is JSON."""
    if line.count(b"[") + line.count(b"{") <= ENTRY_MAX_DEPTH:
        return 0
    depth = deepest = 0
    for bracket in _BRACKET.finditer(_TEXT.sub(b"", line)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _whole(digits: str) -> int:
    if not -(1 << 63) <= (value := int(digits)) < 1 << 63:
        raise ValueError(digits)
    return value


def _written(entry: Any) -> bytes:
    """Return an entry as JSON, the same for the same entry. Raises ValueError if it has a number or a text that no
    shard can hold."""
    told = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
    if r"\ud" in told:
        # UTF-8 cannot hold half of a surrogate pair.
        json.dumps(entry, ensure_ascii=False, default=_plain).encode()
    return told.encode()


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
        line = _written(entry) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(f"{where} cannot be written as JSON: {error}") from None
    if len(line) > ENTRY_MAX_BYTES:
        raise Misuse(f"{where} has {len(line):,} bytes as JSON; the maximum is {ENTRY_MAX_BYTES:,}")
    return line


def _plain(value: Any) -> Any:
    """Return a numpy value or array as plain numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _named() -> str:
    return ", ".join(LABELS[:-1]) + f" or {LABELS[-1]}"
