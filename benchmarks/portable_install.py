"""What a device without PyTorch has on its disk: as pip installs it, and with what nothing opens removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from shoal.trainer.portable.trim import files_of

_ROOT = Path(__file__).parents[1]
_TRAIN_S = 600.0


def installed_mb() -> tuple[float, float]:
    """Megabytes of all packages that a device without PyTorch installs: with bytecode, and without."""
    whole = bare = 0
    for path, place in _files():
        size = path.stat().st_size
        whole += size
        bare += 0 if place.suffix == ".pyc" else size
    # Shoal itself may be installed as a link to its source, and is compiled to about its own size.
    own = sum(path.stat().st_size for path, _ in _own_files())
    return (whole + 2 * own) / 1e6, (bare + own) / 1e6


def trimmed_mb(given: dict[str, Any]) -> float:
    """Megabytes on a device that removed what nothing opens, by our own command, after its trainer trained."""
    with tempfile.TemporaryDirectory(prefix="shoal-device-") as folder:
        # A trainer may run as another user, and has to reach its packages.
        Path(folder).chmod(0o755)
        home = Path(folder) / "device"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        (packages,) = home.glob("lib/python*/site-packages")
        for path, place in [*_files(), *_own_files()]:
            (packages / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, packages / place)
        trains = ("-m", "benchmarks.portable_memory", "onnx", json.dumps(given))
        for words in (("-m", "shoal.trainer.portable.trim", "--yes"), trains):
            command = [home / "bin" / "python", *words]
            bare = {"PATH": os.environ["PATH"]}
            subprocess.run(command, cwd=_ROOT, env=bare, stdout=subprocess.DEVNULL, check=True, timeout=_TRAIN_S)
        return sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) / 1e6


def _files() -> Iterator[tuple[Path, PurePath]]:
    """Files of the packages that `pip install 'shoal[onnx]'` brings: where they are, and where below site-packages."""
    return files_of("shoal", "onnxruntime")


def _own_files() -> Iterator[tuple[Path, PurePath]]:
    for path in sorted((_ROOT / "src" / "shoal").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, PurePath(path.relative_to(_ROOT / "src"))
