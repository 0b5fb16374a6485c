"""Which part of a divided set a device has, such as ``17/1000``: said once when it joins, kept with its membership.

The agent's own ``--part`` comes first, then the environment, then the choice made when it joined.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.data.local import PART_VARIABLE, parse_part
from shoal.identity.identity import load_private_json, save_private_json
from shoal.runtime.paths import Paths

PART_FILE = "part.json"


def remember(places: Paths, part: str) -> None:
    """From its next start on, the agent has this part. Raises Misuse."""
    parse_part(part)
    save_private_json(places.node / PART_FILE, {"part": part})


def remembered(places: Paths) -> str:
    """Return the part as it is typed, or "" if none was."""
    if not (places.node / PART_FILE).exists():
        return ""
    (part,) = load_private_json(places.node / PART_FILE, ("part",))
    return part


def part_of(places: Paths, environment: Mapping[str, str] = os.environ) -> str:
    """Return the part that an agent of this home would have, or "" if it has none."""
    return environment.get(PART_VARIABLE, "") or remembered(places)


def expose(places: Paths, told: str) -> str:
    """Set what tasks look for, for this process and those it starts."""
    part = told or part_of(places)
    if part:
        parse_part(part)
        os.environ[PART_VARIABLE] = part
    return part
