"""`shoal simulate` as a person runs it: a task from a file, real training, faults, a trace that plays again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.exits import Exit

HERE = Path(__file__).resolve().parent
TASK = str(HERE / "clouds_task.py")


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main.run(["simulate", *arguments, "--json"]) == Exit.OK
    answer: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


@pytest.mark.gate("simulate")
def test_it_trains_and_tells(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = simulate(capsys, TASK, "--devices", "4", "--epochs", "3", "--seed", "1")
    (plan,) = answer["plans"]  # type: ignore[misc]
    assert plan["state"] == "finished"
    assert plan["accuracy"] > 0.9
    assert plan["epochs"] == 3
    assert plan["bytes_up"] > 0
    assert len(plan["devices"]) == 4
    assert (tmp_path / "simulation.png").read_bytes()[:4] == b"\x89PNG"


def test_with_faults_it_ends_and_its_trace_plays_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "chaos.txt").write_text(
        "crash(leader, at=round(5), disk=torn)\npartition({w1}, at=4, for_s=12)\nslow(w2, 4x)\nhang(w3, at=round(3))\n"
    )
    chaos = ("--faults", "chaos.txt", "--trace", "run.jsonl", "--plan", "lease_s=5")
    answer = simulate(capsys, TASK, "--devices", "4", "--epochs", "2", *chaos)
    (plan,) = answer["plans"]  # type: ignore[misc]
    assert (plan["state"], plan["crashes"]) == ("finished", 1)
    assert main.run(["simulate", "--replay", "run.jsonl"]) == Exit.OK
    assert "Identical" in capsys.readouterr().out
    # A trace of another time, or of other code, differs somewhere: where is said.
    lines = (tmp_path / "run.jsonl").read_text().splitlines(keepends=True)
    lines[40] = lines[40].replace('"at_s":', '"at_s":1')
    (tmp_path / "other.jsonl").write_text("".join(lines))
    assert main.run(["simulate", "--replay", "other.jsonl"]) == Exit.FAILED
    text = capsys.readouterr().out
    assert "in line 41" in text
    assert "at_s:" in text


def test_two_plans_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--system-only", "--profile", "wifi-phones", "--devices", "30", "--epochs", "1", "--set", "count=8000")
    answer = simulate(capsys, TASK, *words, "--plan", "lease_batches=1", "--versus", "lease_batches=3")
    one, three = answer["plans"]  # type: ignore[misc]
    assert (one["plan"], three["plan"]) == ("lease_batches=1", "lease_batches=3")
    assert one["rounds"] > three["rounds"]
    assert one["is_system_only"]


def test_a_goal_needs_training(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--system-only", "--until-accuracy", "0.9")
    assert main.run(["simulate", TASK, *words]) == Exit.MISUSE
    assert "is never reached where nothing is trained" in capsys.readouterr().err


def test_each_device_trains_on_rows_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (TASK, "--devices", "6", "--plan", "data=local", "--partition", "dirichlet(0.5, least=3)", "--epochs", "3")
    answer = simulate(capsys, *words, "--plan", "epoch_leases=12", "--plan", "workers_min=6", "--trace", "run.jsonl")
    (plan,) = answer["plans"]  # type: ignore[misc]
    assert (plan["state"], plan["epochs"]) == ("finished", 3)
    assert plan["accuracy"] > 0.8
    examples = plan["examples"]
    assert (examples["partition"], examples["devices"]) == ("dirichlet(0.5, least=3)", 6)
    assert (examples["examples"], examples["least"] >= 3) == (234, True)
    assert answer["question"]["partition"] == "dirichlet(0.5, least=3)"  # type: ignore[index]
    assert main.run(["simulate", "--replay", "run.jsonl"]) == Exit.OK
    assert "Identical" in capsys.readouterr().out


def test_local_data_beside_shared_data(capsys: pytest.CaptureFixture[str]) -> None:
    words = (TASK, "--devices", "4", "--epochs", "1", "--plan", "data=local", "--plan", "epoch_leases=8")
    answer = simulate(capsys, *words, "--partition", "iid", "--versus", "data=shared")
    local, shared = answer["plans"]  # type: ignore[misc]
    assert local["examples"]["examples"] == 234
    assert shared["examples"] is None
    assert {local["state"], shared["state"]} == {"finished"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--partition", "iid"), "add --plan data=local"),
        (("--plan", "data=local"), "say how the examples of this machine are divided"),
        (("--plan", "data=local", "--partition", "by(writer)"), "no column 'writer'; they have x, y"),
        (("--plan", "data=local", "--partition", "iid", "--devices", "300"), "too few for 300 devices"),
    ],
)
def test_what_cannot_be_divided_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert main.run(["simulate", TASK, *words]) == Exit.MISUSE
    said = capsys.readouterr()
    assert why in " ".join(said.err.split())
    assert "Simulated" not in said.out
