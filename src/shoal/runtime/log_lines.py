"""How every process of Shoal writes its log: one line per record, for people or as JSON, on standard error.

The one place where logging is set up. A line begins with date and time (RFC 3339, UTC) and its level.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Any, Literal, TextIO

from shoal.errors import Misuse
from shoal.runtime.event_kinds import LOG, event_of, level_of

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")

#: Names the format where no option does; processes that this one starts inherit it.
FORMAT_VARIABLE = "SHOAL_LOG"

DEBUG_VARIABLE = "SHOAL_DEBUG"

#: A join line is a secret: its address and the first characters tell people which one it was.
_JOIN_LINE = re.compile(r"(shoal://[^/\s\"']{1,255}/)([A-Za-z0-9]{4})[A-Za-z0-9-]+")
#: Lines about a job begin with its id.
_OF_JOB = re.compile(r"\[([^\]\s]{1,128})\] (.*)", re.DOTALL)
_LEASE = re.compile(r"\blease (\d{1,18})\b")
_VERSION = re.compile(r"\bversion (\d[\d,]{0,23})\b")

#: Where an event's fields stand on a log record.
_FIELDS = "shoal_fields"


def log_format(given: str = "") -> LogFormat:
    """The format that an option names, else the environment."""
    wanted = given or os.environ.get(FORMAT_VARIABLE, "") or "text"
    for known in FORMATS:
        if wanted == known:
            return known
    source = "--log-format" if given else FORMAT_VARIABLE
    raise Misuse(f"{source} is text or json, not {wanted[:40]!r}")


def set_up(*, quiet: bool, given: str = "", stream: TextIO | None = None, **of: str) -> None:
    """Log to standard error. ``of`` names what every line is about, such as the cluster or this node."""
    chosen = log_format(given)
    if given:
        # Processes that this one starts write the same way.
        os.environ[FORMAT_VARIABLE] = chosen
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(LogAsJson(**of) if chosen == "json" else LogAsText())
    root, own = logging.getLogger(), logging.getLogger("shoal")
    for logger in (root, own):
        logger.handlers[:] = [each for each in logger.handlers if not isinstance(each, _Handler)]
    root.addHandler(handler)
    debug = os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")
    own.setLevel(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)
    own.propagate = True


def name_lines(**of: str) -> None:
    """Every JSON line from now on says this too: a process learns who it is after its log is set up."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler) and isinstance(handler.formatter, LogAsJson):
            handler.formatter.of.update(of)


def log_event(log: logging.Logger, kind: str, reason: str, *, job: str = "", **fields: Any) -> None:
    """One event of the journal, or of a role on a device, as a line. ``fields`` are for JSON; None: not known."""
    # Set in, so that no peer's words can pass for a line of ours.
    told = reason.replace("\n", "\n    ")
    known = {"event": event_of(kind), "job": job, "reason": reason, **fields}
    prefix = f"[{job}] " if job else ""
    log.log(level_of(kind), "%s%s: %s", prefix, kind, told, extra={_FIELDS: known})


def numbers_in(reason: str) -> dict[str, int]:
    """The lease and the version that a reason names."""
    found = {"lease": _LEASE.search(reason), "version": _VERSION.search(reason)}
    return {name: int(match[1].replace(",", "")) for name, match in found.items() if match}


def without_secrets(text: str) -> str:
    return _JOIN_LINE.sub(r"\1\2…", text)


def stamp(at_s: float) -> str:
    """``2026-11-15T21:07:37.061Z``."""
    # In whole milliseconds first: 59.9996 s are 60.000 s, of the next minute.
    whole_ms = int(at_s * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole_ms // 1000)) + f".{whole_ms % 1000:03}Z"


def one_line(text: str) -> str:
    """Peers write parts of these texts, and a log goes to a terminal: control characters do not."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class _Handler(logging.StreamHandler[TextIO]):
    """Ours: replaced when the log is set up again. Handlers of others stay."""


class LogAsText(logging.Formatter):
    """``2026-11-15T21:07:37.061Z INFO [mnist-3fa2] device.joined: attic-pi4 ready``."""

    def format(self, record: logging.LogRecord) -> str:
        told = one_line(without_secrets(record.getMessage()))
        line = f"{stamp(record.created)} {record.levelname} {told}"
        if not record.exc_info:
            return line
        trace = without_secrets(self.formatException(record.exc_info))
        return "\n    ".join([line, *trace.splitlines()])


class LogAsJson(logging.Formatter):
    """One object a line: what a collector reads."""

    def __init__(self, **of: str) -> None:
        super().__init__()
        self.of = dict(of)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"ts": stamp(record.created), "level": record.levelname.lower(), "event": LOG}
        fields |= self.of
        own = getattr(record, _FIELDS, None) or _plain(record.getMessage())
        fields |= {name: value for name, value in own.items() if value not in (None, "")}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(fields, ensure_ascii=False, allow_nan=False, default=str))


def _plain(message: str) -> dict[str, Any]:
    found = _OF_JOB.fullmatch(message)
    return {"job": found[1], "reason": found[2]} if found else {"reason": message}
