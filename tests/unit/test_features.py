"""The registry of features: everything they name exists, and the core starts without them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

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
    assert all(isinstance(command, typer.Typer) for command in commands)
    assert len({id(command) for command in commands}) == len(features.FEATURES)


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
