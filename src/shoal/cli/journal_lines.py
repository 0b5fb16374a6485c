"""Events of a cluster's journal as lines of a log: dated, with their level, of one job or about one device. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.runtime.event_kinds import event_of, level_of
from shoal.runtime.log_lines import numbers_in, one_line, stamp, without_secrets

if TYPE_CHECKING:
    from shoal.wire.messages import EventView

#: How much of the end of a file is looked at for its last lines.
TAIL_BYTES = 1 << 20

#: What stands around a name in a sentence.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def names_node(event: EventView, node: str) -> bool:
    """The event says the device's whole name: pi-1 is not pi-10."""
    return any(word.rstrip(".-_") == node or word == node for word in _WORD.findall(event.reason))


def event_line(event: EventView, *, job: str = "") -> str:
    """As the manager's own log has it."""
    level = logging.getLevelName(level_of(event.kind))
    told = one_line(without_secrets(f"{f'[{job}] ' if job else ''}{event.kind}: {event.reason}"))
    return f"{stamp(event.at_s)} {level} {told}"


def event_json(event: EventView, *, job: str = "", cluster: str = "") -> dict[str, Any]:
    told = {
        "ts": stamp(event.at_s),
        "level": logging.getLevelName(level_of(event.kind)).lower(),
        "event": event_of(event.kind),
        "cluster": cluster,
        "job": job,
        **numbers_in(event.reason),
        "reason": without_secrets(event.reason),
        "seq": event.seq,
    }
    return {name: value for name, value in told.items() if value != ""}


def in_order(events: Iterable[tuple[str, EventView]]) -> list[tuple[str, EventView]]:
    """Events of several journals, each with its job, as they happened."""
    return sorted(events, key=lambda each: (each[1].at_s, each[0], each[1].seq))


def own_logs(home: Path, default: Path, node: str) -> Iterator[Path]:
    """Logs of this device's agent that lie on this machine: of a local cluster's home, and kept ones of jobs."""
    for folder in (home, *sorted((default / "logs").glob("*"))):
        if (file := folder / f"{node}.log").is_file():
            yield file


def last_lines(file: Path, count: int) -> list[str]:
    """The last lines of a file, without reading all of it."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - TAIL_BYTES))
        lines = opened.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
    # The first of a part may be half a line.
    whole = lines[1:] if size > TAIL_BYTES else lines
    return [one_line(line) for line in whole[len(whole) - count :]] if count < len(whole) else [*map(one_line, whole)]
