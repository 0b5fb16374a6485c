"""Ten thousand small disasters: the deployed manager, leader and workers under seeded faults, every invariant watching.

    python -m benchmarks.protocol_seeds --profile any [--quick] [--count N] [--first SEED] --json
    python -m benchmarks.protocol_seeds [--quick] --json         # some seeds of every profile, flocks, and all mutants
    python -m benchmarks.protocol_seeds --profile any --first SEED --count 1 --trace FILE      # one seed, written down
    python -m benchmarks.protocol_seeds --find [--limit-s 900]       # make the table of seeds that catch mutants again
    python -m benchmarks.protocol_seeds --profiles                              # the profiles, and what each one draws

A profile says what its seeds draw; ``any`` draws from all features at once and reports which two of them met, and which
two the product refuses, and why. A seed that breaks an invariant prints the command that plays it again. Seeds that
were played are noted under ``.seeds`` by a digest of the code, so a run that was stopped goes on where it was.

Mutants, deliberate bugs in the protocol, show that the checks can fail. Seeds that are known to catch a mutant are
played first; ``--quick`` plays only a few others after them.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from dst.fuzz import LYING_PROFILES
from dst.profiles import PROFILES
from dst.seeds.mutants import make_table, play
from dst.seeds.play import (
    CHAIN,
    CLUSTERS_A_FLOCK,
    COUNT,
    LYING,
    SEEDS_A_LIAR,
    chosen_seeds,
    feature_pairs,
    hunt,
    play_one,
    play_seeds,
)
from testbed.results import finish, say

#: How long a search for seeds that catch mutants may take.
FIND_S = 900.0

#: Violations told in full; after this many it is clear that something is broken.
TOLD_MAX = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--profile", default="", choices=(*PROFILES, CHAIN, LYING), help="what the seeds draw; every profile"
    )
    parser.add_argument("--count", type=int, default=0, help=f"how many seeds; {COUNT:,} unless --quick")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--quick", action="store_true", help="few seeds")
    parser.add_argument("--no-mutants", action="store_true", help="only play seeds")
    parser.add_argument("--trace", default="", help="write the trace of one seed to this file")
    parser.add_argument("--find", action="store_true", help="look for seeds that catch mutants, and write the tables")
    parser.add_argument("--limit-s", type=float, default=FIND_S, help=f"of --find; {FIND_S:g} unless told")
    parser.add_argument("--profiles", action="store_true", help="list the profiles")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    if given.profiles:
        for name, profile in PROFILES.items():
            say(f"{name:<16} {', '.join(part for part, _ in profile.plans) or 'plain jobs'}")
        return 0
    began_s = time.monotonic()
    if given.find:
        made = make_table(given.limit_s)
        finish(made | {"seconds": time.monotonic() - began_s})
        return 1 if made["mutants_not_caught"] else 0
    profile = given.profile
    if given.count == 1 and profile:
        is_traced = given.trace and profile in PROFILES
        reason = play(profile, given.first, given.trace) if is_traced else play_one(profile, given.first)
        finish({"profile": profile, "seeds": 1, "violations": int(bool(reason)), "seed": given.first, "reason": reason})
        return 1 if reason else 0
    seeds = chosen_seeds(profile, given.first, given.count, quick=given.quick)
    if not profile:
        seeds += [(CHAIN, seed) for seed in range(given.first, given.first + len(seeds) // CLUSTERS_A_FLOCK)]
    if not profile or profile in LYING_PROFILES:
        seeds += [(LYING, seed) for seed in range(given.first, given.first + len(seeds) // SEEDS_A_LIAR)]
    wrong = play_seeds(seeds)
    result: dict[str, Any] = {"profile": profile or "every", "seeds": len(seeds)}
    result |= {"violations": len(wrong), "failing": sorted(wrong)[:TOLD_MAX]}
    if profile == "any":
        result |= feature_pairs(seeds)
    if profile not in (CHAIN, LYING) and not given.no_mutants:
        result |= hunt(profile, quick=given.quick)
    finish(result | {"seconds": time.monotonic() - began_s})
    return 1 if wrong or result.get("mutants_not_caught") or result.get("feature_pairs_neither") else 0


if __name__ == "__main__":
    sys.exit(main())
