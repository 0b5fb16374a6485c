"""Which tensors the leader's weight decay skips, by text. Below plans, so that a plan can check it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shoal.errors import Misuse
from shoal.learning.layout import Entry, Layout

#: Tensors of at most one dimension: biases, and the weights of norms.
VECTORS = "vectors"

TEXT_MAX_CHARS = 1024


@dataclass(frozen=True, slots=True)
class DecaySkips:
    """``vectors``, or patterns of tensors' names in which ``*`` stands for anything."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DecaySkips:
        """Read texts such as ``vectors, *embedding*``."""
        if len(text) > TEXT_MAX_CHARS:
            raise Misuse(f"decay_skips has {len(text)} characters; the maximum is {TEXT_MAX_CHARS}")
        if not text:
            return cls()
        patterns = tuple(part.strip() for part in text.split(","))
        for pattern in patterns:
            if not re.fullmatch(r"[\w.*-]+", pattern):
                raise Misuse(
                    f"decay_skips = {text!r}: write 'vectors' for biases and norms, or names of tensors separated by"
                    " commas, in which * stands for anything, such as '*.bias, *norm*'"
                )
        return cls(patterns)

    def has(self, entry: Entry) -> bool:
        """Whether a tensor does not decay."""
        is_vector = len(entry.shape) <= 1
        return any(is_vector if each == VECTORS else fnmatchcase(entry.name, each) for each in self.patterns)

    def unmatched(self, layout: Layout) -> tuple[str, ...]:
        """Patterns that no parameter matches: most likely misspelt."""
        parameters = [entry for entry in layout.entries if entry.kind == "parameter"]
        return tuple(each for each in self.patterns if not any(DecaySkips((each,)).has(entry) for entry in parameters))

    def decayed(self, layout: Layout) -> tuple[slice, ...]:
        """Return the parts of the flat vector whose values decay, in order: as few as there can be."""
        return tuple(self._runs(layout))

    def _runs(self, layout: Layout) -> Iterator[slice]:
        start = stop = 0
        for entry in layout.entries:
            if entry.kind != "parameter" or self.has(entry):
                continue
            if entry.offset != stop:
                if stop > start:
                    yield slice(start, stop)
                start = entry.offset
            stop = entry.stop
        if stop > start:
            yield slice(start, stop)


def within(runs: Sequence[slice], part: slice) -> tuple[slice, ...]:
    """Return the overlap of these runs with a part of the vector, counted from where the part begins."""
    cut = ((max(run.start, part.start), min(run.stop, part.stop)) for run in runs)
    return tuple(slice(start - part.start, stop - part.start) for start, stop in cut if start < stop)
