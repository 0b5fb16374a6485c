"""Own rows by both engines: the same rows, evaluation before, update, and own part of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor, nn

import shoal
from shoal.data.raw_columns import RawColumn
from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.task import Task
from shoal.trainer.arrays import write_examples
from shoal.trainer.child_loop import reason_of, told
from shoal.trainer.first_files import write_first
from shoal.trainer.own_examples import FolderExamples
from shoal.trainer.placement import place
from shoal.trainer.prepared_job import first_model
from shoal.trainer.protocol import TrainerSettings, TrainResult
from shoal.trainer.shards import Examples
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from shoal.trainer.portable.capture import capture, settings_of
from shoal.trainer.portable.graphs_file import Graphs
from shoal.trainer.portable.refusal import Unportable
from shoal.trainer.portable.steps import OnnxTrainer

pytestmark = pytest.mark.timeout(600)


class Signs(Task):
    """Raw uint8 rows, a reader that normalises them, BatchNorm with its buffers, a head that may be own."""

    columns: ClassVar[Mapping[str, RawColumn]] = {
        "picture": shoal.column("uint8", (4, 4)),
        "label": shoal.column("int32", classes=("up", "down", "left")),
    }

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    def examples(self, split: str) -> Any:
        assert split == "test", "the rows to train on are in the folder"
        return rows_of(9, seed=77)

    def collate(self, rows: Any, *, training: bool) -> Any:
        x = rows["picture"].float().flatten(1)
        return (x - 127.5) / 64, rows["label"].long()


class OwnHead(Signs):
    def placement(self, name: str, tensor: Tensor) -> str | None:
        return "own" if name.startswith("3.") else None


class OwnNorm(Signs):
    """Its own part has buffers too."""

    def placement(self, name: str, tensor: Tensor) -> str | None:
        return "own" if name.startswith("1.") else None


class Unheld(Signs):
    """No machine has examples but the devices."""

    def examples(self, split: str) -> Any:
        return None


def rows_of(count: int, *, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "picture": rng.integers(0, 256, (count, 4, 4), dtype=np.uint8),
        "label": rng.integers(0, 3, count).astype(np.int32),
    }


def captured(task: Task, folder: Path, **plan: Any) -> tuple[Graphs, TrainerSettings]:
    """The graphs of a job with local data, and what a trainer on a device is told."""
    model = build_model(task, 0)
    placed = place(task, model)
    chosen = Plan(data="local", batch_size=8, **{"learning_rate": 0.05} | plan)
    held_out = task.examples("test")
    manifest = write_examples(held_out, folder / "shards") if held_out is not None else None
    test = [folder / "shards" / shard.sha256 for shard in manifest.shards] if manifest else []
    first = write_first(placed, out=folder, key="job", start=None, report=lambda line: None)
    settings = settings_of(chosen, task=task, layout=placed.layout)
    graphs = capture(task, model, placed, settings, train=Examples([]), test=Examples(test))
    with (folder / "graphs").open("wb") as file:
        graphs.write(file)
    (folder / "rows").mkdir()
    return Graphs.read(folder / "graphs"), dataclasses.replace(
        settings,
        bundle_dir=str(Path(__file__).parent),
        entry=f"{Path(__file__).stem}:{type(task).__name__}",
        test=tuple(map(str, test)),
        graphs=str(folder / "graphs"),
        initial=first.model,
        own=placed.own_layout,
        local_folder=str(folder / "rows"),
    )


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> TrainerSettings:
    """What a trainer is told of a job of ``Signs`` that was captured once."""
    return captured(Signs(), tmp_path_factory.mktemp("signs"), share_labels=True)[1]


class Device:
    """One engine at work: leases that are taken, as an agent does it."""

    def __init__(self, engine: type[TorchTrainer] | type[OnnxTrainer], settings: TrainerSettings) -> None:
        self.shared = SharedVectors.create(settings.layout.size, settings.own_size)
        self.trainer = engine(settings, self.shared)
        self.shared.model[:] = first_model(Path(settings.initial))[1]
        self.shared.own[:] = self.shared.own_after

    def learn(self, epoch: int, lease: int, examples: int) -> TrainResult:
        result = self.trainer.learn(epoch, lease, examples)
        self.shared.model[:] += self.shared.update
        self.shared.own[:] = self.shared.own_after
        return result


@pytest.fixture
def devices() -> Iterator[list[Device]]:
    """Those that a test makes; their memory is given back."""
    made: list[Device] = []
    yield made
    for device in made:
        device.shared.close()


def both(made: list[Device], settings: TrainerSettings) -> tuple[Device, Device]:
    made += [Device(TorchTrainer, settings), Device(OnnxTrainer, settings)]
    return made[-2], made[-1]


def agree(one: TrainResult, other: TrainResult) -> None:
    assert (one.examples, one.held, one.fresh, one.labels) == (other.examples, other.held, other.fresh, other.labels)
    assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-4)
    assert [each.name for each in one.fresh_metrics] == [each.name for each in other.fresh_metrics]
    for ours, theirs in zip(one.fresh_metrics, other.fresh_metrics, strict=True):
        assert ours.sums == pytest.approx(theirs.sums, rel=1e-4)


@pytest.mark.parametrize(
    ("task", "plan"),
    [
        (Signs, {"share_labels": True, "weight_decay": 0.01, "clip_gradient": 0.5}),
        (OwnHead, {"weight_decay": 0.01}),
        (OwnNorm, {"local_epochs": 3, "inner": "adamw", "inner_state": "kept"}),
    ],
)
def test_leases_on_own_rows_are_the_same_with_and_without_pytorch(
    tmp_path: Path, devices: list[Device], task: type[Task], plan: dict[str, Any]
) -> None:
    graphs, settings = captured(task(), tmp_path, **plan)
    assert dict(graphs.columns) == dict(Signs.columns)
    assert graphs.own.size == settings.own_size
    rows = rows_of(21, seed=1)
    np.savez(tmp_path / "rows" / "a.npz", **rows)
    with_torch, without = both(devices, settings)
    assert with_torch.shared.own_after.tobytes() == without.shared.own_after.tobytes()
    assert with_torch.trainer.loaded().train_examples == without.trainer.loaded().train_examples == 21
    fresh = []
    # One short batch, several, more than there are; then new rows come, and a lease of a single one.
    for lease, examples in enumerate((5, 16, 100, 12, 2)):
        if lease == 3:
            np.savez(tmp_path / "rows" / "b.npz", **rows_of(4, seed=2))
        one, other = with_torch.learn(0, lease, examples), without.learn(0, lease, examples)
        agree(one, other)
        fresh.append((other.held, other.fresh, other.examples))
        gap = np.linalg.norm(with_torch.shared.update - without.shared.update)
        assert gap <= 5e-3 * np.linalg.norm(with_torch.shared.update)
        assert np.abs(with_torch.shared.own - without.shared.own).max(initial=0) < 1e-3
    # A lease judges the newest of the new ones, at most as many as it trains on.
    assert fresh == [(21, 5, 5), (21, 0, 16), (21, 0, 21), (25, 4, 12), (25, 0, 2)]
    if task is not Signs:
        assert np.abs(without.shared.own - graphs.own).max() > 1e-3, "the own part is trained"
    judged = [device.trainer.evaluate(0, 9).metrics for device in (with_torch, without)]
    for ours, theirs in zip(*judged, strict=True):
        assert ours.sums == pytest.approx(theirs.sums, rel=2e-3)


def test_a_task_that_holds_nothing_out_is_captured_with_made_up_rows(tmp_path: Path, devices: list[Device]) -> None:
    graphs, settings = captured(Unheld(), tmp_path)
    assert set(graphs.proof.columns) == {"picture", "label"}
    np.savez(tmp_path / "rows" / "a.npz", **rows_of(10, seed=1))
    with_torch, without = both(devices, settings)
    agree(with_torch.learn(0, 0, 10), without.learn(0, 0, 10))


def test_rows_are_read_alike_from_other_files(tmp_path: Path, devices: list[Device], signs: TrainerSettings) -> None:
    settings = dataclasses.replace(signs, local_folder=str(tmp_path))
    rows = rows_of(6, seed=1)
    header = ",".join(["label", *(f"picture.{number}" for number in range(16))])
    names = ("up", "down", "left")
    pictures = rows["picture"].reshape(6, 16)
    lines = [
        ",".join([names[label], *map(str, picture)]) for picture, label in zip(pictures, rows["label"], strict=True)
    ]
    (tmp_path / "a.csv").write_text("\n".join([header, *lines]) + "\n")
    with_torch, without = both(devices, settings)
    agree(with_torch.learn(0, 0, 6), without.learn(0, 0, 6))
    from_csv = without.shared.model.copy()
    (tmp_path / "a.csv").unlink()
    np.savez(tmp_path / "a.npz", **rows)
    again = both(devices, settings)[1]
    again.learn(0, 0, 6)
    assert again.shared.model.tobytes() == from_csv.tobytes()


def test_noise_of_labels_is_made_without_pytorch_too(
    tmp_path: Path, devices: list[Device], signs: TrainerSettings
) -> None:
    settings = dataclasses.replace(signs, local_folder=str(tmp_path), labels_epsilon=0.05)
    np.savez(tmp_path / "a.npz", **rows_of(40, seed=1))
    device = both(devices, settings)[1]
    told = {device.learn(0, 0, 40).labels for _ in range(4)}
    assert len(told) > 1
    assert all(min(labels) >= 0 and sum(labels) <= 40 for labels in told)


def test_a_device_without_rows_or_without_a_folder_says_so(
    tmp_path: Path, devices: list[Device], signs: TrainerSettings
) -> None:
    settings = dataclasses.replace(signs, local_folder=str(tmp_path))
    for device in both(devices, settings):
        assert device.trainer.loaded().train_examples == 0
        with pytest.raises(Misuse, match=r"on this device yet|no rows of its own yet"):
            device.learn(0, 0, 5)
    with pytest.raises(Misuse, match="no folder of rows: join it with --data FOLDER"):
        Device(OnnxTrainer, dataclasses.replace(settings, local_folder=""))


def test_a_row_that_does_not_fit_is_refused_by_both(
    tmp_path: Path, devices: list[Device], signs: TrainerSettings
) -> None:
    settings = dataclasses.replace(signs, local_folder=str(tmp_path))
    np.savez(tmp_path / "a.npz", **rows_of(6, seed=1) | {"label": np.full(6, 4)})
    for device in both(devices, settings):
        with pytest.raises(Misuse, match=r"a\.npz: column label has a value outside its 3 classes"):
            device.learn(0, 0, 5)


class Unnamed(Signs):
    """Its classes have no names, so that a wrong one is found by the step."""

    columns: ClassVar[Mapping[str, RawColumn]] = Signs.columns | {"label": shoal.column("int32")}


def test_a_step_that_fails_on_a_row_does_not_tell_the_row(tmp_path: Path, devices: list[Device]) -> None:
    settings = captured(Unnamed(), tmp_path)[1]
    np.savez(tmp_path / "rows" / "a.npz", **rows_of(6, seed=1) | {"label": np.full(6, 4711)})
    for device in both(devices, settings):
        with pytest.raises(Misuse, match="the job's step does not take these rows") as refused:
            device.learn(0, 0, 5)
        assert "4711" not in reason_of(refused.value)
        traceback = told(refused.value, "")
        assert "Traceback" in traceback, "where it failed is told"
        assert "4711" not in traceback


def test_a_task_of_local_data_without_columns_is_for_pytorch(tmp_path: Path) -> None:
    class Bare(Signs):
        columns: ClassVar[Mapping[str, RawColumn]] = {}

    with pytest.raises(Unportable, match="declare what rows they have"):
        captured(Bare(), tmp_path)


class Coded(Signs):
    """Gives its rows by code, for a device that was joined without a folder."""

    def examples(self, split: str) -> Any:
        return rows_of(9, seed=77 if split == "test" else 5)


class CodedWrongly(Coded):
    def examples(self, split: str) -> Any:
        rows = super().examples(split)
        return rows if split == "test" else rows | {"picture": rows["picture"].astype(np.float32) / 255}


def test_a_device_with_pytorch_and_no_folder_asks_the_task(
    tmp_path: Path, devices: list[Device], signs: TrainerSettings
) -> None:
    coded = signs.entry.replace("Signs", "Coded")
    settings = dataclasses.replace(signs, entry=coded, local_folder="")
    devices.append(Device(TorchTrainer, settings))
    assert devices[0].learn(0, 0, 8).held == 9
    wrong = dataclasses.replace(settings, entry=settings.entry.replace("Coded", "CodedWrongly"))
    devices.append(Device(TorchTrainer, wrong))
    with pytest.raises(Misuse, match=r"column picture has values of float32 that uint8 cannot hold"):
        devices[1].learn(0, 0, 8)


def test_rows_that_come_as_old_ones_go_are_new(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(3):
        np.savez(folder / f"{number}.npz", **rows_of(6, seed=number))
    own = FolderExamples(str(folder), Signs.columns)
    assert own.look() == 18
    assert len(own.fresh()) == 18
    # As many go as come, so that the number alone does not tell.
    (folder / "0.npz").unlink()
    np.savez(folder / "3.npz", **rows_of(6, seed=3))
    assert own.look() == 18
    assert own.fresh().tolist() == list(range(12, 18))
    np.savez(folder / "1.npz", **rows_of(2, seed=1))
    assert own.look() == 14
    assert own.fresh().tolist() == [12, 13], "a file that is cut was written anew"
