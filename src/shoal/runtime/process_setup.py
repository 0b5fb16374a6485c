"""How every process of a device begins: leash, log, one thread for numpy, memory kept, files allowed."""

from __future__ import annotations

import logging
import os
import sys

from shoal.net.open_files import raise_limit
from shoal.runtime.die_with_parent import end_with_starter
from shoal.runtime.malloc import keep_freed_memory


def set_out(*, quiet: bool, leash: bool) -> None:
    """``leash``: this process ends with its parent process."""
    if leash:
        end_with_starter()
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    keep_freed_memory()
    raise_limit()
