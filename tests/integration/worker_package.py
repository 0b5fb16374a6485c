"""The package @shoal/worker as others have it: packed by npm, and installed in a folder outside the repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from kit import HERE

SOURCES = HERE.parents[1] / "tab"
NAME = "@shoal/worker"
#: What its users install beside it, where they need it.
BESIDE = ("onnxruntime-node", "onnxruntime-web", "ws", "typescript", "@types")


def missing() -> str:
    """Return why the package cannot be packed here, or an empty text."""
    if shutil.which("npm") is None:
        return "no npm on this machine"
    absent = [name for name in BESIDE if not (SOURCES / "node_modules" / name).is_dir()]
    return f"no {', '.join(absent)}: python tools/tasks.py tab" if absent else ""


def installed(folder: Path) -> Path:
    """Pack the sources as they are, and install what is packed into a fresh project in this folder."""
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"name": "elsewhere", "private": true, "type": "module"}')
    packed = subprocess.run(
        ["npm", "pack", "--silent", "--pack-destination", str(folder)],
        cwd=SOURCES,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    tarball = folder / packed.stdout.split()[-1]
    install = ["npm", "install", "--silent", "--offline", "--no-audit", "--ignore-scripts", str(tarball)]
    subprocess.run(install, cwd=folder, check=True, capture_output=True, timeout=300)
    for name in BESIDE:
        (folder / "node_modules" / name).symlink_to(SOURCES / "node_modules" / name)
    return folder
