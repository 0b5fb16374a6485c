"""Flags that mark a process as importing, or running, task code. Does not import torch.

A script may define its task and call ``shoal.fit`` at top level. When a trainer imports that script to get the task,
the call must not start a second job: it ends the import instead, with what was defined so far.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from shoal.errors import Misuse

#: Set in every process that runs task code: a job inside a job would start another, without end.
TRAINER_VARIABLE = "SHOAL_TRAINER"

_importing = False


class InsideTrainer(BaseException):
    """Ends the import of a script that starts a job. Not an Exception, so that scripts do not catch it by accident."""


def stop_if_importing() -> None:
    """Call first in whatever starts a job from a script."""
    if _importing:
        raise InsideTrainer
    if os.environ.get(TRAINER_VARIABLE):
        raise Misuse("a task cannot start a job of its own: shoal.fit was called while a task was being run")


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Mark the import of task code; swallow the end that ``stop_if_importing`` makes."""
    global _importing
    _importing = True
    try:
        yield
    except InsideTrainer:
        pass
    finally:
        _importing = False
