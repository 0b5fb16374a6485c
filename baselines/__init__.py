"""Algorithms of published papers, each in a file of at most 40 lines: ``python -m baselines``.

A baseline is a task, what its plan changes, and perhaps an algorithm that the leader asks (``shoal.Algorithm``).
"""

import os
from pathlib import Path

# A task is prepared in a process of its own, which finds this package as this process does.
_ROOT = str(Path(__file__).resolve().parent.parent)
_FOLDERS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if _ROOT not in _FOLDERS:
    os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, _FOLDERS)])
