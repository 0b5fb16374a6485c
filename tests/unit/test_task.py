import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.task import Task
from shoal.trainer.steps import build_model
from shoal.wire import tensors

ROOT = Path(__file__).parents[2]


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


# Names that Shoal does not know -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("lost", "did you mean loss?"),
        ("example", "did you mean examples?"),
        ("configure_optimizer", "did you mean optimizer?"),
        ("forward", "never calls: A task's"),
    ],
)
def test_a_method_that_nobody_would_call_is_an_error(name, near):
    for method in (lambda self: None, staticmethod(lambda: None)):
        with pytest.raises(Misuse, match=f"Wrong defines {name}, which Shoal never calls") as refused:
            type("Wrong", (Task,), {name: method})
        assert near in str(refused.value)
        assert f"(_{name})" in str(refused.value)


def test_a_plan_under_another_name_is_an_error():
    with pytest.raises(Misuse, match="call it plan"):
        type("Wrong", (Task,), {"plans": Plan()})


def test_helpers_constants_properties_and_what_other_bases_bring_are_free():
    class Notebook:
        def show(self):
            return "shown"

    class Right(Notebook, Task):
        plan = Plan()
        WIDTH = 3
        FAST = Plan(batch_size=8)

        class Net(nn.Linear):
            pass

        @property
        def sides(self):
            return self._double(self.WIDTH)

        @classmethod
        def small(cls):
            return cls()

        def _double(self, number):
            return 2 * number

        def model(self):
            return self.Net(self.sides, 1)

    assert Right.small().model().in_features == 6
    assert Right().show() == "shown"


@pytest.mark.parametrize(
    "file", sorted(str(file) for top in ("examples", "papers") for file in (ROOT / top).rglob("task.py"))
)
def test_the_tasks_that_we_ship_define_nothing_unknown(file):
    code = f"import runpy, sys; sys.path.insert(0, {str(Path(file).parent)!r}); runpy.run_path({file!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, cwd=ROOT)


def test_every_public_name_is_there():
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    assert shoal.endless().endless


def test_a_trained_model_is_built_with_the_jobs_seed(tmp_path):
    class Drawn(Task):
        def model(self):
            net = nn.Linear(2, 2)
            # Neither a parameter nor a buffer: it is in no file.
            net.projection = torch.randn(4), np.random.rand()
            return net

    model = build_model(Drawn(), 7)
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        tensors.write(file, {name: value.numpy() for name, value in model.state_dict().items()}, {})
    torch.manual_seed(1)
    np.random.seed(1)
    drawn = torch.rand(1), np.random.rand()
    torch.manual_seed(1)
    np.random.seed(1)
    result = shoal.Result(
        job="j",
        state="finished",
        reason="",
        accuracy=None,
        loss=None,
        seconds=0.0,
        version=1,
        workers=1,
        path=path,
        task=Drawn(),
        seed=7,
    )
    built = result.model()
    assert torch.equal(built.projection[0], model.projection[0])
    assert built.projection[1] == model.projection[1]
    # What the caller draws next is what it would have drawn.
    assert (torch.rand(1), np.random.rand()) == drawn
