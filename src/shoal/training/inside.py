"""A flag that says: this process is importing task code. Knows nothing of tasks, torch or trainers.

A script may define its task and call ``shoal.fit`` at top level. When a trainer imports that script to get the task,
the call must not start a second job: it ends the import instead, with what was defined so far.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_importing = False


class InsideTrainer(BaseException):
    """Ends the import of a script that would start a job. Not an Exception, so that no script catches it by chance."""


def stop_if_importing() -> None:
    """Call first in whatever starts a job from a script."""
    if _importing:
        raise InsideTrainer


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
