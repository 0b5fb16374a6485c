"""Questions to devices' own examples: the sums are those of all rows, and nothing is trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import HERE, Site, cluster_in, run
from questions_task import ROWS, Labels, People, Points, points

import shoal
from shoal.errors import Misuse
from shoal.questions import question_plan

pytestmark = pytest.mark.timeout(300)
TASK = HERE / "questions_task.py"


def shown(*words: str, home: Path) -> dict[str, Any]:
    """Run a command as a person does, and return what it prints as JSON."""
    command = [sys.executable, "-m", "shoal.cli.main", *words, "--devices", "3", "--home", str(home), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.gate("questions to devices' own data")
def test_the_sums_are_those_of_all_rows(tmp_path: Path) -> None:
    x, y = points("train")
    model = tmp_path / "model.safetensors"
    network = torch.nn.Linear(2, 3)
    with torch.no_grad():
        network.weight[:] = torch.tensor([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]])
        network.bias.zero_()
        outputs = network(torch.from_numpy(x))
        loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(y)).item()
        accuracy = float((outputs.argmax(1).numpy() == y).mean())
    from safetensors.torch import save_file

    save_file(network.state_dict(), model)

    async def story() -> None:
        import asyncio

        async with cluster_in(tmp_path / "site", workers=3, options=()) as site:
            home = site.cluster.home
            told = await asyncio.to_thread(shown, "tally", f"{TASK}:Labels", home=home)
            assert told["devices"] == 3
            figures = told["figures"]
            assert figures["people"] == pytest.approx(ROWS)
            np.testing.assert_allclose(figures["labels"], np.bincount(y), rtol=1e-5)
            np.testing.assert_allclose(figures["total"], x.sum(axis=0), rtol=1e-4)
            told = await asyncio.to_thread(shown, "evaluate", f"{TASK}:Points", "--model", str(model), home=home)
            assert told["devices"] == 3
            assert told["figures"]["examples"] == ROWS
            assert told["figures"]["accuracy"] == pytest.approx(accuracy, abs=1e-5)
            assert told["figures"]["loss"] == pytest.approx(loss, rel=1e-4)
            await _nothing_was_trained(site)

    run(story())


async def _nothing_was_trained(site: Site) -> None:
    for view in (await site.operator.status()).jobs:
        assert view.progress is not None
        assert view.progress.version == 1


def test_a_program_asks_devices_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    answers = shoal.tally(Labels(), devices=2, progress=False)
    assert answers.devices == 2
    assert answers.figures["people"] == pytest.approx(ROWS)


@pytest.mark.full
def test_a_sealed_tally_is_the_sum_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a device has few examples, and counts more than a word of a first sum holds."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    x, y = points("train")
    answers = shoal.tally(Labels(), devices=3, plan={"trust": "sealed(3, 0%, 30%)"}, progress=False)
    assert answers.devices == 3
    assert answers.figures["people"] == pytest.approx(ROWS, abs=0.01)
    np.testing.assert_allclose(answers.figures["labels"], np.bincount(y), atol=0.01)
    np.testing.assert_allclose(answers.figures["total"], x.sum(axis=0), atol=0.01)


@pytest.mark.full
@pytest.mark.parametrize("trust", ["private(100, 1e-5)", "sealed(3, 0%, 30%) + private(100, 1e-5)"])
def test_a_private_tally_has_the_noise_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: str) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    changes = {"trust": trust, "clip_update": 60.0}
    privacy = shoal.Plan(**question_plan(3, changes)).privacy
    assert privacy is not None
    answers = shoal.tally(People(), devices=3, plan=changes, progress=False)
    told = np.array([answers.figures["people"], *answers.figures["labels"]])
    off = told - [ROWS, *np.bincount(points("train")[1])]
    assert np.abs(off).max() < 6 * 3 * privacy.mean_deviation
    assert np.abs(off).max() > 1e-3, "there is noise"


def test_a_metric_that_a_task_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    save_file(Points().model().state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(shoal.errors.JobFailed, match="has no mean 'mae' of a batch; it has loss, accuracy"):
        shoal.evaluate(Points(), tmp_path / "model.safetensors", devices=1, metrics=["mae"], progress=False)


def test_what_a_question_decides_cannot_be_changed() -> None:
    with pytest.raises(Misuse, match="pace: a question sets this itself"):
        question_plan(3, {"pace": "async"})
    with pytest.raises(Misuse, match="codec: a question sets this itself"):
        question_plan(3, {"codec": "top30%"})
    with pytest.raises(Misuse, match="would count for less"):
        question_plan(9, {"trust": "robust"})
    with pytest.raises(Misuse, match="leases of the same length"):
        question_plan(9, {"trust": "sealed"}, is_tally=False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trust": "sealed"},
        {"trust": "private(8, 1e-5)", "clip_update": 100.0},
        {"trust": "sealed + private(8, 1e-5)", "clip_update": 100.0},
    ],
)
def test_a_question_goes_with_trust(changes: dict[str, Any]) -> None:
    plan = shoal.Plan(**question_plan(50, changes))
    assert plan.why_not_new is None
    assert plan.believes.text == changes.get("trust", "identity")
