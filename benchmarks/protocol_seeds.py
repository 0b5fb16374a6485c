"""Ten thousand small disasters: the deployed manager, leader and workers under seeded faults, every invariant watching.

    python -m benchmarks.protocol_seeds [--quick] [--count N] [--first SEED] [--topology star|tree|shard|chain] --json
    python -m benchmarks.protocol_seeds --trust [--quick] [--count N] --json    # robust, private and sealed plans alone
    python -m benchmarks.protocol_seeds --find [--limit-s 900]       # the table of seeds that catch mutants, made again

A seed that breaks an invariant prints the command that plays it again. That the checks can fail is shown by mutants,
deliberate bugs in the protocol: each must be caught within 500 seeds. Seeds that are known to catch a mutant are played
first (``mutant_seeds``); ``--quick`` plays only a few others after them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.common import finish, say
from benchmarks.mutant_seeds import MUTANT_SEEDS, hunt_mutants, make_table, play
from benchmarks.trust_seeds import hunt_trust_mutants, play_trust
from dst.flock_fuzz import fuzz_flock
from shoal.sim.fuzz_case import fuzz_case

COUNT = 10_000
QUICK_COUNT = 80
QUICK_MUTANT_SEEDS = 12
#: How long a search for seeds that catch mutants may take.
FIND_S = 900.0

#: Violations told in full; after so many it is clear that something is broken.
TOLD_MAX = 20

#: Where the updates of a seed's jobs meet; in a chain there is no cluster, and so one flock is played for four of the
#: others.
CHAIN = "chain"
SHAPES = ("star", "tree", "shard")
CLUSTERS_A_FLOCK = 4


def play_flock(seed: int) -> str:
    """Play one seed of a flock; what went wrong, or nothing."""
    try:
        fuzz_flock(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def play_range(first: int, count: int, *, shape: str = "", tell: bool = True) -> dict[int, str]:
    """With a shape, only the seeds among them whose jobs have it."""
    wrong: dict[int, str] = {}
    for number in range(count):
        if shape and shape != CHAIN and fuzz_case(first + number).topology != shape:
            continue
        reason = play_flock(first + number) if shape == CHAIN else play(first + number)
        if reason:
            wrong[first + number] = reason
        if tell and (number + 1) % 500 == 0:
            say(f"{number + 1} of {count} seeds from {first}: {len(wrong)} violations")
    return wrong


def play_in_processes(first: int, count: int, processes: int, *, shape: str = "") -> dict[int, str]:
    """Split over processes of their own; each prints its violations as JSON."""
    share = max(1, -(-count // processes))
    children = []
    for start in range(first, first + count, share):
        part = min(share, first + count - start)
        command = [sys.executable, "-m", "benchmarks.protocol_seeds", "--first", str(start), "--count", str(part)]
        command += ["--part", *(["--topology", shape] if shape else [])]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    wrong: dict[int, str] = {}
    for child in children:
        out, _ = child.communicate()
        if child.returncode != 0:
            raise SystemExit("a part of the seeds could not be played: see above")
        wrong |= {int(seed): reason for seed, reason in json.loads(out.splitlines()[-1]).items()}
    return wrong


def flocks_played(first: int, count: int) -> dict[str, Any]:
    """Flocks, in processes of their own."""
    wrong = play_in_processes(first, count, os.cpu_count() or 1, shape=CHAIN)
    for seed, reason in sorted(wrong.items())[:TOLD_MAX]:
        again = f"python -m benchmarks.protocol_seeds --topology {CHAIN} --first {seed} --count 1"
        say(f"flock {seed}: {reason}\n  {again}")
    return {"flock_seeds": count, "flock_violations": len(wrong), "flock_failing": sorted(wrong)[:TOLD_MAX]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=0, help=f"how many seeds; {COUNT:,} unless --quick")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--topology", default="", choices=(*SHAPES, CHAIN), help="only seeds of this shape")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} seeds")
    parser.add_argument("--trust", action="store_true", help="seeds that draw trust, as many of each range")
    parser.add_argument("--trace", default="", help="write the trace of one seed to this file")
    parser.add_argument("--find", action="store_true", help="look for seeds that catch mutants, and write the table")
    parser.add_argument("--limit-s", type=float, default=FIND_S, help=f"of --find; {FIND_S:g} unless told")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    count = given.count or (QUICK_COUNT if given.quick else COUNT)
    if given.part:
        print(json.dumps(play_range(given.first, count, shape=given.topology)))
        return 0
    began_s = time.monotonic()
    if given.find:
        made = make_table(given.limit_s)
        finish(made | {"seconds": time.monotonic() - began_s})
        return 1 if made["mutants_not_caught"] else 0
    if given.trust:
        trusted = play_trust(count) | hunt_trust_mutants()
        finish(trusted | {"seconds": time.monotonic() - began_s})
        return 1 if trusted["violations"] or trusted["mutants_not_caught"] else 0
    if count == 1:
        reason = play_flock(given.first) if given.topology == CHAIN else play(given.first, given.trace)
        finish({"seeds": 1, "violations": int(bool(reason)), "seed": given.first, "reason": reason})
        return 1 if reason else 0
    if given.topology == CHAIN:
        flocks = flocks_played(given.first, count)
        finish(flocks | {"seconds": time.monotonic() - began_s})
        return 1 if flocks["flock_violations"] else 0
    wrong = play_in_processes(given.first, count, os.cpu_count() or 1, shape=given.topology)
    for seed, reason in sorted(wrong.items())[:TOLD_MAX]:
        again = f"python -m benchmarks.protocol_seeds --first {seed} --count 1 --trace {seed}.jsonl"
        say(f"seed {seed}: {reason}\n  {again}")
    shapes = Counter(fuzz_case(given.first + number).topology for number in range(count))
    played = {shape: shapes[shape] for shape in SHAPES if not given.topology or shape == given.topology}
    result: dict[str, Any] = {"seeds": sum(played.values()), "seeds_of_shape": played}
    result |= {"violations": len(wrong), "failing": sorted(wrong)[:TOLD_MAX]}
    if not given.topology:
        result |= flocks_played(given.first, count // CLUSTERS_A_FLOCK)
    result |= hunt_mutants(QUICK_MUTANT_SEEDS if given.quick else MUTANT_SEEDS)
    finish(result | {"seconds": time.monotonic() - began_s})
    return 1 if wrong or result.get("flock_violations") or result["mutants_not_caught"] else 0


if __name__ == "__main__":
    sys.exit(main())
