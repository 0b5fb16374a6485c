"""Units of systemd: what they say, that systemd understands them, and what installing one does."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from shoal.cli import main, systemd
from shoal.cli.exits import Exit
from shoal.cli.service_unit import (
    AGENT_CAPABILITIES,
    LINE_FILE,
    REFUSED_FOR_GOOD,
    Part,
    ServiceSettings,
    quoted,
    unit_name,
    unit_text,
)
from shoal.errors import Misuse
from shoal.identity.join_code import JoinCode, new_secret

pytestmark = pytest.mark.timeout(120)

PROGRAM = (sys.executable, "-m", "shoal.cli.main")


def _settings(part: Part, **chosen: object) -> ServiceSettings:
    return ServiceSettings(
        **{"part": part, "user": "shoal", "home": PurePosixPath("/var/lib/shoal"), "program": PROGRAM} | chosen  # type: ignore[arg-type]
    )


def _lines(settings: ServiceSettings) -> dict[str, str]:
    pairs = (line.partition("=") for line in unit_text(settings).splitlines() if "=" in line and line[0] != "#")
    return {key: value for key, _, value in pairs}


EVERY = {
    "manager": _settings(Part.MANAGER),
    "agent": _settings(Part.AGENT),
    "rootless": _settings(Part.AGENT, rootless=True),
    "elsewhere": _settings(
        Part.AGENT, home=PurePosixPath("/srv/my shoal"), options=("--data", '/srv/100% "own"', "--name", "a$b")
    ),
}


@pytest.mark.parametrize("settings", EVERY.values(), ids=EVERY)
def test_a_unit_restarts_and_keeps_its_state(settings: ServiceSettings) -> None:
    lines = _lines(settings)
    assert lines["Restart"] == "on-failure"
    # Its own datagrams: tests/integration/test_supervised.py receives them.
    assert lines["Type"] == "notify"
    assert lines["WatchdogSec"] == ("60s" if settings.part is Part.MANAGER else "120s")
    assert lines["NoNewPrivileges"] == "yes"
    assert lines["ProtectSystem"] == "strict"
    assert lines["WantedBy"] == "multi-user.target"
    kept = lines.get("StateDirectory") or lines["ReadWritePaths"]
    assert settings.home.name in kept
    assert f"--home {quoted(str(settings.home))}" in lines["ExecStart"]


@pytest.mark.parametrize("settings", EVERY.values(), ids=EVERY)
def test_systemd_understands_a_unit(settings: ServiceSettings, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    file = tmp_path / unit_name(settings.part)
    file.write_text(unit_text(settings))
    told = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    # A key that it does not know is a warning there, and would be left out in silence.
    assert file.name not in told.stderr


def test_a_manager_has_a_user_of_its_own_and_no_rights() -> None:
    lines = _lines(EVERY["manager"])
    assert lines["User"] == "shoal"
    assert lines["CapabilityBoundingSet"] == ""
    assert lines["ExecStart"].endswith("up --home /var/lib/shoal --no-token")


def test_an_agent_can_still_confine_its_trainers() -> None:
    lines = _lines(EVERY["agent"])
    assert "User" not in lines
    assert lines["Environment"] == "SHOAL_TRAINER_USER=shoal"
    assert lines["CapabilityBoundingSet"].split() == list(AGENT_CAPABILITIES)
    assert lines["RestrictNamespaces"] == "mnt net"
    assert lines["Delegate"] == "yes"
    # A trainer that fills its memory must not take the agent with it, nor hide its processor.
    assert lines["OOMPolicy"] == "continue"
    assert not {"ProtectControlGroups", "PrivateDevices", "ProtectClock", "MemoryMax"} & set(lines)
    # What the cluster refused for good is not tried again every five seconds.
    assert lines["RestartPreventExitStatus"] == str(REFUSED_FOR_GOOD) == str(int(Exit.REFUSED))
    assert lines["ExecStart"].endswith(f"--line-file /var/lib/shoal/{LINE_FILE} --remove-line")


def test_an_agent_without_root_is_one_user_without_rights() -> None:
    lines = _lines(EVERY["rootless"])
    assert lines["User"] == "shoal"
    assert lines["CapabilityBoundingSet"] == ""
    assert "Environment" not in lines


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("plain-1.2_3", "plain-1.2_3"),
        ("", '""'),
        ("two words", '"two words"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('a"b\\c', '"a\\"b\\\\c"'),
        (";", '";"'),
    ],
)
def test_a_word_means_itself_in_a_unit(word: str, told: str) -> None:
    assert quoted(word) == told


@pytest.mark.parametrize(
    ("chosen", "home"),
    [
        ({}, "yes"),
        ({"program": ("/home/ann/venv/bin/python",)}, "read-only"),
        ({"options": ("--data", "/root/readings")}, "read-only"),
        ({"options": ("--data=/home/ann/readings",)}, "read-only"),
        ({"options": ("--advertise=/not/a/home",)}, "yes"),
        ({"home": PurePosixPath("/home/ann/.shoal")}, "read-only"),
    ],
)
def test_homes_of_people_are_hidden_unless_one_is_used(chosen: dict[str, object], home: str) -> None:
    settings = _settings(Part.AGENT, **({"program": ("/opt/shoal/bin/python",)} | chosen))
    assert _lines(settings)["ProtectHome"] == home


@pytest.mark.parametrize(
    "chosen",
    [
        {"program": ("python",)},
        {"home": PurePosixPath("here")},
        {"options": ("--name", "a\nExecStartPre=/bin/sh")},
        {"user": "a\nb"},
    ],
)
def test_what_would_not_be_one_word_of_a_unit_is_refused(chosen: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        _settings(Part.AGENT, **chosen)


def test_a_home_means_itself_in_every_line_of_a_unit() -> None:
    """systemd replaces variables in commands and nowhere else."""
    lines = _lines(_settings(Part.AGENT, home=PurePosixPath("/srv/a$b 100%")))
    assert lines["ReadWritePaths"] == '"/srv/a$b 100%%"'
    assert '--home "/srv/a$$b 100%%"' in lines["ExecStart"]
    assert _lines(_settings(Part.MANAGER, home=PurePosixPath("/var/lib/a$b")))["StateDirectory"] == "a$b"


@pytest.mark.parametrize("typed", [("--data", "readings"), ("--files=stick",)])
def test_a_path_that_means_another_folder_at_boot_is_refused(
    typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["service", "install", "agent", "--dry-run", "--", *typed]) == Exit.MISUSE
    assert "is relative" in capsys.readouterr().err
    assert main.run(["service", "install", "agent", "--dry-run", "--", "--data", "/srv/readings"]) == Exit.OK


def test_a_dry_run_prints_the_unit_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["service", "install", "manager", "--dry-run", "--", "--advertise", "attic.lan"]) == Exit.OK
    printed = capsys.readouterr().out
    assert "up --home /var/lib/shoal --no-token --advertise attic.lan\n" in printed
    assert "User=shoal\n" in printed
    assert main.run(["service", "install", "agent", "--user", "ann", "--dry-run", "--", "--lend"]) == Exit.OK
    printed = capsys.readouterr().out
    assert "--remove-line --lend\n" in printed
    assert "SHOAL_TRAINER_USER=ann\n" in printed


# Installing, with the programs of systemd replaced by one that writes down how it was called ----------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where systemd seems to run. Its programs tell what they were asked, and do nothing."""
    if os.geteuid() != 0:
        pytest.skip("only root installs services")
    programs, running, units = tmp_path / "bin", tmp_path / "running", tmp_path / "units"
    for folder in (programs, running, units):
        folder.mkdir()
    for name in ("systemctl", "useradd"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/asked\necho active\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "_RUNNING", running)
    monkeypatch.setattr(systemd, "UNITS", units)
    return tmp_path


