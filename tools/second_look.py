"""Tests that failed once and passed by themselves: an alarm names each. Does not decide what an alarm is worth.

A fault fails again when its test runs with nothing beside it. A test that passes then depends on the machine, and its
name is printed until somebody mends it. At most a few tests get a second look.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

#: A busy machine does not explain more failures than these.
TESTS_MAX = 6
#: What pytest ends with when tests failed, and nothing else went wrong.
TESTS_FAILED = 1


def arguments(cache: Path) -> tuple[str, ...]:
    """Return what tells pytest to keep the names of failed tests in this folder."""
    return ("-o", f"cache_dir={cache}")


def failed_in(cache: Path) -> list[str]:
    """Return the tests that failed in a run with these arguments, by name."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def look(code: int, cache: Path, again: Callable[..., int]) -> list[str]:
    """Run the failed tests of a run again by ``again(*names)``; return them if all passed, and else none."""
    names = failed_in(cache)
    if code != TESTS_FAILED or not 0 < len(names) <= TESTS_MAX:
        return []
    print(f"{len(names)} failed: once more, with nothing beside them", flush=True)
    return names if again(*names) == 0 else []


def alarm(name: str) -> str:
    """Return the line that names a test to mend."""
    return f"ALARM: {name} failed once, mend this test"
