"""The Dockerfile and the compose file name commands, options and files that there are."""

import json
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from shoal.cli.main import app

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "compose.yaml").read_text()
SERVICES = yaml.safe_load(COMPOSE)["services"]
VOLUMES = yaml.safe_load(COMPOSE)["volumes"]


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


def test_the_manager_has_a_check_of_its_health_that_can_be_run() -> None:
    check = SERVICES["manager"]["healthcheck"]
    kind, *command = check["test"]
    assert kind == "CMD"
    assert json.dumps(command) in DOCKERFILE, "an image that runs by itself is checked in the same way"
    # Nobody joins here, so it says that nobody answers; as a program, not as a traceback.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        done = subprocess.run([sys.executable, *command[1:], port], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("nobody answers at port")
    assert {"interval", "timeout", "start_period", "retries"} <= set(check)
    assert SERVICES["agent"]["healthcheck"] == {"disable": True}


def test_both_come_back_after_the_machine_was_restarted() -> None:
    # Docker starts a container of `on-failure` again when it failed, not when the machine was restarted.
    assert {name: service["restart"] for name, service in SERVICES.items()} == {
        "manager": "unless-stopped",
        "agent": "unless-stopped",
    }


def test_no_directory_takes_the_place_of_a_missing_file() -> None:
    for service in SERVICES.values():
        for volume in service["volumes"]:
            if isinstance(volume, str):
                # The short form makes a directory of whatever is missing: it is for volumes by name.
                assert volume.partition(":")[0] in VOLUMES, volume
            else:
                assert volume["type"] == "bind"
                assert volume["bind"]["create_host_path"] is False
    (line,) = (volume for volume in SERVICES["agent"]["volumes"] if not isinstance(volume, str))
    assert SERVICES["agent"]["command"] == ["join", "--line-file", line["target"]]
    assert line["read_only"] is True


def test_the_documents_say_how_to_start_both() -> None:
    page = (ROOT / "docs" / "operations" / "containers.md").read_text()
    for name in SERVICES:
        assert f"docker compose up --detach {name}" in page
    (line,) = (volume for volume in SERVICES["agent"]["volumes"] if not isinstance(volume, str))
    assert f"> {Path(line['source']).name}\n" in page
    assert "docs/operations/containers.md" in (ROOT / "README.md").read_text()


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
