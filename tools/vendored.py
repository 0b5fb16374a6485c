"""Files of others that lie in this repository: each is named in VENDORED.toml, and is the file that is named there."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

#: What is said of each file.
FIELDS = ("path", "name", "version", "source", "sha256", "licence")
LIST = "VENDORED.toml"


def problems(folder: Path) -> list[str]:
    """What is wrong with a folder of such files; empty: nothing, or there is no such folder."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {LIST}
    try:
        listed = tomllib.loads((folder / LIST).read_text(encoding="utf-8")).get("file", [])
    except FileNotFoundError:
        return [f"{name} has no {LIST} beside it that names it" for name in sorted(files)]
    found: list[str] = []
    named: set[str] = set()
    for entry in listed:
        name = str(entry.get("path", "a file without a name"))
        lacking = [field for field in FIELDS if not isinstance(entry.get(field), str) or not entry[field]]
        found += [f"{name}: {LIST} does not say its {field}" for field in lacking]
        named.add(name)
        if lacking:
            continue
        if name not in files:
            found.append(f"{name} is named in {LIST}, and is not there")
        elif not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
            found.append(f"{name}: {entry['sha256']!r} is no sha256")
        elif (actual := hashlib.sha256((folder / name).read_bytes()).hexdigest()) != entry["sha256"]:
            found.append(f"{name} is not the file that {LIST} names: its sha256 is {actual}")
    # A licence needs no entry of its own.
    return found + [f"{name} is not named in {LIST}" for name in sorted(files - named) if "LICEN" not in name.upper()]
