"""Writes the files of a first project: the texts of a template, and data to start with. Runs none of them."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from shoal.errors import Misuse

#: Each text of a template ends with this, so that no tool takes a template for a part of Shoal.
_SUFFIX = ".txt"
#: What stands for the project's name in a template's texts.
_NAME = "PROJECT"
_NAMED = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


def write_project(folder: Path, template: str) -> Path:
    """Write a new project into a folder that is not there yet, or is empty, and return the folder."""
    from shoal.cli.starting_data import write_data

    if not _NAMED.fullmatch(folder.name):
        raise Misuse(f"{folder.name!r} cannot name a project: begin with a letter, then letters, digits, - and _")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Misuse(f"{folder} is there and is not empty: choose another name")
    texts = texts_of(template)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text.replace(_NAME, folder.name), encoding="utf-8")
    write_data(folder, template)
    return folder


def texts_of(template: str) -> dict[str, str]:
    """Return the texts of a template by the names of the files they become."""
    found = files("shoal.cli") / "templates" / template
    if not found.is_dir():
        raise Misuse(f"there is no template {template!r}")
    return {
        each.name.removesuffix(_SUFFIX): each.read_text(encoding="utf-8")
        for each in sorted(found.iterdir(), key=lambda each: each.name)
        if each.name.endswith(_SUFFIX)
    }
