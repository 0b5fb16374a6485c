"""Deliberate bugs in the protocol, and the seeds that catch them: a recorded table, and a search that makes it again.

The table (``tests/simulation/mutant_seeds.json``) names a few seeds for each mutant, the quickest first. It saves time
and proves nothing: a mutant counts as caught only when a seed breaks an invariant with it and none without it, now.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

from dst.case import case
from dst.fuzz import CheckedRun
from dst.seeds.progress import say
from shoal.sim.trace import TraceWriter

SIMULATION = Path(__file__).parents[2] / "tests" / "simulation"
MUTANTS = SIMULATION / "mutants.py"
TABLE = SIMULATION / "mutant_seeds.json"

#: Each mutant must be caught within so many seeds.
MUTANT_SEEDS = 500
#: Seeds that the table has for each mutant: if a change of the draw spoils one, the next may still do.
KEPT = 3
#: Seeds whose cost is measured before a search that has no table to begin with, so that it plays the cheap ones first.
SURVEYED = 160
#: How many seeds a search tries for each mutant before it turns to the next, one time after the other.
DEPTHS = (20, 60, 160, MUTANT_SEEDS)

Mutant = Callable[[], AbstractContextManager[object]]


def play(profile: str, seed: int, trace: str = "") -> str:
    """Play one seed; return what went wrong, or nothing."""
    what = case(profile, seed)
    try:
        if not trace:
            CheckedRun(what).run()
            return ""
        with Path(trace).open("w", encoding="utf-8") as file:
            CheckedRun(what, observers=[TraceWriter(file, {"profile": profile, "seed": seed})]).run()
    except Exception as error:
        # Not violations alone: a role that raises is as wrong.
        return f"{type(error).__name__}: {error}"
    return ""


@cache
def _module() -> ModuleType:
    """The deliberate bugs live with the tests."""
    spec = importlib.util.spec_from_file_location("mutants", MUTANTS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mutants() -> dict[str, Mutant]:
    found: dict[str, Mutant] = _module().MUTANTS
    return found


def crossings() -> dict[str, Mutant]:
    """Those that live where two features meet."""
    found: dict[str, Mutant] = _module().OF_CROSSINGS
    return found


def profile_of(name: str) -> str:
    """The profile whose seeds are to catch a mutant."""
    return "any" if name in crossings() else "plain"


def shaped_mutants() -> dict[str, Mutant]:
    """Those of them that only show in a tree or a shard."""
    found: dict[str, Mutant] = _module().OF_FORMATIONS
    return found


def table() -> dict[str, list[int]]:
    """Mutant -> seeds that caught it when the table was made, the quickest first."""
    found: dict[str, list[int]] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    return found


# Catching --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caught:
    name: str
    seed: int
    reason: str


@cache
def _is_clean(profile: str, seed: int) -> bool:
    return not play(profile, seed)


def catch(name: str, profile: str, seeds: Iterable[int]) -> Caught | None:
    """The first of these seeds that catches a mutant, and how. A seed that fails without the mutant catches nothing."""
    for seed in seeds:
        with (mutants() | crossings())[name]():
            reason = play(profile, seed)
        if reason and _is_clean(profile, seed):
            return Caught(name, seed, reason)
    return None


def _catch_known_first(name: str, profile: str, known: Sequence[int], seeds: int) -> Caught | None:
    return catch(name, profile, dict.fromkeys([*known, *range(seeds)]))


def hunt_mutants(seeds: int) -> dict[str, Any]:
    """Hold each mutant against the seeds that the table has for it, then against the first plain ones, on all cores."""
    return _hunt(list(mutants()), "plain", seeds)


def hunt_crossings(seeds: int) -> dict[str, Any]:
    """The same for the mutants that live where two features meet, with seeds that draw from all features."""
    return _hunt(list(crossings()), "any", seeds)


def _hunt(names: Sequence[str], profile: str, seeds: int) -> dict[str, Any]:
    known = table()
    caught: dict[str, int] = {}
    with processes() as pool:
        asked = {name: pool.submit(_catch_known_first, name, profile, known.get(name, []), seeds) for name in names}
        for name, answer in asked.items():
            found = answer.result()
            if found is None:
                say(f"mutant {name}: NOT caught within {seeds} seeds and {len(known.get(name, []))} of the table")
            else:
                caught[name] = found.seed
                say(f"mutant {name}: caught by seed {found.seed}: {found.reason[:200]}")
    stale = [name for name in names if caught.get(name) not in known.get(name, [])]
    if stale:
        say(f"the table of seeds lacks {len(stale)} mutants: make it again with --find")
    return {
        "mutants": len(names),
        "mutants_caught": len(caught),
        "mutants_caught_at": caught,
        "mutants_not_caught": [name for name in names if name not in caught],
        "mutants_not_in_table": stale,
    }


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn"))


# Searching -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    """Where to look for the seeds that catch a mutant."""

    name: str
    #: In this order.
    seeds: Sequence[int]
    wanted: int
    #: By the clock of the machine, which all its processes share.
    until_s: float
    #: Those that are known to catch it, with what that costs.
    found: dict[int, float]


def _cost_s(profile: str, seed: int, mutant: Mutant = nullcontext) -> tuple[str, float]:
    began_s = time.process_time()
    with mutant():
        reason = play(profile, seed)
    return reason, time.process_time() - began_s


def _survey(seed: int, until_s: float) -> tuple[int, float]:
    """What a seed costs; without end if it fails by itself, or if the time is over."""
    if time.monotonic() > until_s:
        return seed, math.inf
    reason, cost_s = _cost_s("plain", seed)
    return seed, math.inf if reason else cost_s


def _search(search: _Search) -> dict[int, float]:
    """The seeds that catch a mutant with what each costs. It may end early, with fewer than are wanted."""
    found = dict(search.found)
    for seed in search.seeds:
        if len(found) >= search.wanted or time.monotonic() > search.until_s:
            break
        if seed in found:
            continue
        profile = profile_of(search.name)
        reason, cost_s = _cost_s(profile, seed, (mutants() | crossings())[search.name])
        if reason and _is_clean(profile, seed):
            found[seed] = cost_s
    return found


class _Table:
    """A table in the making."""

    def __init__(self, pool: ProcessPoolExecutor, until_s: float) -> None:
        self._pool = pool
        self._until_s = until_s
        self._known = table()
        self.found: dict[str, dict[int, float]] = {name: {} for name in mutants() | crossings()}

    def make(self) -> None:
        self._search(lambda name: self._known.get(name, []), KEPT)
        if all(len(seeds) >= KEPT for seeds in self.found.values()):
            return
        ordered = list(dict.fromkeys([*self._promising(), *range(MUTANT_SEEDS)]))
        shaped = [seed for seed in ordered if case("plain", seed).topology != "star"]
        others = list(range(MUTANT_SEEDS))

        def between(low: int, high: int) -> Callable[[str], Sequence[int]]:
            # A mutant that only shows where updates meet in aggregators is not looked for where there are none.
            def chosen(name: str) -> Sequence[int]:
                if name in crossings():
                    return others[low:high]
                return (shaped if name in shaped_mutants() else ordered)[low:high]

            return chosen

        # One for each of them first, and those that are easy to catch before the others: the time may end.
        for low, high in pairwise((0, *DEPTHS)):
            self._search(between(low, high), 1)
        self._search(between(0, DEPTHS[1]), KEPT)

    def _promising(self) -> list[int]:
        """Seeds to begin with: those that catch other mutants, the busiest first; without any, the cheap ones."""
        catches = Counter(seed for name, seeds in self.found.items() for seed in seeds if name not in crossings())
        if len(catches) >= DEPTHS[0]:
            return [seed for seed, _ in catches.most_common()]
        costs = self._pool.map(_survey, range(SURVEYED), [self._until_s] * SURVEYED)
        return [seed for seed, _ in sorted(costs, key=lambda each: each[1])]

    def _search(self, seeds: Callable[[str], Sequence[int]], wanted: int) -> None:
        lacking = [name for name, found in self.found.items() if len(found) < wanted]
        searches = [
            _Search(name=name, seeds=seeds(name), wanted=wanted, until_s=self._until_s, found=self.found[name])
            for name in lacking
        ]
        for name, found in zip(lacking, self._pool.map(_search, searches), strict=True):
            self.found[name] = found
        left = sum(len(found) < wanted for found in self.found.values())
        left_s = max(0.0, self._until_s - time.monotonic())
        say(f"{left} of {len(self.found)} mutants have fewer than {wanted} seeds; {left_s:.0f} s left")
        self._write()

    def _write(self) -> None:
        chosen = {name: sorted(seeds, key=lambda seed: seeds[seed]) for name, seeds in sorted(self.found.items())}
        # A search that runs out of time has not shown that the old seeds are wrong.
        chosen |= {name: self._known[name] for name, seeds in chosen.items() if not seeds and name in self._known}
        lines = [f"  {json.dumps(name)}: {json.dumps(seeds)}" for name, seeds in chosen.items()]
        TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def make_table(limit_s: float) -> dict[str, Any]:
    """Keep the seeds of the table that still catch their mutants, look for others where they do not, write it."""
    with processes() as pool:
        made = _Table(pool, time.monotonic() + limit_s)
        made.make()
    not_caught = [name for name, seeds in made.found.items() if not seeds]
    for name in not_caught:
        say(f"mutant {name}: no seed found that catches it")
    return {
        "mutants": len(made.found),
        "caught": len(made.found) - len(not_caught),
        "mutants_not_caught": not_caught,
        "mutants_with_few_seeds": [name for name, seeds in made.found.items() if 0 < len(seeds) < KEPT],
        "play_all_once_s": sum(min(seeds.values()) for seeds in made.found.values() if seeds),
    }
