"""A manager as it is, but for its leaders: they ask every device again, whatever its account says. Run as
``python -m greedy_manager --home DIR ...``."""

from __future__ import annotations

import sys

from shoal.roles.leader.participants import Participants
from shoal.runtime import manager_main

if __name__ == "__main__":
    Participants.why_not = lambda self, worker, *, version: None  # type: ignore[method-assign]
    Participants.are_spent = lambda self, workers, *, least=1: False  # type: ignore[method-assign]
    sys.exit(manager_main.main())
