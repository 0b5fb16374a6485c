"""Ends this process when its parent process ends, for any reason. Knows nothing of the process's own work."""

from __future__ import annotations

import os
import signal
import threading

STANDARD_INPUT = 0


def end_with_starter() -> None:
    """Be told to stop (SIGTERM) once standard input closes: nobody holds its other end any more."""
    threading.Thread(target=_watch, name="leash", daemon=True).start()


def _watch() -> None:
    try:
        # The descriptor itself: a reader of sys.stdin would hold its lock while the interpreter shuts down.
        while os.read(STANDARD_INPUT, 4096):
            pass
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
