"""Where a device keeps examples of its own. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.errors import Misuse

#: Set on the device: `shoal join --data FOLDER`, or by hand.
LOCAL_VARIABLE = "SHOAL_LOCAL_DATA"


def local_folder() -> Path:
    """The folder that this device was joined with. For ``Task.examples`` of a job whose data is local.

    The machine that starts the job is not asked for them.
    """
    folder = os.environ.get(LOCAL_VARIABLE, "")
    if not folder:
        raise Misuse(f"this device has no folder of examples: join it with --data FOLDER, or set {LOCAL_VARIABLE}")
    return Path(folder)
