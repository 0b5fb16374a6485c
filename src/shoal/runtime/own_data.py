"""Which folder a device keeps examples of its own in: said once when it joins, kept with its membership. Reads no data.

Who says it later is believed first: the agent's own `--data`, then the environment, then what was said when it joined.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from shoal.data.local import LOCAL_VARIABLE
from shoal.errors import Misuse
from shoal.identity.identity import load_private_json, save_private_json
from shoal.runtime.paths import Paths

DATA_FILE = "data.json"


def checked(folder: Path) -> Path:
    """The same folder from wherever an agent starts; raises Misuse where there is none."""
    whole = folder.expanduser().absolute()
    if not whole.is_dir():
        raise Misuse(f"--data {folder}: there is no such folder; make it first, examples may come later")
    return whole


def remember(places: Paths, folder: Path) -> None:
    """From its next start on, the agent knows this folder."""
    save_private_json(places.node / DATA_FILE, {"folder": str(folder)})


def remembered(places: Paths) -> Path | None:
    if not (places.node / DATA_FILE).exists():
        return None
    (folder,) = load_private_json(places.node / DATA_FILE, ("folder",))
    return Path(folder)


def folder_of(places: Paths, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that an agent of this home would take; None: it has none."""
    told = environment.get(LOCAL_VARIABLE, "")
    return Path(told) if told else remembered(places)


def expose(places: Paths, told: Path | None) -> Path | None:
    """Set what tasks look for, for this process and those it starts."""
    folder = checked(told) if told is not None else folder_of(places)
    if folder is not None:
        os.environ[LOCAL_VARIABLE] = str(folder)
    return folder
