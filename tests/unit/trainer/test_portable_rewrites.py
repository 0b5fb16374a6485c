"""Operations that a graph has in another form, against PyTorch's own: values and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from shoal.trainer.portable import interpolation, rewrites
from shoal.trainer.portable.refusal import Unportable

pytestmark = pytest.mark.timeout(120)


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agree(ours: Callable[..., Any], theirs: Callable[..., Any], *leaves: Any) -> None:
    """Both give the same values, and the same gradients of a weighted sum of them."""
    found = []
    for function in (ours, theirs):
        own = [leaf.clone().requires_grad_(True) for leaf in leaves]
        made = function(*own)
        weights = torch.linspace(0.5, 1.5, made.numel(), dtype=made.dtype).reshape(made.shape)
        found.append((made.detach(), *torch.autograd.grad((made * weights).sum(), own)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_bags_of_equal_length_are_torchs(mode: str, padding: int | None) -> None:
    words = torch.randint(0, 9, (7, 5), generator=torch.Generator().manual_seed(1))
    # A bag of padding only.
    words[2] = 3 if padding is None else padding % 9

    def bags(function: Any) -> Any:
        return lambda weight: function(words, weight, mode=mode, padding_idx=padding)

    agree(bags(rewrites.embedding_bag), bags(functional.embedding_bag), drawn(9, 4))


def test_weighted_bags_are_torchs() -> None:
    words = torch.randint(0, 9, (7, 5), generator=torch.Generator().manual_seed(1))

    def bags(function: Any) -> Any:
        return lambda weight, parts: function(words, weight, mode="sum", per_sample_weights=parts)

    agree(bags(rewrites.embedding_bag), bags(functional.embedding_bag), drawn(9, 4), drawn(7, 5))


def test_bags_of_unequal_length_are_refused_with_what_to_do() -> None:
    with pytest.raises(Unportable, match="bags of equal length"):
        rewrites.embedding_bag(torch.zeros(4, dtype=torch.int64), drawn(9, 4), torch.tensor([0, 2]))
    with pytest.raises(Unportable, match="leave them out"):
        rewrites.embedding_bag(torch.zeros(2, 2, dtype=torch.int64), drawn(9, 4), max_norm=1.0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_is_torchs(reduction: str, zero_infinity: bool) -> None:
    draw = torch.Generator().manual_seed(2)
    targets = torch.randint(1, 5, (6, 4), generator=draw)
    # The same label twice needs a blank between.
    targets[1] = 2
    labels = torch.tensor([4, 4, 1, 3, 2, 0])
    # What pads the targets is no label at all.
    targets[2, 1:], targets[4, 2:] = -1, -100
    steps = torch.tensor([12, 9, 12, 7, 5, 12])

    def loss(function: Any) -> Any:
        def of(x: Any) -> Any:
            likely = x.log_softmax(2)
            return function(likely, targets, steps, labels, reduction=reduction, zero_infinity=zero_infinity)

        return of

    agree(loss(rewrites.ctc_loss), loss(functional.ctc_loss), drawn(12, 6, 5))


def test_labels_that_do_not_fit_count_nothing_with_zero_infinity() -> None:
    targets, labels, steps = torch.tensor([[1, 1, 1]]), torch.tensor([3]), torch.tensor([4])
    likely = drawn(4, 1, 3).log_softmax(2)
    assert rewrites.ctc_loss(likely, targets, steps, labels, zero_infinity=True).item() == 0.0


def test_labels_that_do_not_fit_are_no_number_without_it() -> None:
    """A finite loss or gradient would be sent, where PyTorch's lease fails."""
    targets, labels, steps = torch.tensor([[1, 1, 1], [1, 2, 1]]), torch.tensor([3, 2]), torch.tensor([4, 4])
    for function in (rewrites.ctc_loss, functional.ctc_loss):
        x = drawn(4, 2, 3).requires_grad_(True)
        loss = function(x.log_softmax(2), targets, steps, labels)
        loss.backward()
        assert loss.item() == float("inf")
        assert x.grad[:, 0].isnan().any()
        assert x.grad[:, 1].isfinite().all()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_normalised_weight_is_torchs(dim: int) -> None:
    size = drawn(*((4, 1) if dim == 0 else (1, 3) if dim == 1 else (1,)), seed=3)
    if dim < 0:
        size = size.reshape(())

    def theirs(direction: Any, size: Any) -> Any:
        return direction * (size / torch.norm_except_dim(direction, 2, dim))

    agree(lambda *given: rewrites.weight_norm(*given, dim), theirs, drawn(4, 3), size)


