"""The guides From DDP, Flower, NVFLARE and OpenFL: the programs before and after are run, and learn the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import own_commands

from benchmarks.peers.install import TORCH, share_torch

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "moving"
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

pytestmark = pytest.mark.timeout(1500)

#: By page: the package that the program before needs beside PyTorch.
PACKAGES = {
    "from-ddp.md": "",
    "from-flower.md": "flwr[simulation]",
    "from-nvflare.md": "nvflare",
    "from-openfl.md": "openfl metaflow==2.7.15 ray dill tabulate setuptools<81",
}
#: Of three arms; a guess has 33 %.
LEAST_PERCENT = 75.0


def written(page: str, folder: Path) -> list[str]:
    """Write the programs of a page under the names that it gives them, and return its commands."""
    text, commands = (PAGES / page).read_text(encoding="utf-8"), []
    lines = text.splitlines()
    for block in site_pages.blocks(ROOT, PAGES / page):
        if block.language == "python":
            above = "\n".join(lines[: block.line - 2])
            (folder / re.findall(r"`(\w+\.py)`", above)[-1]).write_text(block.text, encoding="utf-8")
        else:
            commands.append(block.text)
    return commands


def typed(command: str, folder: Path, python: Path | None = None) -> str:
    """Type a command in a folder, by the Python of this environment or by another."""
    first = python.parent if python else own_commands(folder)
    places = {"PATH": f"{first}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    # Ray starts its workers with a niceness of 15 by default, and its driver polls meanwhile.
    places["RAY_worker_niceness"] = "0"
    # Metaflow, which OpenFL uses, has to know a name.
    places["USERNAME"] = "someone"
    done = subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=os.environ | places, capture_output=True, text=True, timeout=700
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def right_percent(told: str) -> float:
    return float(re.findall(r"(\d+\.\d)% right", told)[-1])


def environment_of(package: str, folder: Path) -> Path:
    """Install a package with the PyTorch of this environment beside it, or skip where it does not install."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    (folder / "constraint.txt").write_text(f"{TORCH}\n", encoding="utf-8")
    command = [python, "-m", "pip", "install", "-q", "--no-compile", "-c", folder / "constraint.txt", *package.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode or not share_torch(python):
        pytest.skip(f"{package} does not install here: {done.stderr.strip()[-300:]}")
    return python


@pytest.mark.nightly
@pytest.mark.parametrize("page", PACKAGES)
def test_the_program_before_learns(page: str, tmp_path: Path) -> None:
    python = environment_of(PACKAGES[page], tmp_path / "its") if PACKAGES[page] else None
    before, _ = written(page, tmp_path)
    if page == "from-openfl.md":
        # OpenFL imports nbdev for notebooks; the release that it needs does not go with today's packages.
        (tmp_path / "nbdev").mkdir()
        (tmp_path / "nbdev" / "__init__.py").touch()
        (tmp_path / "nbdev" / "export.py").write_text("nb_export = None\n", encoding="utf-8")
    assert right_percent(typed(before, tmp_path, python)) > LEAST_PERCENT


@pytest.mark.full
@pytest.mark.parametrize("page", PACKAGES)
def test_the_program_after_learns(page: str, tmp_path: Path) -> None:
    _, after = written(page, tmp_path)
    told = typed(after, tmp_path)
    if "shoal run" in after:
        show = "from points import *; from safetensors.torch import load_file; m = Network(); "
        show += "m.load_state_dict(load_file('model.safetensors')); print(f'{right(m):.1%} right')"
        told = typed(f'python -c "{show}"', tmp_path)
    assert right_percent(told) > LEAST_PERCENT


def test_every_guide_is_run() -> None:
    assert {each.name for each in PAGES.glob("*.md")} == PACKAGES.keys()
