import subprocess
import sys

import pytest
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.task import Task


class Sized(Task):
    def __init__(self, width, *, depth=2, **rest):
        self.width = width
        rest.clear()


def test_arguments_are_recorded_by_name():
    assert Sized(8, depth=3, names=["a"]).arguments == {"width": 8, "depth": 3, "names": ["a"]}
    assert Sized(width=8).arguments == {"width": 8}
    assert Task().arguments == {}


def test_what_is_recorded_is_what_was_given_not_what_became_of_it():
    sides = [1, 2]
    task = Sized(sides)
    sides.append(3)
    task.arguments["width"].append(4)
    assert task.arguments == {"width": [1, 2]}


@pytest.mark.parametrize("value", [object(), (1, 2), {1: 2}, [(1,)], float("nan"), nn.Linear, {"a": {1, 2}}, True + 0j])
def test_what_json_cannot_say_is_refused_by_name(value):
    with pytest.raises(Misuse, match=r"Sized\(width="):
        Sized(value)


def test_arguments_without_a_name_are_refused():
    class Nameless(Task):
        def __init__(self, *sides):
            pass

    with pytest.raises(Misuse, match="give 'sides' a name"):
        Nameless(1, 2)


def test_a_task_without_a_constructor_takes_nothing():
    class Plain(Task):
        pass

    with pytest.raises(TypeError):
        Plain(3)
    with pytest.raises(TypeError):
        Sized()


def test_what_must_be_overridden_says_so():
    for call in (Task().model, lambda: Task().examples("train")):
        with pytest.raises(NotImplementedError, match="define"):
            call()


def test_the_default_loss_is_cross_entropy():
    output, y = torch.randn(7, 5), torch.randint(0, 5, (7,), dtype=torch.uint8)
    assert Task.loss(output, y).item() == pytest.approx(nn.functional.cross_entropy(output, y.long()).item())
    dense, classes = torch.randn(2, 5, 3, 3), torch.randint(0, 5, (2, 3, 3))
    assert Task.loss(dense, classes).item() == pytest.approx(nn.functional.cross_entropy(dense, classes).item())


def test_the_default_batch_scales_images_and_leaves_the_rest():
    images, y = torch.tensor([[[0, 255], [51, 0]]], dtype=torch.uint8), torch.tensor([1])
    assert Task().batch(images, y)[0].tolist() == [[[0, 1], [pytest.approx(0.2), 0]]]
    assert images[0, 0, 1] == 255
    for other in (
        torch.tensor([[0, 255]], dtype=torch.uint8),
        torch.ones(1, 2, 2),
        torch.ones(1, 2, 2).long(),
    ):
        assert Task().batch(other, y)[0] is other


def test_the_default_correct_counts_the_largest():
    assert Task().correct(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([1, 0, 0])) == 2


def test_importing_task_needs_no_torch():
    code = "import sys, shoal.task; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
