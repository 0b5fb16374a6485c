"""Frames that no honest node sends, drawn from a seed, for ``hostile_frames``. Knows the wire, no sockets.

An attack is what one stream brings: some frames on one lane; the last is usually the one too many. Attacks
with tensors are for a job of ``VALUES`` parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.compress.codec import Codec
from shoal.learning.metrics import judged_sums
from shoal.states import JobState
from shoal.wire import contract
from shoal.wire.coded import encode
from shoal.wire.frames import chunk_frame, envelope_frame, frames
from shoal.wire.limits import ENVELOPE_MAX_BYTES, MESSAGE_MAX_BYTES, MESSAGE_TENSORS_MAX
from shoal.wire.messages import (
    Admit,
    AggregatorReady,
    AskCheckpoint,
    AskStatus,
    BadShard,
    Blob,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Dismiss,
    Evaluated,
    Facts,
    Failed,
    Finished,
    Go,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Hop,
    Lane,
    LeaderUnreachable,
    Leads,
    Leave,
    LogRecord,
    Message,
    ModelShard,
    Offer,
    Progress,
    PublishModel,
    Ready,
    Reduce,
    ReduceResult,
    RelayModel,
    Release,
    Revoke,
    RollBackModel,
    Route,
    Routed,
    SetUpAggregator,
    ShardAck,
    Status,
    StepDown,
    SteppedDown,
    StopJob,
    StopRequest,
    TearDown,
    TransferJob,
    Update,
    UpdateShard,
    Wait,
    Welcome,
    Work,
    WorkerView,
)

VALUES = 20

#: What attacks on coded updates begin with.
CODECS = ("top10%", "top100%", "top10%+2bit", "top50%+4bit", "top100%+8bit", "bf16", "fp16")

#: Evaluations: one that no lease holds, and one of a single example.
_ABSURD = judged_sums(examples=1 << 60, loss_sum=1e99, correct=1 << 59)
_ONE_RIGHT = judged_sums(examples=1, loss_sum=0, correct=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    kind: str
    lane: Lane
    frames: tuple[bytes, ...]
    #: Whether the last frame must end the stream.
    ends: bool


class Malice:
    """Draws attacks of one node in turn. The same seed draws the same."""

    def __init__(self, seed: int, *, node: str, job: str, at: str = "manager") -> None:
        """``at``: whose door it is, the manager's or a ``leader``'s."""
        self._chance = np.random.default_rng(seed)
        self._node = node
        self._job = job
        self._at = at
        self._kinds: tuple[Callable[[], Attack], ...] = (
            self._random_bytes,
            self._cut_short,
            self._mutated,
            self._wrong_lane,
            self._not_for_them,
            self._usurped,
            self._sick_checkpoint,
            self._no_piece,
            self._sick_sum,
            self._huge_length,
            self._impossible_shape,
            self._sick_values,
            self._sick_code,
            self._other_type,
            self._stale,
            self._other_name,
            self._replay,
            self._flood,
            self._chunk_alone,
            self._endless,
            self._deep,
            self._not_text,
            self._wrong_chunk,
            self._escape,
            self._abandoned,
            self._many_tensors,
            self._eager,
        )

    def attacks(self) -> Iterator[Attack]:
        while True:
            for number in self._chance.permutation(len(self._kinds)):
                yield self._kinds[number]()

    # Nonsense ---------------------------------------------------------------------------------------------

    def _random_bytes(self) -> Attack:
        return self._attack("random bytes", self._lane(), self._bytes(0, 400), ends=False)

    def _cut_short(self) -> Attack:
        message = self._message()
        frame = next(frames(message))
        return self._attack("cut short", message.rule.lane, frame[: self._below(1, len(frame))], ends=False)

    def _mutated(self) -> Attack:
        message = self._message()
        frame = bytearray(next(frames(message)))
        for _ in range(self._below(1, 5)):
            frame[self._below(0, len(frame))] = self._below(0, 256)
        return self._attack("mutated", message.rule.lane, bytes(frame), ends=False)

    def _huge_length(self) -> Attack:
        tag = bytes([(0x0A, 0x12)[self._below(0, 2)]])
        length = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01")[self._below(0, 3)]
        return self._attack("huge length", self._lane(), tag + length + self._bytes(0, 50))

    def _chunk_alone(self) -> Attack:
        return self._attack("chunk without an opening", Lane.WORK, chunk_frame(self._bytes(1, 5000)))

    def _deep(self) -> Attack:
        frame = _nested((150, 1000, 5000)[self._below(0, 3)])
        return self._attack("deep", Lane.CONTROL, frame, ends=False)

    def _not_text(self) -> Attack:
        frame = envelope_frame(Leave(reason="A" * 24)).replace(b"AAAA", b"\xff\xfe\xc3\x28")
        return self._attack("not UTF-8", Lane.CONTROL, frame)

    def _endless(self) -> Attack:
        match self._below(0, 3):
            case 0:
                frame = _many_parts("progress", "workers", ENVELOPE_MAX_BYTES // 3 - 64)
            case 1:
                frame = _many_parts("status", "nodes", ENVELOPE_MAX_BYTES // 2 - 64)
            case _:
                envelope = contract.Envelope()
                envelope.leave.reason = "x" * (ENVELOPE_MAX_BYTES + self._below(-100, 500_000))
                frame = _framed(envelope)[:MESSAGE_MAX_BYTES]
        return self._attack("endless", Lane.CONTROL, frame)

    # Sound frames in the wrong place ------------------------------------------------------------------------

    def _wrong_lane(self) -> Attack:
        message = self._message()
        other = Lane.WORK if message.rule.lane is Lane.CONTROL else Lane.CONTROL
        return self._attack("wrong lane", other, next(frames(message)))

    def _not_for_them(self) -> Attack:
        job = self._job
        wrong: tuple[Message, ...] = (
            Welcome(heartbeat_s=0.0, lost_after_s=0.0),
            HeartbeatSeen(seq=1),
            Dismiss(job=job, reason="go"),
            Wait(job=job, reason="no"),
            Go(job=job, term=1, lease=1),
            Finished(job=job, reason="over"),
            Work(job=job, term=1, lease=1, kind="train", version=1, deadline_s=1.0),
            Status(cluster="c", manager="m"),
            StopJob(job=job),
            TransferJob(job=job, node=self._node),
            PublishModel(job=job),
            RollBackModel(job=job),
            AskStatus(),
            Blob(sha256="0" * 64, size_bytes=1 << 60),
            Admit(job=job, term=1, nodes=(self._node,)),
            Revoke(job=job, term=1, node="device-1"),
            StopRequest(job=job, reason="enough"),
            HandOver(job=job, term=1),
            StepDown(job=job, term=1 << 60),
            Release(job=job, node="device-1"),
            CheckpointKept(job=job, term=1, version=1),
            CheckpointRefused(job=job, term=1, version=1, reason="no"),
            SetUpAggregator(
                job=job, term=1, formation=1, kind="tree", version=1, start=0, stop=VALUES, members=(self._node,)
            ),
            Route(job=job, term=1, formation=1, hops=(Hop(node=self._node, endpoint="x:9", start=0, stop=VALUES),)),
            Reduce(job=job, term=1, formation=1, version=1, last=True),
            RelayModel(job=job, term=1, formation=1, version=1),
            ShardAck(job=job, term=1, formation=1, lease=1),
            ModelShard(job=job, term=1, formation=1, version=1, start=0, stop=VALUES),
            TearDown(job=job, term=1, formation=1),
        )
        message = wrong[self._below(0, len(wrong))]
        return self._attack(f"not for a {self._at}", message.rule.lane, envelope_frame(message))

    def _usurped(self) -> Attack:
        """What a leader says to the manager, from one that leads nothing: refused in words, and by a leader at once."""
        job, pick = self._job, self._absurd
        said: tuple[Message, ...] = (
            Leads(job=job, term=pick(), endpoint="127.0.0.1:9"),
            SteppedDown(job=job, term=pick(), reason="it is over", failed=True),
            LeaderUnreachable(job=job, term=pick(), reason="nobody answers"),
            LogRecord(job=job, term=pick(), kind="version.fenced", reason="\n12:00:00 all is well"),
            Progress(job=job, term=pick(), state=JobState.FINISHED, workers=()),
            AskCheckpoint(job=job, term=pick()),
            Checkpoint(job=job, term=pick(), version=pick()),
        )
        message = said[self._below(0, len(said))]
        return self._attack("usurped", message.rule.lane, *frames(message), ends=self._at == "leader")

    def _other_name(self) -> Attack:
        return self._attack("another's name", Lane.CONTROL, envelope_frame(Hello(node="device-1", incarnation="x")))

    def _replay(self) -> Attack:
        """The same sound frames again: none of them is wrong, none may count twice."""
        frame = next(frames(self._update(term=1, lease=self._below(1, 50))))
        return self._attack("replay", Lane.WORK, *[frame] * 4, ends=False)

    def _flood(self) -> Attack:
        beats = [envelope_frame(Heartbeat(seq=number)) for number in range(self._below(2, 20))]
        return self._attack("heartbeats", Lane.CONTROL, *beats, ends=False)

    def _eager(self) -> Attack:
        asks: list[Message] = [Ready(job=self._job), Failed(job=self._job, term=1, lease=0, reason="\x1b[2J" * 100)]
        return self._attack("eager", Lane.WORK, *(envelope_frame(ask) for ask in asks), ends=False)

    def _escape(self) -> Attack:
        facts = b"A" * 16
        frame = envelope_frame(Hello(node=self._node, incarnation="1", facts=Facts(host=facts.decode())))
        return self._attack("escape", Lane.CONTROL, frame.replace(facts, b"\x1b[2J\n12:00:00 ok"))

    # Tensors ------------------------------------------------------------------------------------------------

    def _impossible_shape(self) -> Attack:
        shapes = ([1 << 62] * 8, [-1, -VALUES], [1 << 30, 1 << 30], [0, 1 << 40], [VALUES] * 9, [1 << 28])
        return self._attack("impossible shape", Lane.WORK, self._announced(list(shapes[self._below(0, 6)])))

    def _sick_values(self) -> Attack:
        delta = np.zeros(VALUES, np.float32)
        delta[self._below(0, VALUES)] = (np.nan, np.inf, -np.inf, 3e38, 1e7)[self._below(0, 5)]
        numbers = (0.0, np.inf, -np.inf, 1e308)
        update = replace(
            self._update(lease=self._below(0, 9)), tensors={"delta": delta}, train_s=numbers[self._below(0, 4)]
        )
        return self._attack("sick values", Lane.WORK, next(frames(update)), ends=False)

    def _sick_code(self) -> Attack:
        """An update in a codec, with some of its bytes changed, cut off, or made up."""
        codec = Codec.parse(CODECS[self._below(0, len(CODECS))])
        sound = encode(codec, self._chance.normal(size=VALUES).astype(np.float32), (VALUES,))["delta"]
        delta = spoilt(sound.view(np.uint8), self._chance)
        tensors = {"delta": delta if codec.form == "top" or delta.size % 2 else delta.view(sound.dtype)}
        update = replace(self._update(lease=self._below(0, 9)), tensors=tensors)
        return self._attack("sick code", Lane.WORK, *frames(update), ends=False)

    def _sick_checkpoint(self) -> Attack:
        """Of bytes that are no checkpoint; for a job that is not there, or of a size that no model of it has."""
        size = (0, 1, 1000)[self._below(0, 3)]
        tensors = {("file", "model")[self._below(0, 2)]: np.frombuffer(self._chance.bytes(size), np.uint8)}
        checkpoint = Checkpoint(job=self._job, term=1, version=self._absurd(), tensors=tensors)
        match self._below(0, 3):
            case 0:
                return self._attack("sick checkpoint", Lane.WORK, *frames(checkpoint), ends=self._at == "leader")
            case 1:
                other = replace(checkpoint, job="no-such-job", tensors={"file": np.zeros(1, np.uint8)})
                return self._attack("checkpoint of no job", Lane.WORK, *frames(other))
            case _:
                return self._attack("huge checkpoint", Lane.WORK, _huge_checkpoint(self._job))

    def _no_piece(self) -> Attack:
        """For a formation that is not there: nobody takes its values."""
        piece = UpdateShard(
            job=self._job,
            term=1,
            formation=self._absurd(),
            lease=1,
            version=0,
            tensors={"delta": np.zeros(VALUES, np.float32)},
        )
        return self._attack("piece of no formation", Lane.WORK, next(frames(piece)))

    def _sick_sum(self) -> Attack:
        """From one that sums up for nobody."""
        mean = np.full(self._below(1, VALUES + 1), (np.nan, np.inf, 0.0)[self._below(0, 3)], np.float32)
        lease, pick = self._below(1, 50), self._absurd
        gathered = ReduceResult(
            job=self._job,
            term=1,
            formation=pick(),
            version=pick(),
            leases=(lease, lease),
            weight=(0.0, -1.0, np.inf)[self._below(0, 3)],
            tensors={"mean": mean},
        )
        return self._attack("sick sum", Lane.WORK, *frames(gathered), ends=False)

    def _other_type(self) -> Attack:
        tensors: tuple[dict[str, np.ndarray], ...] = (
            {"delta": np.zeros(VALUES // 2, np.float64)},
            {"delta": np.zeros((4, 5), np.float32)},
            {"delta": np.zeros(VALUES, np.float16), "b": np.zeros(4, np.bool_)},
            {"model": np.zeros(VALUES, np.float32)},
            {"delta": np.zeros(0, np.float32)},
        )
        update = replace(self._update(), tensors=tensors[self._below(0, 5)])
        return self._attack("other type", Lane.WORK, *frames(update), ends=False)

    def _stale(self) -> Attack:
        job, pick = self._job, self._absurd
        stale: tuple[Message, ...] = (
            self._update(term=pick(), lease=pick(), version=pick()),
            Offer(job=job, term=pick(), lease=pick(), size_bytes=pick()),
            Evaluated(job=job, term=pick(), lease=pick(), version=0, examples=pick(), metrics=_ABSURD),
            Progress(job=job, term=pick(), state=JobState.FAILED, workers=(WorkerView(node=self._node, state="x"),)),
            Ready(job="no-such-job", holds_term=pick(), holds_version=pick()),
            AggregatorReady(job=job, term=pick(), formation=pick(), endpoint="127.0.0.1:9"),
            Routed(job=job, term=pick(), formation=pick(), unreached=("device-1", "no-such-node")),
            BadShard(job=job, term=pick(), formation=pick(), lease=pick(), node="device-1", reason="\x1b[2J"),
        )
        message = stale[self._below(0, len(stale))]
        return self._attack("stale", message.rule.lane, *frames(message), ends=False)

    def _wrong_chunk(self) -> Attack:
        size = (0, 1, VALUES * 4 - 1, VALUES * 4 + 1, 60_000)[self._below(0, 5)]
        return self._attack("wrong chunk", Lane.WORK, self._announced([VALUES]), chunk_frame(bytes(size)))

    def _abandoned(self) -> Attack:
        """Announces tensors, takes the memory and leaves."""
        return self._attack("abandoned", Lane.WORK, self._announced([VALUES]), ends=False)

    def _many_tensors(self) -> Attack:
        count = (MESSAGE_TENSORS_MAX, MESSAGE_TENSORS_MAX + 1, 12_000)[self._below(0, 3)]
        return self._attack(
            "many tensors", Lane.WORK, _many_tensors(self._job, count), ends=count > MESSAGE_TENSORS_MAX
        )

    def _announced(self, shape: list[int]) -> bytes:
        envelope = contract.Envelope()
        envelope.update.job = self._job
        envelope.tensors.add(name="delta", dtype="float32", shape=shape)
        return _framed(envelope)

    # What honest ones say -------------------------------------------------------------------------------------

    def _message(self) -> Message:
        job = self._job
        sound: tuple[Message, ...] = (
            Hello(node=self._node, incarnation="1", facts=Facts(torch="x")),
            Heartbeat(seq=self._below(0, 1000), load=0.5),
            Leave(reason="because"),
            Ready(job=job),
            Offer(job=job, term=1, lease=1, size_bytes=VALUES * 4),
            self._update(),
            Evaluated(job=job, term=1, lease=1, version=0, examples=1, metrics=_ONE_RIGHT),
            Failed(job=job, term=1, lease=1, reason="it broke"),
            Progress(job=job, term=1, state="training", workers=(WorkerView(node=self._node, state="working"),)),
            Leads(job=job, term=1, endpoint="127.0.0.1:9"),
            LogRecord(job=job, term=1, kind="job.resumed", reason="from version 1"),
            AskCheckpoint(job=job, term=1),
            AggregatorReady(job=job, term=1, formation=1, endpoint="127.0.0.1:9"),
            Routed(job=job, term=1, formation=1),
            BadShard(job=job, term=1, formation=1, lease=1, node="device-1", reason="not a number"),
            ReduceResult(job=job, term=1, formation=1, version=1, tensors={"mean": np.zeros(VALUES, np.float32)}),
        )
        return sound[self._below(0, len(sound))]

    def _update(self, *, term: int = 1, lease: int = 1, version: int = 0) -> Update:
        delta = self._chance.normal(size=VALUES).astype(np.float32)
        return Update(job=self._job, term=term, lease=lease, version=version, examples=1, tensors={"delta": delta})

    # Chance ---------------------------------------------------------------------------------------------------

    def _below(self, low: int, high: int) -> int:
        return int(self._chance.integers(low, high))

    def _absurd(self) -> int:
        return (-1, 0, 7, (1 << 61), -(1 << 61))[self._below(0, 5)]

    def _bytes(self, low: int, high: int) -> bytes:
        return self._chance.bytes(self._below(low, high))

    def _lane(self) -> Lane:
        return (Lane.CONTROL, Lane.WORK)[self._below(0, 2)]

    def _attack(self, kind: str, lane: Lane, *sent: bytes, ends: bool = True) -> Attack:
        return Attack(kind=kind, lane=lane, frames=sent, ends=ends)


def spoilt(sound: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Bytes that were sound: a few changed, some cut off or added, or others in their place."""
    data = bytearray(sound.tobytes())
    match int(chance.integers(0, 5)):
        case 0:
            return np.frombuffer(chance.bytes(int(chance.integers(0, 2 * len(data) + 8))), np.uint8)
        case 1:
            del data[int(chance.integers(0, len(data) + 1)) :]
        case 2:
            data += chance.bytes(int(chance.integers(1, 40)))
        case 3:
            # The head says how many values follow, and how their places are written.
            data[: min(5, len(data))] = chance.bytes(min(5, len(data)))
        case _:
            for _ in range(int(chance.integers(1, 5))):
                data[int(chance.integers(0, len(data)))] = int(chance.integers(0, 256))
    return np.frombuffer(bytes(data), np.uint8)


