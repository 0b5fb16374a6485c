"""A device's own part of a job's model, in memory and in a file that outlives trainer and agent. Decides nothing.

The file is written when an update was taken, before the next lease begins. One that cannot be read, or is of another
model, is set aside: the device then begins with the first model's values, as a new device does.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from shoal.errors import ShoalError
from shoal.learning.layout import Layout
from shoal.learning.own_values import OwnValues
from shoal.store.files import make_directory, write_atomically
from shoal.trainer.prepared_job import LAYOUT_NOTE
from shoal.wire import tensors
from shoal.wire.messages import is_id

log = logging.getLogger("shoal")

OWN_FOLDER = "own"

#: Files that are kept, those of the jobs that were written last.
JOBS_KEPT = 100


class OwnPartFile(OwnValues):
    def __init__(self, folder: Path, job: str, layout: Layout) -> None:
        """``folder`` is this device's own."""
        if not is_id(job):
            raise ShoalError(f"{job[:80]!r} is not a job's id")
        self._path = folder / OWN_FOLDER / f"{job}.safetensors"
        self._job = job
        self._layout = layout
        super().__init__(self._read())

    def _keep(self, values: np.ndarray) -> None:
        try:
            make_directory(self._path.parent)
            notes = {LAYOUT_NOTE: self._layout.to_json(), "job": self._job}
            write_atomically(self._path, lambda file: tensors.write(file, self._layout.views(values), notes))
            self._drop_oldest()
        except (ShoalError, OSError) as error:
            log.warning("[%s] the device's own part of the model could not be written down: %s", self._job, error)

    def _drop_oldest(self) -> None:
        files = sorted(self._path.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
        for path in files[:-JOBS_KEPT]:
            path.unlink(missing_ok=True)

    def _read(self) -> np.ndarray | None:
        try:
            arrays, notes = tensors.read(self._path, mmap=False)
            if notes.get(LAYOUT_NOTE) != self._layout.to_json():
                raise ShoalError("it is of another model")
            values = np.empty(self._layout.size, np.float32)
            for name, view in self._layout.views(values).items():
                view[...] = arrays[name]
            if not np.isfinite(values).all():
                # Each lease would diverge, and none of them would be taken, so it would never end.
                raise ShoalError("it has values that are not finite")
        except FileNotFoundError:
            return None
        except (ShoalError, OSError, LookupError, ValueError) as error:
            log.warning("[%s] %s is discarded (%s): the own part begins again", self._job, self._path, error)
            return None
        return values
