"""Where a device keeps examples of its own, and which part of a divided set it has. Standard library only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from shoal.errors import Misuse

#: Set on the device: `shoal join --data FOLDER`, or by hand.
LOCAL_VARIABLE = "SHOAL_LOCAL_DATA"

#: Set on the device: `shoal join --part 17/1000`, or by hand.
PART_VARIABLE = "SHOAL_PART"

_PART = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


def local_folder() -> Path:
    """The folder that this device was joined with. For ``Task.examples`` of a job whose data is local.

    The machine that starts the job is not asked for them.
    """
    folder = os.environ.get(LOCAL_VARIABLE, "")
    if not folder:
        raise Misuse(f"this device has no folder of examples: join it with --data FOLDER, or set {LOCAL_VARIABLE}")
    return Path(folder)


def part() -> tuple[int, int] | None:
    """The part of a divided set that this device has: its index from 0, and the number of devices. None if it has none.

    A device that was joined with ``--part 17/1000`` has ``(16, 1000)``. ``Partition.here`` uses it.
    """
    text = os.environ.get(PART_VARIABLE, "")
    return parse_part(text) if text else None


def parse_part(text: str) -> tuple[int, int]:
    """Read ``17/1000``, device 17 of 1,000, as an index from 0 and the number of devices."""
    match = _PART.fullmatch(text)
    number, devices = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= devices:
        raise Misuse(f"{text[:40]!r} is not a part: write 17/1000 for device 17 of 1,000, counted from 1")
    return number - 1, devices
