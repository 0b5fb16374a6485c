"""The command lines of agents and managers: flags that installed services and scripts call, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.manager_options import ManagerOptions

pytestmark = pytest.mark.timeout(60)

#: Every option of an agent, as programs of earlier releases write it.
AGENT_WORDS = (
    *("--home", "/srv/agent", "--quiet", "--log-format", "json", "--lead-port", "7080", "--data", "/srv/readings"),
    *("--files", "/media/stick", "--device", "cuda:1", "--engine", "torch", "--threads", "3", "--lend", "--hub"),
    *("--hub-mbps", "16", "--metrics", "127.0.0.1:9100", "--metrics-token-file", "/srv/token", "--hours", "22-6"),
    *("--max-temperature", "71.5", "--cores", "2", "--leash", "--sensors-root", "/srv/sys"),
    *("--child-module", "shoal.trainer.echo", "--pace-s", "0.25", "--loopback-http"),
)
AGENT = AgentOptions(
    home=Path("/srv/agent"),
    quiet=True,
    log_format="json",
    lead_port=7080,
    data=Path("/srv/readings"),
    files=Path("/media/stick"),
    device="cuda:1",
    engine="torch",
    threads=3,
    lend=True,
    hub=True,
    hub_mbps=16.0,
    metrics="127.0.0.1:9100",
    metrics_token_file=Path("/srv/token"),
    hours="22-6",
    max_temperature_c=71.5,
    cores=2,
    leash=True,
    sensors_root=Path("/srv/sys"),
    child_module="shoal.trainer.echo",
    pace_s=0.25,
    loopback_http=True,
)


def test_an_agent_understands_every_option_of_earlier_releases() -> None:
    assert AgentOptions.parse(AGENT_WORDS) == AGENT
    assert AGENT.hub_bytes_per_s == 2e6


def test_an_agent_without_a_home_takes_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", "/srv/elsewhere")
    assert AgentOptions.parse([]).home == Path("/srv/elsewhere")
    # Whoever starts an agent says which home it means: the agent's environment may be another one.
    assert AgentOptions().to_argv() == ["--home", "/srv/elsewhere"]


def test_only_what_differs_is_written() -> None:
    options = AgentOptions(home=Path("/srv/agent"), hours="22-6", lend=True)
    assert options.to_argv() == ["--home", "/srv/agent", "--lend", "--hours", "22-6"]


@pytest.mark.parametrize("words", [("--hubs",), ("--threads", "many"), ("--pace-s", ""), ("--data",)])
def test_a_wrong_word_ends_the_agent(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        AgentOptions.parse(words)
    assert "usage: shoal-agent" in capsys.readouterr().err


def test_help_leaves_out_what_is_for_tests(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        AgentOptions.parse(["--help"])
    told = capsys.readouterr().out
    assert "--max-temperature" in told
    assert "--loopback-http" not in told


#: Every option of a manager's process, as programs of earlier releases write it.
MANAGER_WORDS = (
    *("--home", "/srv/home", "--host", "0.0.0.0", "--port", "7070", "--advertise", "attic.lan,cellar.lan:7080"),
    *("--devices", "30", "--lead", "devices", "--log-format", "json", "--keep-jobs", "90d", "--check-in-s", "600"),
    *("--store", "postgresql://shoal@db/shoal", "--blobs", "s3://models/shoal", "--downloads", "bucket"),
    *("--direct", "attic.lan:7071", "--browser", "https://attic.lan:7075", "--browser-certificate", "/srv/door.pem"),
    *("--browser-key", "/srv/door.key", "--leash"),
)
MANAGER = ManagerOptions(
    home=Path("/srv/home"),
    host="0.0.0.0",
    port=7070,
    advertise="attic.lan,cellar.lan:7080",
    devices=30,
    lead="devices",
    log_format="json",
    keep_jobs="90d",
    check_in_s=600.0,
    store="postgresql://shoal@db/shoal",
    blobs="s3://models/shoal",
    downloads="bucket",
    direct="attic.lan:7071",
    browser="https://attic.lan:7075",
    browser_certificate=Path("/srv/door.pem"),
    browser_key=Path("/srv/door.key"),
    leash=True,
)


def test_a_manager_understands_every_option_of_earlier_releases() -> None:
    assert ManagerOptions.parse(MANAGER_WORDS) == MANAGER
    assert MANAGER.prefers_devices is True
    assert MANAGER.kept_jobs is not None
    assert MANAGER.kept_jobs.age_s == 90 * 86400.0
    assert MANAGER.tabs is not None
    assert MANAGER.tabs.port == 7075
    assert ManagerOptions.parse(("--home", "h", "--disk-quota-bytes", "5")).disk_quota_bytes == 5


def test_a_managers_process_listens_on_this_machine_only_unless_told() -> None:
    options = ManagerOptions.parse(("--home", "/srv/home"))
    assert options == ManagerOptions(home=Path("/srv/home"))
    assert (options.host, options.port, options.token, options.devices) == ("127.0.0.1", 0, "always", 1000)
    assert (options.prefers_devices, options.kept_jobs, options.tabs) == (None, None, None)


def test_a_manager_needs_a_home(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        ManagerOptions.parse([])
    assert "--home" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lead": "nobody"}, "--lead is one of auto, here, devices"),
        ({"token": "maybe"}, "--token is one of"),
        ({"keep_jobs": "forever"}, "--keep-jobs 'forever'"),
        ({"blobs": "s3://models/shoal", "disk_quota_bytes": 5}, "choose one"),
        ({"direct": "attic.lan"}, "--direct is for one of several managers"),
        ({"browser": "http://attic.lan:7075"}, "needs TLS"),
        ({"browser_key": Path("key")}, "--browser"),
        ({"browser_operator": "Ms Okafor"}, "--browser ORIGIN"),
        ({"browser": "http://127.0.0.1:0", "browser_purpose": "x" * 301}, "at most 300 characters"),
    ],
)
def test_options_of_a_manager_that_do_not_fit_together_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        ManagerOptions(home=Path("home"), **wrong)
