"""`shoal new`: every template is written whole, by the rules of our own code, and overwrites nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.commands.new import Template
from shoal.cli.new_project import texts_of, write_project
from shoal.errors import Misuse

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[3]
#: A task is packed with the files of its folder, each of at most this size.
FILE_MAX_BYTES = 1 << 20


def test_every_template_is_a_folder_and_the_other_way_round() -> None:
    folders = {each.name for each in (ROOT / "src" / "shoal" / "cli" / "templates").iterdir() if each.is_dir()}
    assert folders == {each.value for each in Template}


@pytest.mark.parametrize("template", [each.value for each in Template])
def test_a_project_has_what_its_page_names_and_follows_our_rules(template: str, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "my-first", template)
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page.startswith("# my-first\n")
    named = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    there = {each.name for each in folder.iterdir()}
    assert named == there - {"README.md"}
    assert not any("PROJECT" in text for text in (each.read_text() for each in folder.glob("*.*") if each.is_file()))
    assert max(each.stat().st_size for each in folder.rglob("*") if each.is_file()) < FILE_MAX_BYTES
    ruff = (sys.executable, "-m", "ruff")
    # As in a folder of a person's own, where Shoal is a package like any other.
    settings = ("--isolated", "--no-cache", "--line-length=120", "--target-version=py311")
    rules = "--select=E,F,W,I,B,UP,SIM,RUF,PT,C4,RET,N"
    for command in ((*ruff, "check", *settings, rules, "."), (*ruff, "format", "--check", *settings, ".")):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_data_are_written_each_time(tmp_path: Path) -> None:
    one, other = (write_project(tmp_path / name, "csv") for name in ("one", "other"))
    assert (one / "data" / "train.csv").read_bytes() == (other / "data" / "train.csv").read_bytes()
    assert (one / "data" / "train.csv").read_bytes() != (one / "data" / "test.csv").read_bytes()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "task.py").write_text("kept")
    with pytest.raises(Misuse, match="not empty"):
        write_project(tmp_path / "mine", "csv")
    assert (tmp_path / "mine" / "task.py").read_text() == "kept"
    (tmp_path / "empty").mkdir()
    assert (write_project(tmp_path / "empty", "csv") / "task.py").exists()


@pytest.mark.parametrize("name", ["", "1st", "two words", "a" * 41, ".hidden"])
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="name"):
        write_project(tmp_path / "there" / name if name else Path("/"), "csv")


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(Misuse, match="no template"):
        texts_of("diffusion")
