"""The loop of a script: batches of a lease, what is logged, and who gives the leases."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal import loop
from shoal.errors import Misuse
from shoal.loop import Loaders, LoopLease, LoopWorker, Stepper, count_of, size_of


class Given:
    """So many leases, and what came back."""

    def __init__(self, leases: int, **of_lease) -> None:
        self.left, self.of_lease = leases, of_lease
        self.done: list[LoopLease] = []
        self.attached: list[object] = []

    def attach(self, model, optimizer, evaluate) -> None:
        self.attached.append(model)

    def draw_apart(self) -> None:
        pass

    def exchange(self, done):
        if done is not None:
            self.done.append(done)
        self.left -= 1
        return LoopLease(number=len(self.done) + 1, **self.of_lease) if self.left >= 0 else None


@pytest.fixture
def connected():
    def connect(source):
        loop.connect(source)
        return source

    yield connect
    loop.connect(None)


def test_leases_go_on_where_the_last_one_ended_and_begin_again_at_the_end_of_a_pass():
    taken = []
    for lease in LoopWorker(Given(3)):
        taken.append(list(lease.batches([[0], [1], [2], [3], [4]], steps=2)))
    assert taken == [[[0], [1]]] * 3, "each list is a loader of its own"
    loader, taken = [[0], [1], [2], [3], [4]], []
    for lease in LoopWorker(Given(3)):
        taken.append(list(lease.batches(loader, steps=2)))
    assert taken == [[[0], [1]], [[2], [3]], [[4], [0]]]


def test_without_steps_a_lease_ends_with_the_pass():
    loader, taken = [[0], [1], [2]], []
    for lease in LoopWorker(Given(2)):
        taken.append(list(lease.batches(loader)))
    assert taken == [loader, loader]


def test_a_lease_ends_at_its_deadline_its_examples_or_the_seconds_that_the_loop_gives_it():
    loader = [[1, 2, 3]] * 10
    assert len(list(LoopLease(number=1, due_in_s=0.0).batches(loader, steps=5))) == 1, "one step is always taken"
    assert len(list(LoopLease(number=1, examples=7).batches(loader, steps=5))) == 3
    assert len(list(LoopLease(number=1).batches(loader, steps=5, seconds=0.0))) == 1
    assert len(list(LoopLease(number=1).batches(loader, steps=5, seconds=60.0))) == 5


def test_a_lease_that_is_left_early_counts_what_was_trained():
    lease = LoopLease(number=1)
    for _ in lease.batches([[1, 2], [3, 4], [5, 6]], steps=3):
        break
    assert (lease.steps, lease.examples) == (1, 2)


@pytest.mark.parametrize("loader", [[], iter(())])
def test_a_loader_without_batches_is_told(loader):
    with pytest.raises(Misuse, match="has no batches"):
        list(LoopLease(number=1).batches(loader, steps=1))


def test_a_generator_that_ends_cannot_be_read_again():
    loader = (batch for batch in [[1], [2]])
    with pytest.raises(Misuse, match="cannot be read a second time"):
        list(LoopLease(number=1).batches(loader, steps=3))


def test_a_lease_that_trained_nothing_is_told():
    worker = LoopWorker(Given(2))
    next(worker)
    with pytest.raises(Misuse, match="the lease trained nothing"):
        next(worker)


def test_a_loop_without_batches_counts_by_what_it_logs():
    given = Given(1)
    for lease in LoopWorker(given):
        lease.log("loss", 3.0, 2)
        lease.log("loss", 1.0, 2)
    assert (given.done[0].examples, given.done[0].loss) == (4, 1.0)
    assert given.done[0].logged.others() == ()
    with pytest.raises(Misuse, match="a metric has a name"):
        lease.log("", 1.0)
    with pytest.raises(Misuse, match="a weight"):
        lease.log("loss", 1.0, float("nan"))
    with pytest.raises(Misuse, match="at least one step"):
        list(lease.batches([[1]], steps=0))


class Shaped:
    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (Shaped(4, 2), 4),
        ((Shaped(3, 2), Shaped(3)), 3),
        ({"x": Shaped(5), "y": Shaped(9)}, 5),
        ([{"x": Shaped(6)}], 6),
        (["a", "b"], 2),
        (Shaped(), 1),
        (None, 1),
        ({}, 1),
        ("text", 1),
    ],
)
def test_a_batch_counts_as_many_examples_as_its_first_tensor_has(batch, count):
    assert count_of(batch) == count


def test_the_size_of_a_loader_is_that_of_its_dataset():
    loader = type("Loader", (), {"dataset": [1, 2, 3], "__len__": lambda self: 1})()
    assert (size_of(loader), size_of([1]), size_of(iter(()))) == (3, 1, 0)


def test_a_script_lends_one_loop(connected):
    source = connected(Given(1))
    assert loop.is_lent()
    loop.worker("model")
    assert source.attached == ["model"]
    with pytest.raises(Misuse, match="a second time"):
        loop.worker("model")


def test_a_framework_steps_through_leases(connected):
    source = connected(Given(3))
    stepper = Stepper("model", steps=2)
    for _ in range(2):
        # Two batches a step: their losses are halves of it.
        for _ in range(2):
            stepper.batch(4, 0.25)
            stepper.batch(4, 0.25)
            stepper.step()
    assert [(lease.steps, lease.examples, lease.loss) for lease in source.done] == [(2, 16, 0.5)] * 2
    with pytest.raises(Misuse, match="at least one step"):
        Stepper("model", steps=0)


def test_loaders_hold_on_to_what_they_read():
    """An identity is given again once its object is gone."""
    loaders = Loaders()
    assert [loaders.next([number], may_end=False) for number in range(50)] == list(range(50))


def test_the_loop_imports_no_torch():
    code = "import sys, shoal; shoal.worker; print(any(name == 'torch' for name in sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "False"
