"""How every process of a device begins: leash, log, one thread for numpy, memory kept, files allowed."""

from __future__ import annotations

import os

from shoal.net.open_files import raise_limit
from shoal.runtime import log_lines
from shoal.runtime.die_with_parent import end_with_starter
from shoal.runtime.malloc import keep_freed_memory


def set_out(*, quiet: bool, leash: bool, log_format: str = "") -> None:
    """``leash``: this process ends with its parent process."""
    if leash:
        end_with_starter()
    log_lines.set_up(quiet=quiet, given=log_format)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    keep_freed_memory()
    raise_limit()
