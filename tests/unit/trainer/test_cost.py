"""What an example costs, against numbers worked out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shoal.task import Task
from shoal.trainer.cost import gmacs_per_example
from shoal.trainer.placement import place
from shoal.trainer.prepare_child import prepare
from shoal.trainer.prepared_job import PreparedJob


class Calls(nn.Module):
    """A layer, called in a way of one's own."""

    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = layer
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self.layer, x)


def macs(model: nn.Module, *shape: int, dtype: type = np.float32, count: int = 2) -> float:
    x = np.ones((count, *shape), dtype)
    rows = {"x": x, "y": np.zeros(count, np.int64)}
    return gmacs_per_example(Task(), model, place(Task(), model), rows, examples=count) * 1e9


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(784, 128), (784,), 100_352),
        # At each of 7 positions.
        (nn.Linear(10, 3), (7, 10), 7 * 30),
        (nn.Conv2d(1, 32, 5), (1, 28, 28), 24 * 24 * 25 * 32),
        (nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4), (8, 10, 10), 5 * 5 * 16 * 2 * 9),
        (nn.Conv1d(3, 4, 2), (3, 11), 10 * 4 * 3 * 2),
        (nn.Conv3d(2, 4, 3), (2, 5, 5, 5), 27 * 4 * 2 * 27),
        # Every one of 8 x 5 x 5 inputs meets the filters of 16 outputs.
        (nn.ConvTranspose2d(8, 16, 3, stride=2), (8, 5, 5), 8 * 25 * 16 * 9),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), (4, 9), 4 * 9 * 3 * 3),
        # Four gates, each from the input (5) and the state (7), at 6 positions; then a layer on top of it.
        (nn.LSTM(5, 7, batch_first=True), (6, 5), 6 * 4 * 7 * (5 + 7)),
        (nn.LSTM(5, 7, num_layers=2, batch_first=True), (6, 5), 6 * 4 * 7 * (5 + 7 + 7 + 7)),
        # With a projection to 3 the state that comes back is that small.
        (nn.LSTM(5, 7, proj_size=3, batch_first=True), (6, 5), 6 * (4 * 7 * (5 + 3) + 3 * 7)),
        (nn.GRU(5, 7, bidirectional=True, batch_first=True), (6, 5), 2 * 6 * 3 * 7 * (5 + 7)),
        (nn.RNN(5, 7, bias=False, batch_first=True), (6, 5), 6 * 7 * (5 + 7)),
        (nn.GRUCell(5, 7), (5,), 3 * 7 * (5 + 7)),
        (Calls(nn.Bilinear(3, 4, 5), lambda layer, x: layer(x[:, :3], x[:, 3:])), (7,), 5 * 3 * 4),
        (nn.Sequential(nn.Flatten(), nn.ReLU(), nn.LayerNorm(12), nn.Dropout()), (3, 4), 0),
    ],
)
def test_layers_cost_what_their_equations_say(layer: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    assert macs(layer, *shape) == pytest.approx(expected)


def test_an_embedding_is_looked_up_not_multiplied() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 2))
    assert macs(model, 6, dtype=np.int64) == pytest.approx(6 * 8 * 2)


def test_attention_is_four_projections_and_two_products() -> None:
    # 6 tokens of 8 values: each token is projected four times, and meets 6 tokens twice.
    expected = 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8
    itself = nn.MultiheadAttention(8, 2, batch_first=True)
    assert macs(Calls(itself, lambda layer, x: layer(x, x, value=x)), 6, 8) == pytest.approx(expected)
    # Where the sequence comes first, the examples come second.
    across = nn.MultiheadAttention(8, 2)
    model = Calls(across, lambda layer, x: layer(*[x.transpose(0, 1)] * 3))
    assert macs(model, 6, 8) == pytest.approx(expected)


def test_attention_to_another_sequence_counts_its_length_and_width() -> None:
    layer = nn.MultiheadAttention(8, 2, kdim=3, vdim=3, batch_first=True)
    # 2 queries of 8; 5 keys and values of 3.
    model = Calls(layer, lambda layer, x: layer(torch.ones(len(x), 2, 8), x, x))
    assert macs(model, 5, 3) == pytest.approx(2 * 2 * 8 * 8 + 2 * 5 * 3 * 8 + 2 * 2 * 5 * 8)


@pytest.mark.parametrize("masked", [False, True])
def test_a_transformer_is_counted_though_torch_would_run_it_as_one_call(masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=3)
    mask = torch.tensor([[False] * 6, [False] * 4 + [True] * 2]) if masked else None
    model = Calls(encoder, lambda layer, x: layer(x, src_key_padding_mask=mask))
    attention = 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8
    assert macs(model, 6, 8) == pytest.approx(3 * (attention + 2 * 6 * 8 * 16))
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_layer_used_twice_counts_twice() -> None:
    layer = nn.Linear(4, 4)
    assert macs(nn.Sequential(layer, layer), 4) == pytest.approx(32)


def test_the_task_turns_stored_examples_into_inputs() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    # Bytes: the layer would refuse them.
    assert macs(model, 3, 3, dtype=np.uint8) == pytest.approx(18)


def test_counting_leaves_no_hook_and_changes_no_weight() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = macs(model, 4)
    assert macs(model, 4) == first == pytest.approx(16)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError):
        macs(model, 5)
    assert not any(module._forward_hooks for module in model.modules())


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    count=st.integers(1, 4),
)
def test_a_chain_of_linear_layers_costs_its_weights(widths: list[int], count: int) -> None:
    pairs = list(itertools.pairwise(widths))
    model = nn.Sequential(*(nn.Linear(narrow, wide) for narrow, wide in pairs))
    # However many examples there are: the cost is that of one.
    assert macs(model, widths[0], count=count) == pytest.approx(sum(a * b for a, b in pairs))


# In a prepared task ------------------------------------------------------------------------------------

SOURCE = """
import numpy as np
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))

    def examples(self, split):
        return np.ones((COUNT, 3), np.float32), np.zeros(COUNT, np.int64)
"""


def prepared_from(tmp_path: Path, source: str) -> PreparedJob:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "task.py").write_text(source)
    return prepare(bundle, "task:Sample", {}, seed=0, out=tmp_path / "out", key="key", report=lambda line: None)


@pytest.mark.usefixtures("imports_forgotten")
@pytest.mark.parametrize("count", [1, 5])
def test_a_prepared_task_knows_its_cost(tmp_path: Path, count: int) -> None:
    prepared = prepared_from(tmp_path, SOURCE.replace("COUNT", str(count)))
    assert prepared.gmacs_per_example == pytest.approx(20e-9)
    assert PreparedJob.from_plain(prepared.to_plain()) == prepared


@pytest.mark.usefixtures("imports_forgotten")
def test_a_cost_that_cannot_be_counted_is_no_reason_to_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A model that takes its examples by five, where the cost is counted with two.
    odd = SOURCE.replace("COUNT", "5").replace(
        "nn.Linear(4, 2)", "nn.Unflatten(0, (-1, 5)), nn.Flatten(0, 1), nn.Linear(4, 2)"
    )
    prepared = prepared_from(tmp_path, odd)
    assert prepared.gmacs_per_example == 0.0
    assert prepared.train.examples == 5
    assert "what an example costs is not known: RuntimeError" in capsys.readouterr().err
