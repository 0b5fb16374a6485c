"""Recurrent layers as loops: torch's own values and gradients, and graphs that do not grow with their steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch
from torch import Tensor, nn

from shoal import Task
from shoal.plan import Plan
from shoal.trainer.arrays import write_examples
from shoal.trainer.placement import place
from shoal.trainer.portable.capture import capture, settings_of
from shoal.trainer.portable.graph import check_graph
from shoal.trainer.portable.graphs_file import Graphs
from shoal.trainer.portable.refusal import Unportable
from shoal.trainer.portable.rewrites import rewritten
from shoal.trainer.portable.verify import LARGEST_ERROR
from shoal.trainer.shards import Examples
from shoal.trainer.steps import build_model

pytestmark = pytest.mark.timeout(600)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True, "num_layers": 2},
    {"bias": False, "batch_first": True},
]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_recurrent_layer_is_torchs(kind: type[nn.LSTM] | type[nn.GRU], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = kind(5, 7, **options).double()
    x = torch.randn(6, 3, 5, dtype=torch.float64).requires_grad_(True)

    def found() -> list[Tensor]:
        out, last = layer(x)
        states = last if isinstance(last, tuple) else (last,)
        weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape)
        loss = (out * weights).sum() + sum((state * state).sum() for state in states)
        return [out, *states, *torch.autograd.grad(loss, [x, *layer.parameters()])]

    theirs = found()
    with rewritten():
        ours = found()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_packed_sequences_are_refused_with_what_to_do() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(4, 2, 5), torch.tensor([4, 2]))
    for layer in (nn.LSTM(5, 7), nn.GRU(5, 7)):
        with rewritten(), pytest.raises(Unportable, match="padded ones"):
            layer(packed)


class _Last(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.GRU(9, 64, batch_first=True) if kind == "gru" else nn.LSTM(9, 64, batch_first=True)
        self.head = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


class Waves(Task):
    def __init__(self, kind: str, steps: int) -> None:
        self._kind, self._steps = kind, steps

    def model(self) -> nn.Module:
        return _Last(self._kind)

    def examples(self, split: str) -> Any:
        draw = torch.Generator().manual_seed(2)
        x = torch.randn((96, self._steps, 9), generator=draw)
        return x.numpy(), torch.randint(0, 6, (96,), generator=draw).numpy()


def captured(kind: str, steps: int, folder: Path) -> Graphs:
    task = Waves(kind, steps)
    model = build_model(task, 0)
    placed = place(task, model)
    settings = settings_of(Plan(batch_size=16, lease_batches=8), task=task, layout=placed.layout)
    manifest = write_examples(task.examples("train"), folder)
    examples = Examples([folder / shard.sha256 for shard in manifest.shards])
    return capture(task, model, placed, settings, train=examples, test=examples)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_graph_does_not_grow_with_the_steps(kind: str, tmp_path: Path) -> None:
    short, long = captured(kind, 4, tmp_path), captured(kind, 128, tmp_path)
    assert check_graph(long.train) == check_graph(short.train)
    assert check_graph(long.evaluate) == check_graph(short.evaluate)
    assert long.error <= LARGEST_ERROR
