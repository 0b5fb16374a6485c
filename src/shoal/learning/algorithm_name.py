"""How a plan names an algorithm. Without numpy: an idle agent reads plans."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.errors import Misuse

#: The methods of an algorithm.
HOOKS = ("merge", "finish", "choose")
_NAME = re.compile(rf"([\w-]+:[A-Za-z_]\w*)((?: (?:{'|'.join(HOOKS)}))*)")


@dataclass(frozen=True, slots=True)
class AlgorithmName:
    """How a plan names an algorithm: ``rules:Median``, a class in a file of the task's bundle. When the job is
    submitted, the methods that it has are added: ``rules:Median merge``."""

    entry: str
    hooks: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> AlgorithmName:
        match = _NAME.fullmatch(text)
        if match is None:
            raise Misuse(f"algorithm = {text!r}: write FILE:CLASS, such as rules:Median for class Median in rules.py")
        return cls(match[1], frozenset(match[2].split()))

    def __str__(self) -> str:
        return " ".join([self.entry, *(hook for hook in HOOKS if hook in self.hooks)])
