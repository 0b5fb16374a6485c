"""What to install for an optional part of Shoal. Reads the metadata of the installed package, and needs no clone."""

from __future__ import annotations

import re
import shlex


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, such as ``starlette>=1.3.1``. Empty if the metadata is not there."""
    # Here, for it takes long to import and is needed where something is missing.
    import importlib.metadata

    try:
        requirements = importlib.metadata.requires("shoal") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    split = (text.partition(";") for text in requirements)
    return [need.strip() for need, _, marker in split if re.search(rf"""extra\s*==\s*["']{extra}["']""", marker)]


def install_command(extra: str) -> str:
    """Return the command that installs what an extra needs, wherever Shoal was installed from."""
    packages = packages_of(extra)
    return f"pip install {' '.join(map(shlex.quote, packages))}" if packages else f"pip install '.[{extra}]' in a clone"
