"""Scripts with a loop of their own, on real agents: plain PyTorch, Lightning, Hugging Face."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import HERE, Site
from shared_cluster import SharedCluster, shared_cluster

from shoal.trainer.find_script import find_script
from shoal.trainer.package import make_ready
from shoal.wire import tensors

LOOPS = HERE / "loops"

cluster = shared_cluster(workers=2, options=())


def _needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


async def _submit(site: Site, script: str, *argv: str, **plan: Any) -> str:
    folder, entry = find_script(str(LOOPS / script))
    chosen = {"workers_min": 2, "workers_max": 2, "epoch_leases": 10, **plan}
    ready = await site.operator.prepare(folder, entry, name="loop", kwargs={"argv": list(argv)}, plan=chosen)
    return await site.operator.submit(ready, plan=chosen)


async def _losses(site: Site, job: str) -> list[float]:
    """The training loss of each version that was seen, to the end of the job."""
    seen: dict[int, float] = {}

    async def is_over() -> bool:
        view = await site.view(job)
        told = view.progress if view else None
        if told is not None and told.version and told.train_loss is not None:
            seen[told.version] = told.train_loss
        return view is not None and view.state in ("finished", "failed", "stopped")

    await site.until(f"{job} ends", is_over, limit_s=270)
    await site.ended(job)
    return [seen[version] for version in sorted(seen)]


def test_a_script_starts_from_a_checkpoint(tmp_path: Path) -> None:
    folder, entry = find_script(str(LOOPS / "plain.py"))

    def first(start: Path | None) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        ready = asyncio.run(make_ready(folder, entry, out=tmp_path / "cache", start=start))
        with Path(ready.prepared.model).open("rb") as file:
            return tensors.read(file)[0], ready.notes

    made, _ = first(None)
    kept = {name: array + 1 for name, array in made.items()}
    checkpoint = tmp_path / "start.safetensors"
    with checkpoint.open("wb") as file:
        tensors.write(file, kept, {})
    begun, notes = first(checkpoint)
    assert begun.keys() == kept.keys()
    for name, array in kept.items():
        np.testing.assert_array_equal(begun[name], array)
    assert notes == (f"started from {len(kept)} tensors of the file",)


@pytest.mark.slow
def test_shoal_run_trains_a_plain_loop_on_two_agents(tmp_path: Path) -> None:
    command = ("run", "--local", "2", str(LOOPS / "plain.py"), "--epochs", "3", "--plan", "epoch_leases=8", "--json")
    model = tmp_path / "model.safetensors"
    told = subprocess.run(
        [sys.executable, "-m", "shoal.cli.main", *command, "-o", str(model), "--", "30"],
        capture_output=True,
        text=True,
        timeout=330,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    outcome = json.loads(told.stdout)
    assert outcome["state"] == "finished"
    assert outcome["version"] >= 12, "two leases a version"
    assert _accuracy(model) > max(0.85, _accuracy(None))
    # Measured by each device on what it holds out, before it trains a lease of the third epoch.
    assert outcome["accuracy"] > 0.8
    # What the loop logged beside its loss, added up over both devices.
    assert outcome["metrics"]["train/batch"] == 20.0


def _accuracy(file: Path | None) -> float:
    """Of the model in a file, or of one that nobody trained, on points that no device has."""
    import torch

    spec = importlib.util.spec_from_file_location("plain_loop", LOOPS / "plain.py")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    torch.manual_seed(0)
    model = plain.build_model()
    if file is not None:
        model.load_state_dict({name: torch.tensor(array) for name, array in tensors.read(file, mmap=False)[0].items()})
    x, y = plain.points(2000, seed=3).tensors
    return float((model(x).argmax(1) == y).float().mean())


@pytest.mark.slow
def test_started_by_hand_a_loop_trains_alone() -> None:
    told = subprocess.run(
        [sys.executable, str(LOOPS / "plain.py")], capture_output=True, text=True, timeout=300, check=True
    )
    lines = told.stdout.splitlines()
    assert len(lines) == 3
    losses = [float(re.findall(r"loss ([\d.]+), held-out accuracy [\d.]+, 50 steps", line)[0]) for line in lines]
    assert losses[2] < losses[0]


@pytest.mark.slow
def test_an_error_in_a_loop_is_told_with_its_place_and_traceback(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await _submit(site, "plain.py", "2", "fail", workers_min=1, until={"epochs": 1}, epoch_leases=4)
        source = (LOOPS / "plain.py").read_text().splitlines()
        line = next(number for number, text in enumerate(source, start=1) if "raise ValueError" in text)
        event = await site.event(job, "lease.failed", "the loop broke")
        assert f"ValueError: the loop broke, at main (plain.py:{line})" in event.text
        told = await site.operator.status(job, tracebacks=True)
        assert any(f'File "plain.py", line {line}, in main' in event.traceback for event in told.events)
        await site.operator.stop(job)
        await site.ended(job, "stopped")
        shown = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.cli.main", "status", job, "--home", str(site.cluster.home)),
            stdout=asyncio.subprocess.PIPE,
        )
        text, _ = await asyncio.wait_for(shown.communicate(), 180)
        assert "not replayable" in text.decode()

    cluster.run(story)


@_needs("lightning")
@pytest.mark.slow
def test_a_lightning_trainer_trains_on_two_agents(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await _submit(site, "with_lightning.py", until={"epochs": 2})
        losses = await _losses(site, job)
        assert min(losses[-2:]) < losses[0]
        # One pass over the loader, to which the script limits its Trainer, is 50 steps: not three leases.
        assert (await site.view(job)).progress.version == 10
        assert set(await site.model(job)) == {f"net.{n}.{part}" for n in (0, 2) for part in ("weight", "bias")}

    cluster.run(story)


@_needs("transformers", "peft", "accelerate")
@pytest.mark.slow
def test_a_hugging_face_trainer_sends_adapters_alone(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await _submit(site, "with_huggingface.py", until={"epochs": 1})
        losses = await _losses(site, job)
        assert min(losses[-2:]) < losses[0]
        names = await site.model(job)
        assert names
        assert all("lora_" in name for name in names)
        told = (await site.view(job)).progress
        values = sum(array.size for array in names.values())
        assert told.bytes_up < told.version * 2 * (4 * values + 4000), "ten updates of the adapters"

    cluster.run(story)


@_needs("lightning", "transformers")
@pytest.mark.slow
@pytest.mark.parametrize("script", ["with_lightning.py", "with_huggingface.py"])
def test_without_shoal_a_framework_does_as_it_was_told(script: str, tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, str(LOOPS / script)], capture_output=True, text=True, timeout=330, check=True, cwd=tmp_path
    )
    assert re.search(r"done after (50|8) steps", told.stdout)
