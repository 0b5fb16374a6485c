"""Play the seeds of a profile on all cores, and note each part of them that is done.

python -m dst.seeds.play PART      # seeds of one process, as JSON: started by ``play_seeds``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from dst.case import case
from dst.features import Pair, drawn_in, pairs, refusals
from dst.flock_fuzz import fuzz_flock
from dst.fuzz import fuzz_lying
from dst.pinned import COVER
from dst.profiles import PROFILES
from dst.seeds.mutants import MUTANT_SEEDS, hunt_crossings, hunt_mutants, play
from dst.seeds.notes import SeedNotes, code_digest
from dst.seeds.profile_mutants import hunt_trust_mutants
from dst.seeds.progress import say
from shoal.sim.garbage import collected_seldom

COUNT = 10_000
QUICK_COUNT = 100
QUICK_MUTANT_SEEDS = 12
#: Seeds that one process plays before it notes them.
PART = 20

#: In a chain there is no cluster: one flock is played for this many seeds.
CHAIN = "chain"
CLUSTERS_A_FLOCK = 4

#: Seeds in which leaders lie to sealing devices. Each profile of sealed sums plays one for this many seeds.
LYING = "lying"
SEEDS_A_LIAR = 4

#: A seed of a profile.
Seed = tuple[str, int]


def play_flock(seed: int) -> str:
    """Play one seed of a flock; return what went wrong, or nothing."""
    try:
        fuzz_flock(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def play_one(profile: str, seed: int) -> str:
    """Play one seed; return what went wrong, or nothing."""
    if profile == CHAIN:
        return play_flock(seed)
    return play_lying(seed) if profile == LYING else play(profile, seed)


def play_lying(seed: int) -> str:
    """Play one seed in which leaders lie; return what went wrong, or nothing."""
    try:
        fuzz_lying(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def play_part(seeds: list[Seed]) -> dict[str, str]:
    """Play these one after the other; return what went wrong, by ``profile seed``."""
    wrong: dict[str, str] = {}
    with collected_seldom():
        for profile, seed in seeds:
            reason = play_one(profile, seed)
            if reason:
                wrong[f"{profile} {seed}"] = reason
    return wrong


def play_seeds(seeds: list[Seed]) -> dict[str, str]:
    """Play these on all cores, each part in a process of its own that starts fresh; note each part that is done."""
    notes = SeedNotes.open()
    wrong = {name: reason for name, reason in notes.wrong.items() if tuple_of(name) in set(seeds)}
    left = [seed for seed in seeds if seed not in notes.played]
    if len(left) < len(seeds):
        say(f"{len(seeds) - len(left)} of {len(seeds)} seeds were played before at this code")
    parts = [left[start : start + PART] for start in range(0, len(left), PART)]
    running: list[tuple[list[Seed], subprocess.Popen[str]]] = []
    done, began_s = 0, time.monotonic()
    while parts or running:
        while parts and len(running) < (os.cpu_count() or 1):
            running.append((parts[0], _started(parts.pop(0))))
        part, child = running.pop(0)
        out, _ = child.communicate()
        if child.returncode != 0:
            raise SystemExit("a part of the seeds could not be played: see above")
        told = json.loads(out.splitlines()[-1])
        if told["code"] != notes.code:
            raise SystemExit("the code changed while seeds were played: start again")
        found: dict[str, str] = told["wrong"]
        notes.add(part, found)
        for name, reason in found.items():
            say(f"seed {name}: {reason[:400]}\n  {again(name)}")
        wrong |= found
        done += len(part)
        if done % (25 * PART) < len(part):
            say(f"{done} of {len(left)} seeds, {len(wrong)} violations, {time.monotonic() - began_s:.0f} s")
    return wrong


def _started(part: list[Seed]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dst.seeds.play", json.dumps(part)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def tuple_of(name: str) -> Seed:
    profile, _, seed = name.rpartition(" ")
    return profile, int(seed)


def again(name: str) -> str:
    profile, seed = tuple_of(name)
    trace = "" if profile in (CHAIN, LYING) else f" --trace {profile}-{seed}.jsonl"
    return f"python -m benchmarks.protocol_seeds --profile {profile} --first {seed} --count 1{trace}"


def feature_pairs(seeds: list[Seed]) -> dict[str, Any]:
    """Which two features met in these seeds, which two the product refuses, and which are neither."""
    wanted, refused = pairs(), refusals()
    drawn: set[Pair] = set()
    for profile, seed in seeds:
        drawn |= drawn_in(case(profile, seed))
    neither = [pair for pair in wanted if pair not in drawn and pair not in refused]
    for one, other in neither:
        say(f"{one} and {other} were not drawn together, and nothing refuses them")
    for (one, other), reason in refused.items():
        say(f"refused: {one} with {other}: {reason}")
    return {
        "feature_pairs": len(wanted),
        "feature_pairs_drawn": sum(pair in drawn for pair in wanted),
        "feature_pairs_refused": sum(pair in refused and pair not in drawn for pair in wanted),
        "feature_pairs_neither": [" x ".join(pair) for pair in neither],
    }


def chosen_seeds(profile: str, first: int, count: int, *, quick: bool) -> list[Seed]:
    if profile == "any" and quick and not first and not count:
        # A few seeds in which every two features meet that the product accepts together.
        return [("any", seed) for seed in COVER]
    count = count or (QUICK_COUNT if quick else COUNT)
    if profile:
        return [(profile, seed) for seed in range(first, first + count)]
    each = max(1, count // len(PROFILES))
    return [(name, seed) for name in PROFILES for seed in range(first, first + each)]


def hunt(profile: str, *, quick: bool) -> dict[str, Any]:
    """Hold the mutants of a profile against seeds."""
    if profile == "any":
        return hunt_crossings(QUICK_MUTANT_SEEDS if quick else MUTANT_SEEDS)
    if profile in ("", "plain"):
        return hunt_mutants(QUICK_MUTANT_SEEDS if quick else MUTANT_SEEDS)
    return hunt_trust_mutants(profile)


def main() -> None:
    # Before and after: what was edited meanwhile was not played.
    code = code_digest()
    wrong = play_part([(profile, seed) for profile, seed in json.loads(sys.argv[1])])
    print(json.dumps({"code": code if code == code_digest() else "", "wrong": wrong}))


if __name__ == "__main__":
    main()
