"""Tests that failed on a busy machine, once more with the machine to themselves.

Several runs share the processors, with whatever else the machine does. A test that a pause made fail passes alone; a
fault fails again. At most a few tests get a second look, and those that pass are named at the end of the run: a name
that comes back is a test to mend.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

#: More failures than these are no accident of a busy machine.
TESTS_MAX = 6
#: What pytest ends with when tests failed, and nothing else went wrong.
TESTS_FAILED = 1


def arguments(cache: Path) -> tuple[str, ...]:
    """What tells pytest to keep the names of failed tests in this folder."""
    return ("-o", f"cache_dir={cache}")


def failed_in(cache: Path) -> list[str]:
    """The tests that failed in a run with these arguments, by name."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def look(code: int, cache: Path, again: Callable[..., int], note: Callable[[str], None]) -> int:
    """The exit code of a run, after its failed tests ran again by ``again(*names)``."""
    names = failed_in(cache)
    if code != TESTS_FAILED or not 0 < len(names) <= TESTS_MAX:
        return code
    print(f"{len(names)} failed: once more, with nothing beside them", flush=True)
    if again(*names) != 0:
        return code
    for name in names:
        note(f"FAILED ONCE, passed alone: {name}")
    return 0
