"""The examples with made-up data, typed as their pages say: each ends with the figures that its page promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import own_commands

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

#: By page of docs/examples, what the figures of the last line have to be.
PROMISES: dict[str, Callable[[list[float]], bool]] = {
    "tabular.md": lambda told: told[0] > 0.78,
    # The house changes, the first model is wrong, and the renewed one is nearly as good as that was before.
    "forecast.md": lambda told: told[1] > 2 * told[0] and told[2] < 1.5 * told[0],
    "recommender.md": lambda told: told[0] < 0.7 * told[1],
    "graph.md": lambda told: told[0] > told[1] + 10,
    "unet.md": lambda told: told[0] > 0.8,
    "robot.md": lambda told: told[0] >= 50,
    "hospitals.md": lambda told: told[0] > max(told[1:4]) + 0.01,
    # Everybody is counted once.
    "survey.md": lambda told: told[0] == 1000 and 6.8 < told[1] < 7.2,
}


@pytest.mark.parametrize("page", PROMISES)
def test_an_example_ends_with_what_its_page_promises(page: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (block,) = site_pages.blocks(ROOT, ROOT / "docs" / "examples" / page)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    places = {"PATH": f"{own_commands(tmp_path)}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    # Processes with a thread for every core would wait for each other.
    environment = os.environ | places | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["sh", "-ec", block.text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=570
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert PROMISES[page]([float(each) for each in re.findall(r"\d+(?:\.\d+)?", last)]), last
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