def test_an_agent_is_installed_with_its_line_and_removed_again(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = machine / "agent", machine / "line"
    line = JoinCode(host="10.0.0.9", port=7071, ca_sha256=bytes(32), secret=new_secret())
    file.write_text(f"{line}\n")
    installed = ["service", "install", "agent", "--user", "daemon", "--home", str(home), "--line-file", str(file)]
    assert main.run(installed) == Exit.OK
    assert "Tasks run as daemon, without network" in capsys.readouterr().out
    unit = machine / "units" / "shoal-agent.service"
    assert f"--home {home} " in unit.read_text()
    assert line.secret not in unit.read_text()
    assert str(line) not in unit.read_text()
    kept = home / LINE_FILE
    assert kept.read_text() == f"{line}\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (machine / "asked").read_text().splitlines() == [
        "systemctl daemon-reload",
        "systemctl enable shoal-agent.service",
        "systemctl restart shoal-agent.service",
    ]
    assert main.run(["service", "status"]) == Exit.OK
    assert "shoal-agent.service    active, at boot: active" in capsys.readouterr().out
    assert main.run(["service", "uninstall", "agent"]) == Exit.OK
    assert not unit.exists()
    assert kept.exists()
    assert "disable --now shoal-agent.service" in (machine / "asked").read_text()
    assert main.run(["service", "uninstall", "agent"]) == Exit.MISUSE
    assert "is not installed" in capsys.readouterr().err


def test_a_task_never_shares_a_user_with_the_manager(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "units" / "shoal-manager.service").write_text(unit_text(_settings(Part.MANAGER, user="daemon")))
    installed = ["service", "install", "agent", "--user", "daemon", "--home", str(machine / "agent")]
    assert main.run(installed) == Exit.MISUSE
    assert "choose another --user" in capsys.readouterr().err
    assert not (machine / "units" / "shoal-agent.service").exists()


def test_a_python_that_the_user_cannot_start_is_found_before_boot(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = machine / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(closed / "python"))
    assert main.run(["service", "install", "manager", "--user", "daemon"]) == Exit.MISUSE
    assert "closed to other users" in capsys.readouterr().err


def test_what_systemd_refuses_is_told(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "bin" / "systemctl").write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    installed = ["service", "install", "agent", "--user", "daemon", "--home", str(machine / "agent")]
    assert main.run(installed) == Exit.MISUSE
    assert "`systemctl daemon-reload` failed: no bus" in capsys.readouterr().err


def test_without_systemd_a_service_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs here")
    assert main.run(["service", "install", "manager"]) == Exit.MISUSE
    assert "--dry-run" in capsys.readouterr().err
