"""An environment for each peer, by pip, never one of Shoal's dependencies. Knows no contest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testbed.results import say

#: What pip installs for each; the newest.
PACKAGES = {"flower": "flwr", "nvflare": "nvflare", "hivemind": "hivemind"}
DISTRIBUTIONS = {"shoal": "shoal", **PACKAGES}
#: The same for every peer, so that the network is as fast in all.
TORCH = "torch==2.13.0"
LONGEST_S = 1800.0
#: What a peer's release requires and its environment lacks, as pip says it.
UNMET = "unmet.txt"
_SHARED = "zz-torch.pth"


def python_of(folder: Path, name: str) -> Path:
    """Shoal runs in this program's own environment."""
    return Path(sys.executable) if name == "shoal" else folder / name / "bin" / "python"


def version_of(python: Path, name: str) -> str | None:
    """The release that is installed; None: it is not."""
    if not python.exists():
        return None
    asked = f"import importlib.metadata as m; print(m.version({DISTRIBUTIONS[name]!r}))"
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def unmet_in(folder: Path, name: str) -> list[str]:
    """The requirements of a peer's release that were not to be had when it was installed."""
    file = folder / name / UNMET
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(f"{TORCH}\n", encoding="utf-8")
    for name, package in PACKAGES.items():
        say(f"{name}: pip install {package}")
        # From nothing: packages that an earlier one saw beside its own would pass for installed.
        _run(sys.executable, "-m", "venv", "--clear", str(folder / name))
        python = str(python_of(folder, name))
        pip = (python, "-m", "pip", "install", "--quiet", "--upgrade", "--constraint", str(constraints))
        _run(*pip, package)
        # pip falls back to an older release if a registry lacks one requirement of the newest. The newest is compared
        # all the same, and what it lacks is said.
        _run(*pip, "--no-deps", package)
        checked = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
        unmet = "".join(f"{line}\n" for line in checked.stdout.splitlines() if line.startswith(f"{package} "))
        (folder / name / UNMET).write_text(unmet, encoding="utf-8")
        say(f"{name} {version_of(Path(python), name)} {unmet}".strip())
        if not share_torch(Path(python)):
            _run(*pip, TORCH, "numpy")


def share_torch(python: Path) -> bool:
    """Let an environment see this program's torch, after all packages of its own: it is large. False: that fails."""
    found = subprocess.run(
        [sys.executable, "-c", "import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if found.returncode:
        return False
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    path_file = Path(own.stdout.strip()) / _SHARED
    path_file.write_text(found.stdout, encoding="utf-8")
    asked = f"import numpy, torch; assert torch.__version__.split('+')[0] == {TORCH.rpartition('=')[2]!r}"
    works = subprocess.run([str(python), "-c", asked], timeout=120, check=False).returncode == 0
    if not works:
        path_file.unlink()
    return works


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=LONGEST_S, stdout=sys.stderr)
