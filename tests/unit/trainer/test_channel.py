import math
import socket
from dataclasses import replace

import pytest

from shoal.errors import PeerViolation
from shoal.learning.layout import Layout
from shoal.learning.metrics import MetricSum
from shoal.trainer.channel import Channel, body_bytes, decode, encode
from shoal.trainer.protocol import (
    EvalResult,
    TrainerSettings,
    TrainResult,
    answer,
    judged,
    read_evaluated,
    read_trained,
)
from shoal.wire.limits import TRAINER_MESSAGE_MAX_BYTES


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(5)
        right.settimeout(5)
        yield left, right


def test_a_message_is_a_length_and_json():
    assert encode({"kind": "stop"}) == b'\x00\x00\x00\x0f{"kind":"stop"}'


def test_messages_cross_whole_and_in_order(ends):
    left, right = Channel(ends[0]), Channel(ends[1])
    for number in range(3):
        left.send({"kind": "count", "number": number, "text": "µ" * 1000})
    assert [right.receive()["number"] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("sent", [b"", b"\x00\x00", b'\x00\x00\x00\x0f{"kind"'])
def test_an_end_anywhere_is_an_end(ends, sent):
    ends[0].sendall(sent)
    ends[0].shutdown(socket.SHUT_WR)
    assert Channel(ends[1]).receive() is None


@pytest.mark.parametrize("length", [0, 1, TRAINER_MESSAGE_MAX_BYTES + 1, 0xFFFFFFFF])
def test_absurd_lengths_are_refused_before_anything_is_read(length):
    with pytest.raises(PeerViolation):
        body_bytes(length.to_bytes(4, "big"))


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"kind":3}', b"\xff\xff", b"[" * 100_000, b"9" * 5000])
def test_what_is_no_message(body):
    with pytest.raises(PeerViolation):
        decode(body)


def test_too_large_or_not_json_is_not_sent():
    with pytest.raises(PeerViolation):
        encode({"kind": "x", "text": "x" * TRAINER_MESSAGE_MAX_BYTES})
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"kind": "x", "loss": math.nan})


def test_settings_cross_unchanged():
    settings = TrainerSettings(
        bundle_dir="/b",
        entry="task:T",
        arguments={"depth": [1, None]},
        train=("a", "b"),
        layout=Layout.of([("w", (2,), "parameter"), ("m", (1,), "buffer")]),
        seed=2**63,
        batch_size=4,
        learning_rate=0.1,
        pace_s=0.5,
    )
    assert TrainerSettings.from_message(decode(encode(settings.to_message())[4:])) == settings


def test_results_cross_with_nan_as_none():
    trained = TrainResult(examples=3, loss_sum=1.5, seconds=0.25, finite=True)
    assert read_trained(decode(encode(answer("trained", trained))[4:])) == trained
    broken = read_trained(answer("trained", TrainResult(examples=3, loss_sum=math.inf, seconds=0.1, finite=False)))
    assert math.isnan(broken.loss_sum)
    evaluated = judged(examples=3, loss_sum=1.5, correct=2, seconds=0.0)
    assert read_evaluated(decode(encode(answer("evaluated", evaluated))[4:])) == evaluated
    fresh = replace(trained, fresh=3, fresh_metrics=evaluated.metrics, logged=evaluated.metrics[:1])
    assert read_trained(decode(encode(answer("trained", fresh))[4:])) == fresh
    lost = judged(examples=3, loss_sum=math.inf, correct=2, seconds=0.0)
    read = read_evaluated(decode(encode(answer("evaluated", lost))[4:]))
    assert read.metrics[0] == lost.metrics[0]
    assert math.isnan(read.metrics[1].sums[0])


def test_as_many_metrics_as_there_may_be_cross():
    square = MetricSum(name="x", kind="confusion", sums=(123456789.0,) * 4096)
    result = EvalResult(examples=3, metrics=tuple(replace(square, name=str(n)) for n in range(4)), seconds=0.0)
    assert read_evaluated(decode(encode(answer("evaluated", result))[4:])) == result


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [["f1", "f1", [1, 2], False]],
        [["f1", "f1", [1, 2, 3]]],
        [["f1", "f1", [1, 2, "3"], False]],
        [["f1", "f1", [1, 2, True], False]],
        [["f1", "f1", [1, 2, 3], 0]],
        [["f1", "median", [1, 2, 3], False]],
        [["", "f1", [1, 2, 3], False]],
        [["m", "mean", [1, 2], False]] * 2,
        [[str(n), "mean", [1, 2], False] for n in range(33)],
        [["m", "confusion", [1] * 65 * 65, False]],
        [7],
    ],
)
def test_unsound_metrics_are_refused(rows):
    with pytest.raises(PeerViolation, match="the trainer answered"):
        read_evaluated({"kind": "evaluated", "examples": 1, "seconds": 0.0, "metrics": rows})


def test_a_sum_that_no_float_holds_is_not_finite():
    told = {"kind": "evaluated", "examples": 1, "seconds": 0.0, "metrics": [["m", "mean", [10**400, 1], False]]}
    assert math.isnan(read_evaluated(told).metrics[0].sums[0])


@pytest.mark.parametrize("change", [{"examples": "3"}, {"finite": 1}, {"seconds": True}, {"loss_sum": []}])
def test_unsound_results_are_refused(change):
    sound = answer("trained", TrainResult(examples=3, loss_sum=1.5, seconds=0.25, finite=True))
    with pytest.raises(PeerViolation, match="without a sound"):
        read_trained(sound | change)
