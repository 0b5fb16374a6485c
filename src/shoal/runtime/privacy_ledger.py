"""A device's own account of a private job: each of its participations, in a file that outlives trainer and agent.

It is written before an update leaves, and nothing is ever taken out of it. A file that cannot be read or written stops
the device, unlike its other files: a device that does not know how often it took part takes no part. Nor is anything
written beyond the epsilon that the device's owner allows over all jobs (``privacy_accounts``).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

from shoal.errors import ShoalError
from shoal.learning.privacy import Privacy
from shoal.runtime.privacy_accounts import PRIVACY_FOLDER, limit_of, read_account, spent_elsewhere
from shoal.store.files import make_directory, write_atomically
from shoal.wire.messages import is_id


class PrivacyLedger:
    def __init__(self, folder: Path, job: str, privacy: Privacy) -> None:
        """``folder`` is this device's own. Raises ShoalError for an account that cannot be read."""
        if not is_id(job):
            raise ShoalError(f"{job[:80]!r} is not a job's id")
        self._path = folder / PRIVACY_FOLDER / f"{job}.json"
        self._folder, self._job, self._privacy = folder, job, privacy
        #: The term and the version of each participation.
        self.taken = self._read()

    def note(self, term: int, version: int) -> None:
        """Write down a participation. It is durable when this returns; raises if it cannot be made so."""
        taken = (*self.taken, (term, version))
        privacy = self._privacy
        epsilon = privacy.epsilon_of(privacy.spent(list(Counter(term for term, _ in taken).values())))
        if epsilon > (left := self.epsilon_left()):
            raise ShoalError(f"it would spend an epsilon of {epsilon:.3g}, and its owner left {left:.3g} for this job")
        text = json.dumps({"job": self._job, "participations": taken, "epsilon": epsilon, "delta": privacy.delta})
        make_directory(self._path.parent)
        write_atomically(self._path, lambda file: file.write(text.encode()))
        self.taken = taken

    def epsilon_left(self) -> float:
        """Return the part of the owner's limit that other jobs leave to this one, or infinity without a limit."""
        limit = limit_of(self._folder)
        return limit - spent_elsewhere(self._folder, self._job) if limit < math.inf else limit

    def _read(self) -> tuple[tuple[int, int], ...]:
        try:
            kept = read_account(self._path)
            if kept["job"] != self._job:
                raise ValueError(f"it is of another job, {kept['job']!r:.80}")
            taken = tuple((term, version) for term, version in kept["participations"])
            if not all(type(number) is int and number >= 0 for pair in taken for number in pair):
                raise ValueError("it has impossible numbers")
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise ShoalError(
                f"the device's account of this private job, {self._path}, cannot be read ({error}): it takes no part."
                " Its owner may restore the file from a backup"
            ) from error
        return taken
