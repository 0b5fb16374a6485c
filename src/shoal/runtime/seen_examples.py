"""How many of its own examples a device was done with in each job: what its trainer forgets with its process.

Without it a trainer that starts again takes all there are for new, and judges the model on what it was trained on. The
count is written down when it changes; a file that cannot be read or written costs one evaluation that is too good, so
it stops nobody.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from shoal.errors import ShoalError
from shoal.store.files import make_directory, write_atomically
from shoal.wire.messages import is_id

log = logging.getLogger("shoal")

SEEN_FILE = "seen.json"

#: Jobs that are remembered, those that were noted last.
JOBS_KEPT = 100

#: A file of ours is far smaller.
_READ_MAX_BYTES = 64 << 10


class SeenExamples:
    def __init__(self, folder: Path, *, of: str) -> None:
        """``folder``: where this is kept. ``of``: where the examples lie; counts of another place say nothing."""
        self._path = folder / SEEN_FILE
        self._of = of
        self._counts = self._read()

    def count(self, job: str) -> int:
        return self._counts.get(job, 0)

    def note(self, job: str, count: int) -> None:
        """A lease was trained when there were so many."""
        if self._counts.get(job) == count:
            return
        self._counts.pop(job, None)
        self._counts[job] = count
        while len(self._counts) > JOBS_KEPT:
            del self._counts[next(iter(self._counts))]
        text = json.dumps({"of": self._of, "counts": self._counts})
        try:
            make_directory(self._path.parent)
            write_atomically(self._path, lambda file: file.write(text.encode()))
        except (ShoalError, OSError) as error:
            log.warning("[%s] how many examples were seen could not be written down: %s", job, error)

    def _read(self) -> dict[str, int]:
        try:
            with self._path.open("rb") as file:
                kept = json.loads(file.read(_READ_MAX_BYTES))
            counts = kept["counts"] if kept["of"] == self._of else {}
            return {job: count for job, count in counts.items() if is_id(job) and type(count) is int and count >= 0}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            log.warning("%s cannot be read (%s): all examples count as new", self._path, error)
            return {}
