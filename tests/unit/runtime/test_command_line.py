"""The command lines of agents and managers: flags that installed services and scripts call, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.runtime.agent_options import AgentOptions

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
