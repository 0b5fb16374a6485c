"""When it is the model, and not a device: by who contributed, and whose results are bad."""

from __future__ import annotations

from shoal.roles.leader.suspicion import Suspicion
from shoal.wire.messages import EvaluationView


def view(*, accuracy: float, loss: float) -> EvaluationView:
    return EvaluationView(version=1, epoch=1, accuracy=accuracy, loss=loss, examples=100, seconds=1.0)


def test_one_bad_device_says_nothing_of_the_model() -> None:
    suspicion = Suspicion()
    for batch in range(5):
        suspicion.on_bad("a", (batch,))
    assert suspicion.witnesses(["a"]) == []
    assert suspicion.witnesses(["a", "b", "c"]) == []


def test_most_of_them_do() -> None:
    suspicion = Suspicion()
    suspicion.on_bad("a", (1,))
    suspicion.on_bad("b", (2,))
    assert suspicion.witnesses(["a", "b", "c"]) == ["a", "b"]
    assert suspicion.witnesses(["a", "b", "c", "d"]) == [], "half is not most"
    suspicion.on_merged(["b"])
    assert suspicion.witnesses(["a", "b", "c"]) == [], "one whose next update is sound has nothing against the model"


def test_devices_that_return_nothing_are_not_waited_for_once_the_others_were_bad_twice() -> None:
    suspicion = Suspicion()
    suspicion.on_merged(["liar", "a"])
    for batch, node in enumerate("abab"):
        assert suspicion.witnesses(["a", "b", "liar", "slow"]) == []
        suspicion.on_bad(node, (batch,))
    assert suspicion.witnesses(["a", "b", "liar", "slow"]) == ["a", "b"]
    suspicion.on_merged(["slow"])
    assert suspicion.witnesses(["a", "b", "liar", "slow"]) == [], "two of four that were heard"


def test_the_same_batch_on_each_is_the_data() -> None:
    suspicion = Suspicion()
    for node in "abc":
        suspicion.on_bad(node, (7,))
    assert suspicion.witnesses(["a", "b", "c"]) == []


def test_where_there_is_no_other_batch_the_model_is_doubted_once() -> None:
    suspicion = Suspicion()
    for _ in range(2):
        suspicion.on_merged(["liar"])
        for node in "abab":
            suspicion.on_bad(node, (7,))
        seen = suspicion.witnesses(["a", "b", "liar"])
        suspicion.take_contributors()
    assert seen == [], "another model failed on it too"


def test_who_contributed_since_it_was_good_is_told_once() -> None:
    suspicion = Suspicion()
    suspicion.on_merged(["a", "b"])
    suspicion.on_found_good()
    suspicion.on_merged(["c", "a"])
    assert suspicion.take_contributors() == ["a", "c"]
    assert suspicion.take_contributors() == []


def test_an_evaluation_that_is_far_worse_is_none_to_go_back_to() -> None:
    suspicion = Suspicion()
    assert suspicion.is_sound(view(accuracy=0.1, loss=2.3))
    assert suspicion.is_sound(view(accuracy=0.98, loss=0.1))
    assert suspicion.is_sound(view(accuracy=0.97, loss=0.5)), "overfitting"
    assert not suspicion.is_sound(view(accuracy=0.1, loss=80.0))
