"""The registry of features: everything they name exists, and the core starts without them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from shoal import features
from shoal.errors import Misuse


def test_everything_that_a_feature_names_exists() -> None:
    kinds = [field.name for field in fields(features.Feature) if field.name != "name"]
    for feature in features.described():
        for kind in kinds:
            if getattr(feature, kind) is not None:
                features.provided(kind, by=feature.name)  # type: ignore[arg-type]


def test_every_feature_has_a_command_of_its_own() -> None:
    commands = [features.provided("command", by=feature.name) for feature in features.described()]
    assert all(isinstance(command, typer.Typer) or callable(command) for command in commands)
    assert len({id(command) for command in commands}) == len(features.OWN)


def test_pyproject_registers_the_features_that_a_checkout_has() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][features.GROUP] == features.OWN


def test_a_checkout_that_is_not_installed_has_the_same_features() -> None:
    """No entry point is found there: without site-packages of Shoal, and with none at all."""
    program = (
        "import importlib.metadata as m; m.entry_points = lambda **_: ();"
        "from shoal import features; print(*(each.name for each in features.described()))"
    )
    assert _python(program).stdout.split() == list(features.OWN)


def test_another_package_brings_a_feature_and_its_command(tmp_path: Path) -> None:
    _distribution(tmp_path, "greeting", {"greet": "greeting.feature:FEATURE"})
    (tmp_path / "greeting").mkdir()
    (tmp_path / "greeting" / "__init__.py").write_text("")
    (tmp_path / "greeting" / "feature.py").write_text(
        "from shoal.features import Feature\nFEATURE = Feature(name='greet', command='greeting.cli:greet')\n"
    )
    (tmp_path / "greeting" / "cli.py").write_text("def greet() -> None:\n    print('good morning')\n")
    told = _python("import sys; from shoal.cli.main import run; sys.exit(run(['greet']))", tmp_path)
    assert (told.returncode, told.stdout, told.stderr) == (0, "good morning\n", "")


@pytest.mark.parametrize(
    ("name", "source", "why"),
    [
        ("torn", "1 / 0", "broken:FEATURE cannot be imported (ZeroDivisionError: division by zero)"),
        ("torn", "import sys; sys.exit(3)", "broken:FEATURE cannot be imported (SystemExit: 3)"),
        ("torn", "FEATURE = 3", "broken:FEATURE is not a Feature of this name"),
        ("torn", "", "broken:FEATURE cannot be imported (AttributeError"),
        ("flock", "", "another feature has this name, and this one is broken:FEATURE"),
        ("torn", "{}", "its command cannot be imported (ModuleNotFoundError: No module named 'nowhere')"),
        ("train", "{}", "Shoal has a command of this name"),
        ("version", "{}", "Shoal has a command of this name"),
    ],
)
def test_a_broken_feature_is_reported_by_name_and_skipped(tmp_path: Path, name: str, source: str, why: str) -> None:
    _distribution(tmp_path, "broken", {name: "broken:FEATURE"})
    good = f"from shoal.features import Feature\nFEATURE = Feature(name={name!r}, command='nowhere:app')\n"
    (tmp_path / "broken.py").write_text(good if source == "{}" else source)
    told = _python("import sys; from shoal.cli.main import run; sys.exit(run(['version']))", tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("shoal ")
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"the feature {name} is skipped: {why}")


def test_a_broken_feature_does_not_stop_what_an_agent_asks_for(tmp_path: Path) -> None:
    _distribution(tmp_path, "broken", {"torn": "broken:FEATURE"})
    (tmp_path / "broken.py").write_text("1 / 0")
    told = _python("from shoal import features; print(features.provided('agent_pool').__name__)", tmp_path)
    assert told.stdout == "LendingDriver\n"
    assert "the feature torn is skipped" in told.stderr


def _distribution(folder: Path, name: str, points: dict[str, str]) -> None:
    """What an installer leaves of a distribution with these entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (info / "entry_points.txt").write_text(f"[{features.GROUP}]\n{lines}")


def _python(program: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_feature_that_is_not_there_is_refused() -> None:
    with pytest.raises(Misuse, match="no command of a feature 'school'"):
        features.provided("command", by="school")
    with pytest.raises(Misuse, match="no manager_pool of a feature 'flock'"):
        features.provided("manager_pool", by="flock")


def test_an_agent_and_a_manager_load_no_feature_before_they_need_it() -> None:
    program = (
        "import sys, shoal.runtime.agent, shoal.runtime.manager_node;"
        "print([name for name in sys.modules if name.startswith(('shoal.flock', 'shoal.offload'))])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"
