"""Which algorithms suit which plans, and how an algorithm is named in results."""

from __future__ import annotations

import hashlib
import inspect
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from shoal.errors import Misuse
from shoal.learning.algorithm import Algorithm, hooks_of
from shoal.learning.algorithm_name import HOOKS, AlgorithmName
from shoal.plan import Plan
from shoal.trainer.bundle import unpack
from shoal.trainer.importer import make_algorithm


def with_algorithm(plan: Plan, algorithm: Algorithm) -> Plan:
    """Return the plan with which leaders ask this algorithm. Raises Misuse, with the reasons, if none can."""
    hooks, name = hooks_of(algorithm), type(algorithm).__name__
    if not hooks:
        raise Misuse(f"{name} has none of the methods {', '.join(HOOKS)}: write one, or leave the algorithm out")
    if plan.algorithm:
        raise Misuse(f"the plan names the algorithm {plan.algorithm!r} already: leave it out, or algorithm=")
    file = re.sub(r"\W", "-", type(algorithm).__module__.rpartition(".")[2]) or "here"
    return replace(plan, algorithm=str(AlgorithmName(f"{file}:{name}", hooks)))


def algorithm_of(bundle: bytes, text: str) -> Algorithm:
    """Return the algorithm that a plan names, from the code of its task. It runs in this process, as the task does."""
    with tempfile.TemporaryDirectory(prefix="shoal-algorithm-") as folder:
        unpack(bundle, Path(folder, "code"))
        return make_algorithm(Path(folder, "code"), AlgorithmName.parse(text).entry)


def named(algorithm: Algorithm) -> str:
    """Return the name of an algorithm with a hash of its code, for a file of results."""
    kind = type(algorithm)
    try:
        code = inspect.getsource(kind)
    except (OSError, TypeError):
        return kind.__name__
    return f"{kind.__name__} {hashlib.sha256(code.encode()).hexdigest()[:16]}"
