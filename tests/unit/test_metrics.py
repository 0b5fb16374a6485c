import subprocess
import sys

import numpy as np
import pytest
import torch

import shoal
from shoal.errors import Misuse
from shoal.learning.figures import value
from shoal.learning.metrics import MetricSum
from shoal.metrics import named


def figure(sums, name="m"):
    (metric,) = named({name: sums})
    return value(metric)


def test_numbers_arrays_and_tensors_are_the_same():
    expected = (MetricSum(name="mae", kind="mean", sums=(3.0, 4.0), lower=True),)
    for total, weight in ((3, 4), (3.0, np.float32(4)), (np.array(3), 4), (torch.tensor(3.0), torch.tensor(4))):
        assert named({"mae": shoal.mean(total, weight)}) == expected


def test_the_name_says_which_way_is_better_unless_the_task_does():
    told = named(
        {
            "loss": shoal.mean(1, 1),
            "gain": shoal.mean(1, 1),
            "wait": shoal.mean(1, 1, better="lower"),
            "error found": shoal.ratio(1, 1, better="higher"),
        }
    )
    assert [metric.lower for metric in told] == [True, False, True, False]


def test_a_confusion_of_tensors_leaves_ignored_labels_out():
    predicted = torch.tensor([[0, 1], [1, 1]])
    labels = torch.tensor([[0, 1], [0, -100]])
    sums = shoal.confusion(predicted, labels, 2)
    assert sums.sums == (1.0, 1.0, 0.0, 1.0)
    assert shoal.confusion(predicted.numpy(), labels.numpy(), 2) == sums


def test_an_auc_of_any_float():
    scores, labels = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
    assert figure(shoal.auc(scores, labels)) == 0.75
    assert figure(shoal.auc(torch.tensor(scores, dtype=torch.bfloat16), torch.tensor(labels))) == 0.75
    assert figure(shoal.auc([-np.inf, np.inf], [False, True])) == 1.0


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: shoal.mean(torch.ones(3), 3), r"values of shape \[3\]: sum them up"),
        (lambda: shoal.mean("x", 3), "takes numbers, not str"),
        (lambda: shoal.mean(1, 2, better="less"), "'lower' or 'higher'"),
        (lambda: shoal.confusion([0.5], [1], 2), "class numbers"),
        (lambda: shoal.confusion([0], [2], 2), "outside 0 to 1"),
        (lambda: shoal.confusion([-1], [1], 2), "outside 0 to 1"),
        (lambda: shoal.confusion([0, 1], [1], 2), "shape"),
        (lambda: shoal.confusion([0], [1], 65), "2 to 64 classes"),
        (lambda: shoal.auc([0.5, 0.5], [1]), "2 scores and 1 labels"),
        (lambda: shoal.auc([np.nan], [1]), "not a number"),
        (lambda: shoal.auc([0.5], [2]), "0 or 1"),
        (lambda: shoal.auc(["a"], [1]), "numbers"),
        (lambda: named([1]), "must give a dict"),
        (lambda: named({1: shoal.mean(1, 1)}), "not a str"),
        (lambda: named({"f1": 0.5}), "cannot be added up"),
        (lambda: named({"": shoal.mean(1, 1)}), "1 to 64 printable"),
        (lambda: named({str(n): shoal.mean(1, 1) for n in range(33)}), "at most 32"),
    ],
)
def test_misuse_says_what_to_do(make, why):
    with pytest.raises(Misuse, match=why):
        make()


def test_measuring_imports_no_torch():
    code = "import shoal, sys; shoal.auc([0.5], [1]); shoal.metric('f1') >= 0.5; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
