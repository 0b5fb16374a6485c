"""`shoal new`: what each template writes is trained as its page says, and its own test passes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import own_commands

from shoal.cli.commands.new import Template

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

pytestmark = pytest.mark.timeout(600)

#: What a template needs beside Shoal and PyTorch; its page says so.
NEEDS = {Template.LORA: "peft", Template.IMAGES: "PIL"}


def made(template: Template, folder: Path) -> Path:
    """Type the command as a person does, and return the project's folder."""
    told = typed([own_commands(folder) / "shoal", "new", "first", "--from", template.value], folder)
    assert "first/train.py" in told
    return folder / "first"


def typed(command: list[object], folder: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trains(template: Template, folder: Path) -> None:
    if (module := NEEDS.get(template)) and importlib.util.find_spec(module) is None:
        pytest.skip(f"{template.value} needs {module}")
    project = made(template, folder)
    assert "passed" in typed([sys.executable, "test_task.py"], project)
    # From elsewhere: the project finds its data by where it is.
    told = typed([sys.executable, project / "train.py"], folder)
    assert "finished" in told, told
    assert template is Template.SCRIPT or (project / "model.safetensors").stat().st_size > 200


@pytest.mark.gate("a first project")
def test_the_commands_of_the_page_train_a_table(tmp_path: Path) -> None:
    blocks = site_pages.blocks(ROOT, ROOT / "docs" / "start.md")
    (block,) = (block.commands for block in blocks if "test_new_project.py" in block.mark)
    path = f"{own_commands(tmp_path)}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    done = subprocess.run(
        ["sh", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both tests passed" in done.stdout
    assert re.search(r"finished: 9\d\.\d% right", done.stdout)
    assert (tmp_path / "first" / "model.safetensors").stat().st_size > 200


@pytest.mark.full
@pytest.mark.parametrize("template", [each for each in Template if each is not Template.CSV])
def test_a_template_is_trained(template: Template, tmp_path: Path) -> None:
    trains(template, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("template", [Template.DIGITS, Template.LOCAL])
def test_a_lease_of_a_project_is_a_pure_function(template: Template, tmp_path: Path) -> None:
    project = made(template, tmp_path)
    data = ["--data", "data/device-1"] if template is Template.LOCAL else []
    told = typed([own_commands(tmp_path) / "shoal", "check", ".", *data, "--json"], project)
    assert json.loads(told.splitlines()[-1])["pure"] is True
