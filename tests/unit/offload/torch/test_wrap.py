"""Offloaded layers against torch's own: values, gradients, and everything else about a model that must not change."""

from __future__ import annotations

import copy
import io
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.offload_at_home import AtHome
from shoal.errors import Misuse
from shoal.offload.cost import Shape, Verdict
from shoal.offload.products import Advert, Array, Secret
from shoal.offload.torch.desk import HOLDS, PASSES, SECRET, Desk, Pass, shape_of
from shoal.offload.torch.wrap import bring_home, offload, offloading


class Noting(AtHome):
    """Products at home that remember what they were asked for, and what they may not show."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, Secret]] = []

    def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
        self.asked.append((name, secret))
        result = super().multiply(left, right, secret=secret, name=name)
        # As out of a frame: not to be written to.
        result.flags.writeable = False
        return result


def away(model: nn.Module, products: Any = None, **settings: Any) -> nn.Module:
    return offload(model, products or AtHome(), **{"privacy": "none", "verify": "none", "send": "all", **settings})


def compare(model: nn.Module, x: torch.Tensor) -> None:
    """Output, and gradients of the input and of each parameter, beside those of the same model at home."""
    plain, sent = copy.deepcopy(model), away(copy.deepcopy(model))
    told = []
    for each in (plain, sent):
        leaf = x.clone().requires_grad_()
        y = each(leaf)
        # A gradient that differs from place to place.
        (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
        told.append([y.detach(), leaf.grad, *(parameter.grad for parameter in each.parameters())])
    for expected, got in zip(*told, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(7, 12), (2, 5, 12), (12,), (2, 0, 12)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_torchs(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    compare(nn.Linear(12, 5, bias=bias), torch.randn(shape))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch's own, of its own
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"stride": 2},
        {"padding": 1},
        {"padding": (2, 0), "stride": (1, 3)},
        {"dilation": 2, "padding": 2},
        {"padding": "same"},
        {"padding": "same", "dilation": 2},
        {"padding": "valid"},
        {"padding": 2, "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "circular"},
    ],
    ids=str,
)
def test_a_convolution_is_torchs(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    compare(nn.Conv2d(3, 4, (3, 2), **options), torch.randn(2, 3, 9, 8))


def test_a_convolution_of_one_image_without_a_batch() -> None:
    compare(nn.Conv2d(3, 4, 3), torch.randn(3, 6, 6))


@settings(max_examples=30, deadline=None)
@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 2),
    size=st.tuples(st.integers(7, 11), st.integers(7, 11)),
)
def test_any_convolution_is_torchs(
    kernel: int, stride: int, padding: int, dilation: int, size: tuple[int, int]
) -> None:
    torch.manual_seed(1)
    layer = nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dilation=dilation)
    compare(layer, torch.randn(2, 2, *size))


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10), nn.ReLU(), nn.Linear(10, 3)
    )


@pytest.mark.parametrize("passes", [(), ("forward",), ("input gradient",), ("weight gradient",), PASSES], ids=str)
def test_each_pass_may_go_away_on_its_own(passes: tuple[Pass, ...]) -> None:
    products = Noting()
    plain, sent = network(), away(network(), products)
    desk: Desk = sent[0]._desk
    desk._weigh = lambda shape, secret, pace: Verdict(sends=False, reason="", home_s=0.0)
    original = desk.decide

    def decide(layer: str, step: Pass, shape: Shape) -> Any:
        made = original(layer, step, shape)
        return replace(made, verdict=replace(made.verdict, sends=step in passes))

    desk.decide = decide  # type: ignore[method-assign]
    x, y = torch.randn(5, 1, 6, 6), torch.tensor([0, 1, 2, 0, 1])
    for model in (plain, sent):
        nn.functional.cross_entropy(model(x), y).backward()
    for expected, got in zip(plain.parameters(), sent.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-5)
    # The images want no gradient: the first layer sends none.
    asked = {f"{layer}.{step}" for layer in ("0", "3", "5") for step in passes} - {"0.input gradient"}
    assert {name for name, _ in products.asked} == asked


def test_a_loop_of_ones_own_with_any_optimiser_trains_the_same() -> None:
    x, y = torch.randn(40, 1, 6, 6), torch.randint(0, 3, (40,))
    trained = []
    for model in (network(), away(network())):
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for start in range(0, 40, 8):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[start : start + 8]), y[start : start + 8]).backward()
            optimiser.step()
        trained.append(model.state_dict())
    assert list(trained[0]) == list(trained[1])
    for name, expected in trained[0].items():
        torch.testing.assert_close(trained[1][name], expected, rtol=1e-3, atol=1e-3)


def test_what_is_secret_is_said_with_each_product() -> None:
    products = Noting()
    model = away(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), products)
    model(torch.randn(3, 4)).sum().backward()
    assert products.asked == [
        ("0.forward", "left"),
        ("1.forward", "left"),
        ("1.input gradient", "left"),
        ("1.weight gradient", "both"),
        ("0.weight gradient", "both"),
    ]


def test_with_masks_a_product_of_two_secrets_stays_at_home() -> None:
    products = Noting()
    model = away(nn.Linear(4, 2), products, privacy="mask")
    model(torch.randn(3, 4)).sum().backward()
    assert products.asked == [("the model.forward", "left")]
    (forward, gradient) = offloading(model).decisions
    assert forward.verdict.sends
    assert not gradient.verdict.sends
    assert "both sides are secret" in str(gradient)


# What must not change ------------------------------------------------------------------------------------------


def test_parameters_names_and_files_are_as_before(tmp_path: Any) -> None:
    model = network()
    before, names = list(model.parameters()), list(model.state_dict())
    sent = away(model)
    assert sent is model
    assert all(old is new for old, new in zip(before, sent.parameters(), strict=True))
    assert list(sent.state_dict()) == names
    assert isinstance(sent[3], nn.Linear)
    torch.save(sent.state_dict(), tmp_path / "weights")
    network().load_state_dict(sent.state_dict())
    sent.load_state_dict(network().state_dict())


def test_training_and_evaluation_are_as_before() -> None:
    model = away(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    assert model.training
    assert model.eval() is model
    assert not model[0].training
    with torch.no_grad():
        assert not model(torch.randn(2, 4)).requires_grad


def test_hooks_and_ties_hold() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    away(model)
    assert model[1].weight is model[0].weight
    model(torch.randn(2, 4)).sum().backward()
    assert seen == [1]


def test_a_copy_has_weights_of_its_own_and_the_same_pool() -> None:
    products = Noting()
    model = away(nn.Linear(4, 2), products)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
        other.bias.zero_()
    assert model.weight.any()
    assert not other(torch.ones(1, 4)).any()
    assert len(products.asked) == 1


def test_a_whole_model_in_a_file_is_refused_clearly() -> None:
    with pytest.raises(Misuse, match=r"save model\.state_dict"):
        torch.save(away(nn.Linear(4, 2)), io.BytesIO())


def test_home_again() -> None:
    closed: list[int] = []
    model = network()
    x = torch.randn(2, 1, 6, 6)
    expected = model(x)
    assert bring_home(away(model, at_end=lambda: closed.append(1))) is model
    assert closed == [1]
    assert type(model[0]) is nn.Conv2d
    assert type(model[3]) is nn.Linear
    assert torch.equal(model(x), expected)
    torch.save(model, io.BytesIO())
    with pytest.raises(Misuse, match="is not offloaded"):
        offloading(model)


# What stays at home --------------------------------------------------------------------------------------------


def test_what_cannot_be_sent_stays_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(nn.Linear):
        pass

    products = Noting()
    model = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Flatten(), Odd(4, 4), nn.Linear(4, 2))
    with caplog.at_level(logging.INFO, logger="shoal"):
        away(model, products)
        model(torch.randn(1, 4, 1, 1))
        model.double()(torch.randn(1, 4, 1, 1, dtype=torch.float64))
    assert [name for name, _ in products.asked] == ["3.forward"]
    assert "0: at home: it has 2 groups" in caplog.text
    assert "2: at home: Odd is a Linear that may do something else" in caplog.text
    assert "3: at home: its values are torch.float64 and torch.float64, and only float32 is sent" in caplog.text


def test_autocast_is_left_to_torch() -> None:
    products = Noting()
    model = away(nn.Linear(4, 2), products)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.randn(3, 4)).dtype == torch.bfloat16
    assert not products.asked


def test_second_derivatives_are_refused_clearly() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(away(nn.Linear(4, 1))(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_misuse_is_named() -> None:
    with pytest.raises(Misuse, match="no Linear or Conv2d"):
        away(nn.ReLU())
    with pytest.raises(Misuse, match="offloaded already"):
        away(away(nn.Linear(2, 2)))
    with pytest.raises(Misuse, match="privacy is none, shuffle, mask; not 'masks'"):
        away(nn.Linear(2, 2), privacy="masks")
    with pytest.raises(Misuse, match="send is worth or all; not 'some'"):
        away(nn.Linear(2, 2), send="some")
    with pytest.raises(Misuse, match="takes a torch module, not int"):
        away(3)  # type: ignore[arg-type]


def test_a_product_of_the_wrong_shape_is_refused() -> None:
    class Wrong(AtHome):
        def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
            return np.zeros((1, 1), np.float32)

    with pytest.raises(Misuse, match=r"a product of 3 x 4 by 4 x 2 came back as float32 of shape \(1, 1\)"):
        away(nn.Linear(4, 2), Wrong())(torch.randn(3, 4))


# The desk ------------------------------------------------------------------------------------------------------


def test_the_passes_products() -> None:
    shapes = {step: shape_of(step, rows=7, inputs=5, outputs=3) for step in PASSES}
    assert [str(shape) for shape in shapes.values()] == ["7 x 5 by 5 x 3", "7 x 3 by 3 x 5", "3 x 7 by 7 x 5"]
    assert SECRET["weight gradient"] == "both"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Slow(AtHome):
    """Takes twice as long as one expects of it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._wall = clock

    def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
        self._wall.now_s += 2.0
        return super().multiply(left, right, secret=secret, name=name)


