"""Which algorithms suit which plans, and how an algorithm is named in results."""

from __future__ import annotations

import hashlib
import inspect

from shoal.learning.algorithm import HOOKS, Algorithm, hooks_of
from shoal.plan import Plan


def unsuited(algorithm: Algorithm, plan: Plan) -> str | None:
    """Return why leaders cannot ask this algorithm under this plan, or None if they can."""
    hooks, name = hooks_of(algorithm), type(algorithm).__name__
    if not hooks:
        return f"{name} has none of the methods {', '.join(HOOKS)}: write one, or leave the algorithm out"
    if {"merge", "finish"} <= hooks:
        return f"{name} has merge and finish: put what finish does into merge, which sees more"
    believes = plan.believes
    sums = "merge" if "merge" in hooks else "finish"
    sees = {"merge": "every update of a version", "finish": "the mean of a version", "choose": "who trained, and when"}
    topologies = ("star",) if "merge" in hooks else ("star", "tree")
    if believes.sealed is not None or plan.privacy is not None:
        hook = min(hooks)
        why = f"{name}.{hook} sees {sees[hook]}, and trust = {plan.trust!r} says that nobody may"
        return f"{why}: set trust = 'identity'"
    if hooks & {"merge", "finish"}:
        if believes.rule is not None:
            return f"trust = {plan.trust!r} and {name}.{sums} both make a version: leave one of them out"
        if plan.topology not in topologies:
            needed = " or ".join(map(repr, topologies))
            return f"{name}.{sums} needs topology = {needed}: elsewhere no node has {sees[sums]}"
    if plan.paces[0] != "sync":
        return f"{name} is asked once per version: set pace = 'sync'"
    if "choose" in hooks and plan.sampling:
        return f"{name}.choose and sampling = {plan.sampling!r} both choose devices: leave sampling out"
    if "choose" in hooks and not plan.cohort:
        return f"{name}.choose says which devices train, and in this plan all do: set cohort"
    return None


def named(algorithm: Algorithm) -> str:
    """Return the name of an algorithm with a hash of its code, for a file of results."""
    kind = type(algorithm)
    try:
        code = inspect.getsource(kind)
    except (OSError, TypeError):
        return kind.__name__
    return f"{kind.__name__} {hashlib.sha256(code.encode()).hexdigest()[:16]}"