def _framed(envelope: Any) -> bytes:
    data: bytes = envelope.SerializeToString()
    return b"\x0a" + _varint(len(data)) + data


@functools.cache
def _nested(depth: int) -> bytes:
    body = b""
    for _ in range(depth):
        # Field 15 of whatever this turns out to be inside of.
        body = b"\x7a" + _varint(len(body)) + body
    # A hello is field 1; its facts are a message of their own.
    hello = b"\x22" + _varint(len(body)) + body
    envelope = b"\x0a" + _varint(len(hello)) + hello
    return b"\x0a" + _varint(len(envelope)) + envelope


@functools.cache
def _many_parts(message: str, parts: str, count: int) -> bytes:
    envelope = contract.Envelope()
    target = getattr(getattr(envelope, message), parts)
    for _ in range(count):
        target.add()
    return _framed(envelope)


@functools.cache
def _many_tensors(job: str, count: int) -> bytes:
    envelope = contract.Envelope()
    envelope.update.job = job
    for number in range(count):
        envelope.tensors.add(name=str(number), dtype="float32", shape=[0])
    return _framed(envelope)


@functools.cache
def _huge_checkpoint(job: str) -> bytes:
    """Announced, and never sent."""
    envelope = contract.Envelope()
    envelope.checkpoint.job, envelope.checkpoint.term, envelope.checkpoint.version = job, 1, 1
    envelope.tensors.add(name="file", dtype="uint8", shape=[1 << 29])
    return _framed(envelope)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
