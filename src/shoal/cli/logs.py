"""How long-running commands tell what they decide: one line each, on standard error."""

from __future__ import annotations

import logging
import os
import sys


class _OneLine(logging.Formatter):
    """Peers write parts of these texts, and a log goes to a terminal: control characters do not."""

    def format(self, record: logging.LogRecord) -> str:
        from shoal.cli.render.format import clean

        told = clean(super().formatMessage(self._dated(record)))
        return told if not record.exc_info else f"{told}\n{self.formatException(record.exc_info)}"

    def _dated(self, record: logging.LogRecord) -> logging.LogRecord:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        return record


def log_to_stderr(*, quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    debug = os.environ.get("SHOAL_DEBUG", "0") not in ("", "0")
    level = logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO
    root = logging.getLogger("shoal")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
