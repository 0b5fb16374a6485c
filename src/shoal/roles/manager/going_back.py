"""A store that went back in time: who does what is done once, and from which terms jobs go on. Decides only."""

from __future__ import annotations

#: Added to the term of every open job of a store that went back. Managers gave out terms since, and a term that is
#: given twice fences nobody. A leader changes some thousand times a day at the very most.
TERMS_PASSED_OVER = 1_000_000


def is_first_to_find(known: int, remembered: int) -> bool:
    """Whether nobody has found yet that the store went back. ``known``: how often it did, by the store's own count;
    ``remembered``: as often as this manager knew before. Whoever finds out first counts on."""
    return known <= remembered


def jumped_term(term: int, remembered: int, *, is_first: bool) -> int:
    """Return the term that a job goes on from. ``term``: the store's; ``remembered``: the last that this manager gave
    out, or 0. The first to find out jumps for all; another one if it knows of a later term than the store."""
    if not is_first and term >= remembered:
        return term
    return max(term, remembered) + TERMS_PASSED_OVER