RESIZES: list[tuple[str, dict[str, Any]]] = [
    ("nearest", {"scale_factor": 2}),
    ("nearest", {"scale_factor": (3, 1)}),
    ("nearest", {"size": (11, 4)}),
    ("nearest", {"scale_factor": 1.7}),
    ("nearest-exact", {"size": (9, 13)}),
    ("bilinear", {"scale_factor": 2, "align_corners": False}),
    ("bilinear", {"size": (3, 17), "align_corners": True}),
    ("bilinear", {"scale_factor": 1.3, "align_corners": False}),
    ("bilinear", {"scale_factor": 1.3, "align_corners": False, "recompute_scale_factor": True}),
    ("bicubic", {"size": (10, 7), "align_corners": False}),
    ("bicubic", {"scale_factor": 2, "align_corners": True}),
]


def seen(function: Callable[[Any], Any], x: Any) -> tuple[Any, list[str]]:
    """What a function and its gradient give by the decompositions, and the operations that are left."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def both(x: Any) -> Any:
        x = x.detach().requires_grad_(True)
        made = function(x)
        weights = torch.linspace(0.5, 1.5, made.numel(), dtype=made.dtype).reshape(made.shape)
        return made, torch.autograd.grad((made * weights).sum(), x)[0]

    first = make_fx(both)(x)
    with torch.no_grad():
        graph = make_fx(first, decomposition_table=interpolation.decompositions())(x)
    return graph(x), [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(("mode", "options"), RESIZES, ids=str)
def test_resizing_is_torchs(mode: str, options: dict[str, Any]) -> None:
    def resize(x: Any) -> Any:
        return functional.interpolate(x, mode=mode, **options)

    # Its matrices are float32's.
    x = drawn(2, 3, 5, 6).float()
    leaf = x.clone().requires_grad_(True)
    wanted = resize(leaf)
    weights = torch.linspace(0.5, 1.5, wanted.numel()).reshape(wanted.shape)
    (slope,) = torch.autograd.grad((wanted * weights).sum(), leaf)
    (made, found), operations = seen(resize, x)
    torch.testing.assert_close(made, wanted.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, slope, rtol=1e-5, atol=1e-5)
    assert not [name for name in operations if "upsample" in name]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_sequences_are_resized_too(mode: str) -> None:
    def resize(x: Any) -> Any:
        return functional.interpolate(x, size=13, mode=mode)

    x = drawn(2, 3, 6).float()
    (made, _), operations = seen(resize, x)
    torch.testing.assert_close(made, resize(x), rtol=1e-5, atol=1e-6)
    assert not [name for name in operations if "upsample" in name]


@pytest.mark.parametrize("size", [(2, 2), (1, 3), (5, 6), (3, 4)])
def test_adaptive_pools_are_torchs(size: tuple[int, int]) -> None:
    x = drawn(2, 3, 5, 6).float()
    leaf = x.clone().requires_grad_(True)
    wanted = functional.adaptive_avg_pool2d(leaf, size)
    weights = torch.linspace(0.5, 1.5, wanted.numel()).reshape(wanted.shape)
    (slope,) = torch.autograd.grad((wanted * weights).sum(), leaf)
    (made, found), _ = seen(lambda each: functional.adaptive_avg_pool2d(each, size), x)
    torch.testing.assert_close(made, wanted.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, slope, rtol=1e-5, atol=1e-5)
