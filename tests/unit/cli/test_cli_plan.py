"""`shoal plan capacity`: what may be typed, and how the answer is told."""

from __future__ import annotations

import json

import pytest

from shoal.cli import main
from shoal.cli.commands.plan import measured_figures, seconds, value_text, whole
from shoal.cli.exits import Exit
from shoal.errors import Misuse
from shoal.topology.capacity import Figure, FleetLoad, needs

MILLION = ["plan", "capacity", "--devices", "1e6", "--model-mb", "3", "--every", "10m"]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DEBUG", "0")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.parametrize("words", [["plan"], ["plan", "capacity"]], ids=" ".join)
def test_it_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*words, "--help"]) == Exit.OK
    assert "capacity" in capsys.readouterr().out


def test_a_million_devices_are_told_with_what_is_measured_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(MILLION) == Exit.OK
    said = capsys.readouterr().out
    for part in (
        "1,000,000 devices, a model of 3.0 MB, one update every 10 min 00 s from each",
        "1.7k/s",
        "5.0 GB/s",
        "2,000,000",
        "measured",
        "modelled",
        "assumed",
        "What gives way first",
        f"Measured on {measured_figures().date}",
        measured_figures().machine,
        "Prices are assumed",
        "A job has one leader and a cluster one manager today",
    ):
        assert part in said, part
    # What gives way comes in order, and what bears all of them is not marked.
    heartbeats = next(line for line in said.splitlines() if line.startswith("  heartbeats"))
    assert heartbeats.endswith("<- too few")


def test_json_has_every_figure_and_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*MILLION, "--json"]) == Exit.OK
    said = json.loads(capsys.readouterr().out)
    answer = needs(FleetLoad(devices=10**6, model_bytes=3e6, every_s=600.0), measured_figures())
    assert {each["name"]: each["value"] for each in said["figures"]} == {
        each.name: each.value for each in answer.figures
    }
    assert {each["basis"] for each in said["figures"]} == {"measured", "modelled", "assumed"}
    assert [each["part"] for each in said["limits"]] == [each.part for each in answer.limits]
    assert said["measured"]["machine"] == measured_figures().machine
    assert said["fleet"]["update_bytes"] is None


def test_options_reach_the_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    def value(name: str, *words: str) -> float:
        assert main.run(["plan", "capacity", "--devices", "600000", *words, "--json"]) == Exit.OK
        figures = json.loads(capsys.readouterr().out)["figures"]
        return float(next(each["value"] for each in figures if each["name"] == name))

    assert value("updates_per_s") == 1000
    assert value("updates_per_s", "--every", "1m") == 10_000
    assert value("up_bytes_per_s", "--update-mb", "0.03") == pytest.approx(3e7)
    assert value("down_bytes_per_s", "--update-mb", "0.03") == pytest.approx(3e9)
    assert value("heartbeats_per_s", "--heartbeat", "10s") == 60_000
    assert value("links", "--link-gbps", "100") == 1
    assert value("machines", "--cores", "1") > value("machines", "--cores", "8")
    assert value("cores_price", "--core-hour", "0.08") == 2 * value("cores_price", "--core-hour", "0.04")
    assert value("down_price", "--gb-down", "0") == 0


def test_a_small_fleet_is_not_told_what_it_does_not_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "capacity", "--devices", "10"]) == Exit.OK
    said = capsys.readouterr().out
    assert "too few" not in said
    assert "one leader and a cluster one manager" not in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10m", 600.0), ("10 m", 600.0), ("1h", 3600.0), ("90", 90.0), ("2.5s", 2.5), ("5min", 300.0), ("500ms", 0.5)],
)
def test_times_as_people_type_them(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "m", "10x", "ten", "1e", "10m5s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(Misuse, match="such as 10m"):
        seconds(text)


def test_devices_are_whole() -> None:
    assert whole(1e6) == 1_000_000
    for number in (1.5, float("inf"), float("nan")):
        with pytest.raises(Misuse, match="whole numbers"):
            whole(number)


@pytest.mark.parametrize("words", [["--devices", "0"], ["--devices", "5", "--every", "0s"], ["--devices", "2.5"]])
def test_what_makes_no_sense_is_misuse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "capacity", *words]) == Exit.MISUSE
    assert "shoal:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (1500.0, "B/s", "1.5 kB/s"),
        (2e9, "B", "2.0 GB"),
        (0.25, "/s", "0.25/s"),
        (75.0, "s", "1 min 15 s"),
        (6.3214, "ms", "6.32 ms"),
        (12_000, "", "12,000"),
        (0.123, "", "0.12"),
        (2336.4, "a month", "2,336"),
    ],
)
def test_figures_are_told_in_their_units(value: float, unit: str, expected: str) -> None:
    assert value_text(Figure(name="x", value=value, unit=unit, basis="modelled", how="so")) == expected
