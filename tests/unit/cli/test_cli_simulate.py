"""`shoal simulate`: what it refuses, and how it tells what came out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from shoal.cli import main
from shoal.cli.exits import Exit
from shoal.cli.render.simulated import lane_text, summary
from shoal.cli.simulation import Question, SimulationAnswer
from shoal.errors import Misuse
from shoal.sim.fault_text import parse
from shoal.sim.local_devices import DividedSet
from shoal.sim.outcome import DeviceActivity, DeviceOutcome, DeviceTimeline, Outcome, Point, ReasonCount, Span
from shoal.sim.profiles import PROFILES


def question(**changes: object) -> Question:
    plain = {"task": "examples/mnist", "devices": 2, "profile": "pi4-lan", "plan": {"lease_batches": 2}}
    return Question(**plain | changes)  # type: ignore[arg-type]


def outcome(**changes: object) -> Outcome:
    device = DeviceOutcome(
        node="w1",
        kind="raspberry pi 4",
        here_s=90.0,
        busy_s=45.0,
        wire_s=10.0,
        batches=12,
        bytes_up=2_000_000,
        bytes_down=5_000_000,
        energy_wh=0.25,
        failures=1,
        is_hot=False,
    )
    spans = (Span(DeviceActivity.PREPARING, 0.0, 40.0), Span(DeviceActivity.TRAINING, 40.0, 100.0))
    values = {
        "state": "finished",
        "reason": "2 of 2 epochs",
        "seconds": 100.0,
        "rounds": 50,
        "epochs": 2,
        "goal": 0.9,
        "is_system_only": False,
        "evaluations": (Point(at_s=75.0, version=40, epoch=2, accuracy=0.93, loss=0.2),),
        "refused": 0,
        "leases_expired": 2,
        "crashes": 1,
        "devices": (device,),
        "lanes": (DeviceTimeline("w1", "raspberry pi 4", spans),),
        "notes": (),
        "rates": ((0.0, 0), (100.0, 50)),
        "events": 12_345,
    }
    return Outcome(**values | changes)  # type: ignore[arg-type]


def told(answers: list[tuple[str, Outcome]], topology: str = "") -> str:
    file = io.StringIO()
    screen = Console(width=140, file=file)
    whole = [SimulationAnswer(title=title, outcome=each, topology=topology) for title, each in answers]
    for part in summary(question(), whole, seconds=3.0, width=140):
        screen.print(part)
    return file.getvalue()


def test_what_came_out_is_told_in_words_and_units() -> None:
    text = told([("plan", outcome())])
    for part in (
        "93.00 % right; finished: 2 of 2 epochs",
        "1 min 40 s, 2 epochs",
        "90.00 % after 1 min 15 s",
        "50 versions, 0.5 a second",
        "2.0 MB up, 5.0 MB down",
        "50 % of the devices' time",
        "0.25 Wh (estimated)",
        "2 leases expired, 1 crash, 1 failure of a trainer",
        "12.3k events",
        "raspberry pi 4",
    ):
        assert part in text, part


def test_what_limits_a_plan_is_told_shortly() -> None:
    reasons = (
        ReasonCount("wait", "version N waits for others", 900),
        *(ReasonCount("update.rejected", f"reason {letter}", 40) for letter in "abcd"),
    )
    devices = outcome().devices * 3
    text = told([("plan", outcome(reasons=reasons, devices=devices, refused=160))])
    assert "3 of 3 longest for a lease (39 % of the devices' time): version N waits for others" in text
    assert "160 updates refused" in text
    assert "40 × update.rejected: reason a" in text
    assert ("reason c" in text, "reason d" in text) == (True, False)
    answer = SimulationAnswer(title="plan", outcome=outcome(), cost={"energy": 1.5, "traffic": 0.25}, currency="EUR")
    file = io.StringIO()
    for part in summary(question(), [answer], seconds=3.0, width=140):
        Console(width=140, file=file).print(part)
    assert "1.75 EUR: 1.5 of energy, 0.25 of traffic" in file.getvalue()
    assert "cost" not in text


def test_two_plans_stand_side_by_side() -> None:
    text = told([("lease_batches=1", outcome()), ("lease_batches=4", outcome(seconds=50.0, goal=None))])
    assert any("lease_batches=1" in line and "lease_batches=4" in line for line in text.splitlines())
    line = next(line for line in text.splitlines() if line.strip().startswith("time"))
    assert "1 min 40 s" in line
    assert "50 s" in line


def test_where_updates_met_is_told_if_it_is_known() -> None:
    shape = "shard over 8 of 8 workers, 19 ms per batch (20 ms predicted)"
    line = next(line for line in told([("plan", outcome())], topology=shape).splitlines() if "topology" in line)
    assert shape in line
    assert "topology" not in told([("plan", outcome())])


def test_a_shape_is_part_of_the_plan_that_is_played() -> None:
    words = {"task": "t", "until": {}, "arguments": (), "plan": (), "versus": ("topology=shard",), "faults": None}
    typed = {"pace": "auto", "topology": "tree", "aggregators": None}
    asked = Question.typed(devices=2, profile="even", numbers=typed, seed=0, train=False, **words)  # type: ignore[arg-type]
    assert asked.plan == {"pace": "auto", "topology": "tree"}
    assert asked.title(asked.plan) == "topology=tree"
    assert asked.title({**asked.plan, **asked.versus}) == "topology=shard"


def test_what_each_device_had_is_told() -> None:
    rows = tuple(np.arange(count) for count in (3, 90, 20))
    divided = DividedSet(partition="dirichlet(0.1)", rows=rows, sha256="abcdef012345" + "0" * 52)
    file = io.StringIO()
    answers = [SimulationAnswer(title="plan", outcome=outcome(), divided=divided)]
    for part in summary(question(), answers, seconds=3.0, width=140):
        Console(width=140, file=file).print(part)
    assert "dirichlet(0.1): 3 to 90 on a device, median 20 (abcdef012345)" in file.getvalue()
    assert "on a device" not in told([("plan", outcome())])


def test_a_lane_shows_what_took_longest() -> None:
    (lane,) = outcome().lanes
    assert lane_text(lane, 100.0, 10).plain == "░░░░██████"
    assert lane_text(DeviceTimeline("w1", "x", ()), 100.0, 4).plain == "    "


def test_a_goal_that_was_not_reached_is_said() -> None:
    assert "99.00 % not reached" in told([("plan", outcome(goal=0.99))])


def test_plans_are_named_by_what_tells_them_apart() -> None:
    both = question(versus={"lease_batches": 4})
    assert both.title(both.plan) == "lease_batches=2"
    assert both.title({**both.plan, **both.versus}) == "lease_batches=4"
    assert question(plan={}, versus={"seed": 1}).title({}) == "seed as is"


def test_a_question_survives_its_trace() -> None:
    asked = question(faults=parse("crash(leader, at=round(7))\nslow(w1, 4x)"), versus={"momentum": 0.5}, seed=9)
    again = Question.from_header(json.loads(json.dumps(asked.header())))
    assert again == asked
    divided = question(partition="dirichlet(0.1)")
    header = json.loads(json.dumps(divided.header()))
    assert Question.from_header(header) == divided
    # One that was written before there were partitions.
    del header["partition"]
    assert Question.from_header(header) == question()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a task"),
        (["task.py", "--profile", "toasters"], "there is no profile 'toasters'; there are: even"),
        (["task.py", "--plan", "pace=never"], "is not a choice"),
        (["task.py", "--topology", "ring"], "there is: star, tree, shard, auto"),
        (["task.py", "--faults", "nowhere.txt"], "the faults cannot be read"),
        (["task.py", "--trace", "t", "--versus", "seed=1"], "a trace is of one plan"),
        (["task.py", "--partition", "ring"], "'ring' is not a partition; there are: iid, dirichlet(0.1)"),
        (["task.py", "--partition", "iid", "--system-only"], "nothing is trained: leave out one of them"),
        (["--replay", "nowhere.jsonl"], "the trace cannot be read"),
        (["nowhere.py"], "nowhere.py"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text("import shoal\n")
    assert main.run(["simulate", *arguments]) == Exit.MISUSE
    assert says in capsys.readouterr().err


def test_a_fault_of_a_device_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "chaos.txt"
    file.write_text("cut(w9)")
    words = {"task": "t", "until": {}, "arguments": (), "numbers": {}, "plan": (), "versus": (), "seed": 0}
    with pytest.raises(Misuse, match="there is no w9"):
        Question.typed(devices=2, profile="even", faults=file, train=False, **words)  # type: ignore[arg-type]


def test_profiles_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", "--profiles"]) == Exit.OK
    text = capsys.readouterr().out
    assert all(name in text for name in PROFILES)
