"""The first day of a user: what people do and what surrounds them, with real commands, and what they then read.

Each case runs real processes in a folder of its own, some in network namespaces, some with a browser, and checks what
a person would see. It is *held* if that is what it should be, and *broken* otherwise, also if the case could not be set
up. The exit status is 0 only if all were held. A group of cases is a module with a tuple ``CASES``; one that is not
there is left out.

    python -m benchmarks.first_day [--quick] [--only NAME ...] [--list] --json
"""

from __future__ import annotations

import argparse
import importlib
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.first_day_kit import Case, NotHeld
from testbed.results import finish, say

#: The modules with cases, in the order of a day.
GROUPS = (
    "benchmarks.first_day_command",
    "benchmarks.first_day_network",
    "benchmarks.first_day_screen",
)

#: How many cases run beside each other.
AT_ONCE = 2


def all_cases() -> list[Case]:
    """Every case of every group."""
    return [case for name in GROUPS for case in importlib.import_module(name).CASES]


def judged(case: Case) -> tuple[bool, str]:
    """Run a case. Return whether it held, and what a person saw or what was wrong with it."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-day-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        try:
            held, told = True, case.run(Path(name))
        except NotHeld as why:
            held, told = False, str(why)
        except Exception as error:
            held, told = False, f"the case itself failed: {type(error).__name__}: {error}"
    told = " ".join(told.split())[:600]
    say(f"{case.name}: {'held' if held else 'BROKEN'} after {time.monotonic() - began_s:.0f} s: {told}")
    return held, told


def result_of(outcomes: dict[str, tuple[bool, str]], *, left_out: int) -> dict[str, Any]:
    """The figures that are printed: how many cases ran, how many held, and what was seen in each."""
    return {
        "cases": len(outcomes),
        "held": sum(held for held, _ in outcomes.values()),
        "left_out": left_out,
        "details": {name: f"{'held' if held else 'broken'}: {told}" for name, (held, told) in outcomes.items()},
    }


def run_all(cases: Sequence[Case]) -> dict[str, tuple[bool, str]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip([case.name for case in cases], pool.map(judged, cases), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the slow cases: within a minute")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this case; may be said again")
    parser.add_argument("--list", action="store_true", help="name all cases")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    given = parser.parse_args()
    cases = all_cases()
    if given.list:
        for case in cases:
            print(f"{case.name}{' (slow)' if case.slow else ''}")
        return 0
    if unknown := set(given.only) - {case.name for case in cases}:
        parser.error(f"there is no case {', '.join(sorted(unknown))}: see --list")
    wanted = [case for case in cases if not given.only or case.name in given.only]
    chosen = [case for case in wanted if not (given.quick and case.slow and not given.only)]
    if len(chosen) < len(wanted):
        say(f"--quick leaves out {len(wanted) - len(chosen)} of {len(wanted)} cases, the slow ones")
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    outcomes = run_all(chosen)
    finish(result_of(outcomes, left_out=len(wanted) - len(chosen)))
    return 0 if all(held for held, _ in outcomes.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