def test_a_pool_slower_than_it_said_is_left_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """1 s is expected away and 1.5 s here: it is sent until what it took has shown that it takes 2 s."""

    def weigh(shape: Shape, secret: Secret, pace: float) -> Verdict:
        return Verdict(sends=pace < 1.5, reason=f"pace {pace:.2f}", home_s=1.5, away_s=pace, pace=pace)

    clock = Clock()
    desk = Desk(Slow(clock), weigh, clock=clock)
    shape, matrix = Shape(rows=2, inner=2, columns=2), np.eye(2, dtype=np.float32)
    sent = 0
    with caplog.at_level(logging.INFO, logger="shoal"):
        for _ in range(HOLDS):
            decision = desk.decide("one", "forward", shape)
            if decision.verdict.sends:
                desk.multiply(decision, matrix, matrix)
                sent += 1
    # Weighed at 0, 1, 2, 4 and so on: four products teach a pace of 2 - 0.75⁴ = 1.68.
    assert sent == 4
    assert [record.getMessage() for record in caplog.records] == [
        "offload: one, forward, 2 x 2 by 2 x 2: sent: pace 1.00",
        "offload: one, forward, 2 x 2 by 2 x 2: at home: pace 1.68",
    ]
    assert len(desk.decisions) == 1
    # And it is tried again, in time.
    for _ in range(10 * HOLDS):
        decision = desk.decide("one", "forward", shape)
    assert decision.verdict.sends


class Advertising(AtHome):
    def __init__(self, advert: Advert | None) -> None:
        super().__init__()
        self.advert = advert


def test_only_what_pays_is_sent() -> None:
    pool = Advertising(Advert(executors=8, operations_per_s=1e18, bytes_per_s=1e15, latency_s=0.0))
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 2))
    offload(model, pool, privacy="none", verify="none")
    model(torch.randn(2048, 512))
    wide, narrow = offloading(model).decisions
    assert wide.verdict.sends
    assert not narrow.verdict.sends
    # Two more to see how fast the link is.
    report = offloading(model).report
    assert report.products == 3
    assert report.operations_home > 2048 * 512 * 1024
    assert offloading(model).layers == ("0", "2")


def test_nothing_is_sent_to_a_pool_that_has_said_nothing() -> None:
    model = offload(nn.Linear(4, 2), Advertising(None), privacy="none", verify="none")
    model(torch.randn(3, 4))
    assert offloading(model).decisions[0].verdict.reason == "the pool has not said yet what it can"
