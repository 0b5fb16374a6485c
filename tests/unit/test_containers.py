"""The Dockerfile and the compose file name commands, options and files that there are."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import typer

from shoal.cli.main import app

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "compose.yaml").read_text()


def _understood(words: list[str]) -> None:
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    with command.make_context(words[0], list(words[1:])):
        pass


def test_every_file_that_is_copied_is_there_and_not_ignored() -> None:
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    names = [name for names in copied for name in names]
    assert {"pyproject.toml", "src"} <= set(names)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name in names:
        assert (ROOT / name).exists()
        assert name in kept


def test_the_commands_are_ones_that_shoal_has() -> None:
    assert re.search(r'^ENTRYPOINT \["shoal"\]$', DOCKERFILE, re.MULTILINE)
    commands = [
        *re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE),
        *re.findall(r"command: (\[.*\])$", COMPOSE, re.M),
    ]
    assert len(commands) == 3
    for command in commands:
        _understood(json.loads(command))


def test_the_extra_is_one_that_the_package_has() -> None:
    extra = re.search(r'^ARG EXTRA="\[(\w+)\]"$', DOCKERFILE, re.MULTILINE)
    assert extra is not None
    assert re.search(rf"^{extra[1]} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_nothing_runs_as_root_and_the_state_outlives_its_container() -> None:
    assert DOCKERFILE.index("USER shoal") < DOCKERFILE.index("ENTRYPOINT")
    home = re.search(r"^ENV SHOAL_HOME=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert home is not None
    assert f"VOLUME {home[1]}" in DOCKERFILE
    assert COMPOSE.count(f":{home[1]}\n") == 2


def test_the_image_installs_by_hash_what_the_development_lock_has() -> None:
    assert "--require-hashes -r /src/image.lock" in DOCKERFILE
    assert re.search(r"^FROM python:3\.11\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?$", DOCKERFILE, re.MULTILINE)
    ours, others = (_locked(ROOT / "requirements" / name) for name in ("image.lock", "dev.lock"))
    for name, (version, hashes) in ours.items():
        assert others[name][0] == version, name
        assert others[name][1] <= hashes, name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    assert {re.split("[>=]", each)[0] for each in needed} <= set(ours)
    # Those that are compiled: a file for each kind of machine.
    assert all(len(ours[name][1]) == 2 for name in ("cryptography", "grpcio", "numpy", "protobuf", "psutil"))
    torch = re.search(r'^ARG TORCH="([0-9.]+)"$', DOCKERFILE, re.MULTILINE)
    assert torch is not None
    assert f"torch=={torch[1]}\n" in (ROOT / "requirements" / "dev.in").read_text()


def _locked(path: Path) -> dict[str, tuple[str, set[str]]]:
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return {line[0].partition("==")[0]: (line[0].partition("==")[2], set(line[1:])) for line in lines}
