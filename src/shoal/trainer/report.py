"""How a process that runs a task's code once reports to its parent: JSON objects, one per line of output. No torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from shoal.trainer.child_loop import print_to_stderr
from shoal.trainer.guard import TRAINER_VARIABLE

Report: TypeAlias = Callable[[dict[str, Any]], None]


def reporting(name: str) -> Report:
    """Keep standard output for reports; what the task prints goes to the log. The task sees ``name`` in sys.argv."""
    stream = os.fdopen(os.dup(1), "w")
    print_to_stderr()
    sys.argv = [name]
    os.environ[TRAINER_VARIABLE] = "1"

    def report(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=stream, flush=True)

    return report
