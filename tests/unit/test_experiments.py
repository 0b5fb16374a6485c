"""``shoal.simulate`` and ``shoal.compare``: what the seeds decide is the same again, and plans differ in pairs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.cli.main import run
from shoal.cli.sweep import swept
from shoal.errors import Misuse
from shoal.sim.series import SeedSeries

sys.path.insert(0, str(Path(__file__).parent))
from experiments_task import Blobs

pytestmark = pytest.mark.timeout(240)

PLAN = shoal.Plan(
    data="local",
    workers_min=4,
    cohort=2,
    sampling="uniform",
    epoch_leases=4,
    lease_batches=2,
    batch_size=16,
    learning_rate=0.1,
    momentum=0.0,
    until=shoal.epochs(3),
)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(place))
        yield place


def simulated(**changes: Any) -> SeedSeries:
    chosen = {"devices": 4, "partition": "dirichlet(0.5)", "seeds": 2, "plan": PLAN, "progress": False, **changes}
    return shoal.simulate(Blobs(), **chosen)


@pytest.fixture(scope="module")
def first(home: Path) -> SeedSeries:
    return simulated()


@pytest.mark.full
def test_the_same_seeds_give_the_same_hash_and_others_another(first: SeedSeries) -> None:
    again, other = simulated(), simulated(seeds=(5, 6))
    assert first.to_plain() == again.to_plain()
    assert first.to_plain()["hash"] != other.to_plain()["hash"]
    rows = [seed["rows"] for seed in first.to_plain()["seeds"]]
    assert len(set(rows)) == 2, "each seed has a partition of its own"


def test_a_series_has_every_seeds_result(first: SeedSeries) -> None:
    assert [str(outcome.state) for outcome in first.outcomes] == ["finished", "finished"]
    assert first.metric == "accuracy"
    assert all(value is not None and value > 0.5 for value in first.finals())
    versions = [version for version, _, _ in first.curve()]
    assert versions == [2, 4, 6]
    assert all(1 <= outcome.took_part <= 4 for outcome in first.outcomes)


@pytest.mark.full
def test_plans_are_compared_seed_by_seed(first: SeedSeries, tmp_path: Path) -> None:
    slow = simulated(name="slow", plan=replace(PLAN, learning_rate=1e-5))
    found = shoal.compare(first, slow)
    rows = found.rows()
    ours, theirs = slow.finals(), first.finals()
    assert rows[0]["difference"] is None
    assert rows[1]["difference"].mean == pytest.approx(np.subtract(ours, theirs).mean())
    assert found.best() is first
    assert "beside Blobs" in str(found)
    assert "slow" in str(found)
    found.save(tmp_path / "study.json")
    plain = json.loads((tmp_path / "study.json").read_text())
    assert [each["hash"] for each in plain["series"]] == [first.to_plain()["hash"], slow.to_plain()["hash"]]
    pytest.importorskip("matplotlib")
    found.draw(tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def test_a_notebook_runs_an_event_loop_already() -> None:
    async def cell() -> SeedSeries:
        return simulated(seeds=np.arange(1))

    found = asyncio.run(cell())
    assert found.setting.seeds == (0,)
    assert found.to_plain() == json.loads(json.dumps(found.to_plain()))


def test_two_of_one_name_are_refused(first: SeedSeries) -> None:
    with pytest.raises(Misuse, match="called alike"):
        shoal.compare(first, first)
    with pytest.raises(Misuse, match="no evaluation has the metric 'f1'"):
        shoal.compare(first, metric="f1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seeds": 0}, "say how many"),
        ({"seeds": (1, 1)}, "say how many"),
        ({"seeds": (1 << 63,)}, "say how many"),
        ({"seeds": "12"}, "say how many"),
        ({"seeds": 1.5}, "say how many"),
        ({"devices": 0}, "at least one device"),
        ({"profile": "toaster"}, "there is no profile"),
        ({"partition": "dirichlet(-1)"}, "alpha is above 0"),
        ({"partition": None}, "say how the examples"),
        ({"faults": "crash(w9, at=1)"}, "w9"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Misuse, match=reason):
        simulated(**changes)


def test_a_sweep_has_all_combinations() -> None:
    assert swept(["a=1,2", "b=x,y"]) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]
    for wrong in ("a", "a=", "=1", "a=1,1", "a=1,,2"):
        with pytest.raises(Misuse, match="write KEY=VALUE,VALUE"):
            swept([wrong])
    with pytest.raises(Misuse, match="names a key twice"):
        swept(["a=1", "a=2"])
    with pytest.raises(Misuse, match="at most 64"):
        swept([f"{name}=1,2,3,4,5" for name in "abc"])


@pytest.mark.full
def test_the_command_sweeps_and_writes_one_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path) -> None:
    task, out = Path(__file__).with_name("experiments_task.py"), tmp_path / "study.json"
    words = ["simulate", str(task), "--devices", "3", "--epochs", "1", "--seeds", "2", "--home", str(home)]
    code = run([*words, "--sweep", "learning_rate=0.1,0.00001", "--out", str(out)])
    assert not code
    told = capsys.readouterr().out
    assert "learning_rate=0.00001" in told
    assert "means of 2 seeds" in told
    assert [each["name"] for each in json.loads(out.read_text())["series"]] == [
        "learning_rate=0.1",
        "learning_rate=0.00001",
    ]
