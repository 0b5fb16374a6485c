"""``python -m dst.cover``: choose a few seeds of ``any`` in which every two features meet that the product accepts
together, and write them to ``any_cover.json``. Run it again after a change of what ``any`` draws."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dst.case import case
from dst.features import Pair, drawn_in, pairs, refusals

TARGET = Path(__file__).with_name("any_cover.json")
#: Seeds to choose from.
SEEDS = 4_000


def cover(seeds: int) -> tuple[list[int], set[Pair]]:
    """Choose greedily, the seed with the most new pairs first. Return the seeds and the pairs that none of them has."""
    wanted = set(pairs()) - set(refusals())
    met = {seed: drawn_in(case("any", seed)) & wanted for seed in range(seeds)}
    chosen: list[int] = []
    while wanted and (best := max(met, key=lambda seed: (len(met[seed] & wanted), -seed))) is not None:
        if not met[best] & wanted:
            break
        chosen.append(best)
        wanted -= met[best]
    return chosen, wanted


def main() -> int:
    chosen, left = cover(SEEDS)
    TARGET.write_text(json.dumps(sorted(chosen)) + "\n", encoding="utf-8")
    print(f"{len(chosen)} seeds; not met: {sorted(left) or 'none'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
