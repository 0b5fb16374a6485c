"""Every reader of bytes that others send us, under one name each, with sound inputs to start from.

A reader either returns a sound value or raises a ShoalError. Properties (``tests/property/test_decoders.py``) and the
fuzzer (``fuzz_one.py``) both take them from here.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse
from shoal.errors import Corrupt, PeerViolation
from shoal.identity import certificates
from shoal.identity.enrolment import _enrolled, _json_object, _Request, _Return
from shoal.identity.identity import Authority, Identity
from shoal.identity.join_code import JoinCode
from shoal.identity.names import RemoteIdentity
from shoal.identity.signing import check, sign
from shoal.learning.layout import Layout
from shoal.learning.metrics import judged_sums
from shoal.net.access import Access
from shoal.plan import Plan
from shoal.roles.actions import Save
from shoal.roles.evaluation_rows import row_of
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.machine import Machine
from shoal.roles.node.checkpoint_transfer import packed, unpacked, version_of
from shoal.scheduling.ledger import Applied
from shoal.trainer import channel, protocol
from shoal.trainer.bundle import unpack
from shoal.trainer.prepared_job import PreparedJob
from shoal.trainer.shards import Manifest, Shard
from shoal.wire import tensors
from shoal.wire.coded import decode, encode, sizes_of
from shoal.wire.encoding import decode_envelope, encode_envelope
from shoal.wire.frames import frames, read_chunk_frame, read_message
from shoal.wire.limits import BUNDLE_UNPACKED_MAX_BYTES, REPLY_MAX_BYTES
from shoal.wire.messages import (
    Admit,
    AggregatorReady,
    AskCheckpoint,
    AskPool,
    AskStatus,
    BadShard,
    Blob,
    Caught,
    Checkpoint,
    Command,
    Dataset,
    Evaluated,
    EvaluationView,
    ExecutorView,
    Facts,
    Failed,
    Forget,
    Heartbeat,
    Hello,
    Hop,
    JobSpec,
    LeaderUnreachable,
    Leads,
    Leave,
    Lend,
    LogRecord,
    Measure,
    Message,
    ModelShard,
    ModelTransfer,
    NeedOperand,
    NodeView,
    Offer,
    PartialSum,
    PeerStatus,
    Pool,
    Progress,
    Ready,
    Reduce,
    ReduceResult,
    RelayModel,
    Request,
    Revoke,
    RightOperand,
    Route,
    Routed,
    SetUpAggregator,
    ShardAck,
    Status,
    SteppedDown,
    TearDown,
    TileResult,
    TileTask,
    Update,
    UpdateShard,
    WorkerView,
)

#: What one message may make these readers take.
PAYLOAD_BYTES = 64 << 10

LENGTH_BYTES = 3


@dataclass(frozen=True, kw_only=True)
class Family:
    read: Callable[[bytes], object]
    #: Made when first asked for: some need keys.
    make_seeds: Callable[[], list[bytes]]

    @functools.cached_property
    def seeds(self) -> list[bytes]:
        return self.make_seeds()


# The wire -------------------------------------------------------------------------------------------------


def sound_messages() -> list[Message]:
    delta = np.linspace(-1, 1, 20, dtype=np.float32)
    return [
        Hello(node="liar", incarnation="1", facts=Facts(host="pi", cpus=4, torch="2.11")),
        Heartbeat(seq=7, load=0.5, memory_free_mb=100),
        Leave(reason="because"),
        Ready(job="echo", holds_term=1, holds_version=3),
        Offer(job="echo", term=1, lease=1, size_bytes=80),
        Update(job="echo", term=1, lease=1, version=0, examples=1, loss_sum=0.5, tensors={"delta": delta}),
        Evaluated(
            job="echo",
            term=1,
            lease=1,
            version=0,
            examples=10,
            metrics=judged_sums(examples=10, loss_sum=1.0, correct=3),
        ),
        Failed(job="echo", term=1, lease=1, reason="it broke"),
        Progress(job="echo", term=1, state="training", workers=(WorkerView(node="liar", state="working"),)),
        Status(cluster="c", manager="manager", nodes=(NodeView(node="liar", state="alive"),)),
        Blob(sha256="0" * 64, size_bytes=3),
        AskStatus(job="echo"),
        Leads(job="echo", term=1, endpoint="127.0.0.1:7070"),
        SteppedDown(job="echo", term=1, reason="handed over", failed=True),
        LeaderUnreachable(job="echo", term=1, reason="it does not answer"),
        LogRecord(job="echo", term=1, kind="job.resumed", reason="from version 3"),
        AskCheckpoint(job="echo", term=1),
        Checkpoint(job="echo", term=1, version=3, tensors={"file": np.arange(40, dtype=np.uint8)}),
        Admit(job="echo", term=1, nodes=("device-1", "device-2")),
        Revoke(job="echo", term=1, node="device-1", reason="revoked"),
        *sound_formation(delta),
        *sound_flock(delta),
        *sound_lending(delta),
    ]


def sound_flock(delta: np.ndarray) -> list[Message]:
    """What peers say to each other."""
    now: dict[str, Any] = {"term": 2, "round": 3}
    return [
        PeerStatus(plan="0" * 64, term=2, coordinator="pi", version=2, digest="d" * 32, of=("pi", "pa"), weight=30.0),
        Command(**now, number=7, kind="take", merge=1, other="pi", reason="pi has spent more"),
        Request(**now, coordinator="pi", merge=1),
        PartialSum(**now, coordinator="pi", merge=1, of=("pi",), weight=10.0, tensors={"mean": delta}),
        ModelTransfer(version=2, digest="d" * 32, made_of=2, tensors={"model": delta}),
    ]


def sound_formation(delta: np.ndarray) -> list[Message]:
    """What a leader, an aggregator and a worker say to each other."""
    of: dict[str, Any] = {"job": "echo", "term": 1, "formation": 2}
    part = {"model": delta[:9], "velocity": delta[:4]}
    hops = (
        Hop(node="pi", endpoint="10.0.0.2:7", start=0, stop=9),
        Hop(node="pa", endpoint="[::1]:8", start=9, stop=20),
    )
    return [
        SetUpAggregator(
            **of, kind="shard", version=3, start=0, stop=9, parameters=4, members=("pi", "pa"), tensors=part
        ),
        AggregatorReady(**of, endpoint="10.0.0.2:7070"),
        Route(**of, hops=hops),
        Routed(**of, unreached=("w2",)),
        UpdateShard(**of, lease=5, version=3, tensors={"delta": delta[:9]}),
        ShardAck(**of, lease=5),
        BadShard(**of, lease=5, node="pa", reason="no such values"),
        Reduce(**of, version=4, leases=(5, 6), weights=(16.0, 4.0), scales=(1.0, 0.5), last=True),
        ReduceResult(**of, version=4, leases=(5, 6), weight=20.0, tensors={"mean": delta[:9]}),
        RelayModel(**of, version=4, tensors={"model": delta}),
        ModelShard(**of, version=4, start=0, stop=9, tensors={"model": delta[:9]}),
        TearDown(**of, reason="too few workers"),
    ]


def sound_lending(delta: np.ndarray) -> list[Message]:
    """What a client, a scheduler and an executor say to each other."""
    sides = {"rows": 2, "inner": 10, "columns": 3}
    left, right = delta.reshape(2, 10), np.resize(delta, (10, 3))
    named = "d" * 64
    return [
        Measure(number=1, **sides),
        Lend(number=1, seconds=0.5, task_max_bytes=1 << 20, rights_max_bytes=1 << 22),
        AskPool(),
        Pool(executors=3, multiply_adds_per_s=1e9, latency_s=0.01, window=8, task_max_bytes=1, right_max_bytes=1),
        TileTask(task=1, kind="tile", right=named, **sides, deadline_s=3.0, avoid=("liar",), tensors={"left": left}),
        RightOperand(right=named, tensors={"right": right}),
        NeedOperand(right=named),
        TileResult(task=1, executor="pi", seconds=0.1, tensors={"result": left @ right}),
        Caught(executor="liar", reason="no product of what it was given"),
        Forget(upto=7),
        Status(cluster="c", manager="m", executors=(ExecutorView(node="pi", state="ready", tasks=3),)),
    ]


def strung(pieces: list[bytes]) -> bytes:
    """Frames as one input: each after its length."""
    return b"".join(len(piece).to_bytes(LENGTH_BYTES, "big") + piece for piece in pieces)


def unstrung(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        at += LENGTH_BYTES
        yield data[at : at + length]
        at += length


def read_frames(data: bytes) -> object:
    return read_message(unstrung(data), max_bytes=PAYLOAD_BYTES)


def read_chunk(data: bytes) -> object:
    return bytes(read_chunk_frame(data))


def read_envelope(data: bytes) -> object:
    message, infos = decode_envelope(data, max_bytes=REPLY_MAX_BYTES)
    # What is read can be written, and reads the same.
    if not infos:
        assert decode_envelope(encode_envelope(message, max_bytes=REPLY_MAX_BYTES), max_bytes=REPLY_MAX_BYTES)
    return message


def read_envelope_at_server(data: bytes) -> object:
    """As on the control stream of a node."""
    peer = RemoteIdentity(node="liar", role="node", cluster="shoal")
    return decode_envelope(data, hears=Access(cluster="shoal").heard(peer, "Control"))


#: One of each form. The first byte of an input says which.
CODECS = tuple(map(Codec.parse, ("dense", "fp16", "bf16", "top10%", "top50%+ef+2bit", "top50%+4bit", "top100%+8bit")))


def coded_updates() -> list[bytes]:
    update = np.linspace(-1, 1, sound_layout().size, dtype=np.float32)
    sent = [encode(codec, update, sizes_of(sound_layout()))["delta"] for codec in CODECS]
    return [bytes([number]) + array.tobytes() for number, array in enumerate(sent)]


def read_coded(data: bytes) -> object:
    """As a leader reads an update; its tensor has the type its codec announces, and any length."""
    codec = CODECS[data[0] % len(CODECS)] if data else CODECS[-1]
    dtype = np.dtype({"dense": "f4", "fp16": "f2", "bf16": "u2", "top": "u1"}[codec.form])
    body = data[1:]
    array = np.frombuffer(body[: len(body) - len(body) % dtype.itemsize], dtype=dtype)
    update = decode(codec, {"delta": array}, sizes_of(sound_layout()))
    flat = update.dense() if isinstance(update, Sparse) else update
    assert flat.shape == (sound_layout().size,)
    assert np.isfinite(flat).all()
    return update


# Files -----------------------------------------------------------------------------------------------------


def tensor_file() -> bytes:
    file = io.BytesIO()
    tensors.write(file, {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, bool)}, {"note": "text"})
    return file.getvalue()


def sent_checkpoints() -> list[bytes]:
    """The files inside: of a version with history, and of one without."""
    machine = Machine()
    machine.now_s = 1.0
    course = TrainingState(
        machine, sound_spec(), sound_layout(), np.linspace(-1, 1, sound_layout().size, dtype=np.float32)
    )
    model, state = course.snapshot()
    state |= {"job": "echo", "version": 1, "term": 1, "ending": None}
    view = EvaluationView(version=1, epoch=0, accuracy=0.5, loss=1.0, examples=10, seconds=2.0)
    rows = tuple(Applied(epoch=0, batch=at, version=1, node=f"device-{at}", lease=at) for at in range(3))
    saves = [
        Save(version=1, tensors=model, state={**state, "evaluations": told}, applied=applied, evaluations=())
        for told, applied in (([row_of(view)], rows), ([], ()))
    ]
    return [packed(version_of(save), job="echo", term=1).tensors["file"].tobytes() for save in saves]


def read_sent_checkpoint(data: bytes) -> object:
    """As the manager reads what a leader elsewhere sends it."""
    file = np.frombuffer(data, dtype=np.uint8)
    version = unpacked(Checkpoint(job="echo", term=1, version=1, tensors={"file": file}))
    assert version is not None
    assert version.version == 1
    assert all(np.isfinite(array).all() for array in version.tensors.values())
    # What is read can be written down: names are text, and no row is of a version to come.
    assert all(isinstance(row.node, str) and row.version <= 1 for row in version.applied)
    for view in version.evaluations:
        # A damaged name may leave no metric that is called accuracy.
        is_measured = any(metric.name == "accuracy" for metric in view.metrics)
        assert isinstance(view.accuracy, float | int) == is_measured
    return version


def sound_layout() -> Layout:
    return Layout.of([("weight", (3, 2), "parameter"), ("bias", (3,), "parameter"), ("mean", (3,), "buffer")])


def read_layout(data: bytes) -> object:
    layout = Layout.from_json(data.decode("utf-8", "replace"))
    assert Layout.from_json(layout.to_json()) == layout
    return layout


def sound_manifest() -> Manifest:
    return Manifest(
        examples=5, shards=(Shard(sha256="a" * 64, examples=3, bytes=9), Shard(sha256="b" * 64, examples=2, bytes=7))
    )


def read_manifest(data: bytes) -> object:
    manifest = Manifest.from_json(data)
    assert all("/" not in shard.sha256 and shard.examples >= 0 for shard in manifest.shards)
    return manifest


def sound_prepared() -> bytes:
    prepared = PreparedJob(
        model="/m",
        model_sha256="c" * 64,
        layout=sound_layout(),
        train=sound_manifest(),
        test=sound_manifest(),
        shards="/s",
        plan={"batch_size": 1},
        gmacs_per_example=0.1,
    )
    return json.dumps(prepared.to_plain()).encode()


def read_prepared(data: bytes) -> object:
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        raise Corrupt("not JSON") from None
    return PreparedJob.from_plain(plain)


def zipped(entries: list[tuple[str, bytes]], *, how: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, how)
    return file.getvalue()


def read_bundle(data: bytes) -> object:
    with tempfile.TemporaryDirectory(prefix="shoal-bundle-") as folder:
        outer = Path(folder)
        inner = outer / "inner"
        try:
            unpack(data, inner)
        finally:
            # Whatever became of it, all there is lies inside, is a plain file and within the limit.
            assert {path.name for path in outer.iterdir()} <= {"inner"}
            paths = list(inner.rglob("*")) if inner.exists() else []
            assert all(not path.is_symlink() and (path.is_file() or path.is_dir()) for path in paths)
            size_bytes = sum(path.stat().st_size for path in paths if path.is_file())
            assert size_bytes <= BUNDLE_UNPACKED_MAX_BYTES
        return sorted(str(path.relative_to(inner)) for path in paths)


# The trainer -----------------------------------------------------------------------------------------------


def trainer_bodies() -> list[bytes]:
    values = [
        protocol.answer("loaded", protocol.TaskLoaded(train_examples=1, test_examples=2, seconds=0.5, engine="torch")),
        protocol.answer("trained", protocol.TrainResult(examples=1, loss_sum=0.5, seconds=0.1, finite=True)),
        protocol.answer("evaluated", protocol.judged(examples=1, loss_sum=0.5, correct=1, seconds=0.1)),
    ]
    return [channel.encode(value) for value in values]


def read_trainer(data: bytes) -> object:
    body = data[channel.PREFIX_BYTES :]
    length = channel.body_bytes(data[: channel.PREFIX_BYTES])
    message = channel.decode(body[:length])
    refused: PeerViolation | None = None
    for read in (protocol.read_loaded, protocol.read_trained, protocol.read_evaluated):
        try:
            return read(message)
        except PeerViolation as violation:
            refused = violation
    assert refused is not None
    raise refused


# Joining ---------------------------------------------------------------------------------------------------


@functools.cache
def cluster() -> tuple[Authority, Identity, JoinCode, certificates.Request]:
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.create(Path(folder) / "authority", "shoal")
    manager = authority.identity(node="manager", role="manager")
    code = JoinCode(host="127.0.0.1", port=7071, ca_sha256=authority.fingerprint, secret="0" * 32)
    return authority, manager, code, certificates.new_request("device-1")


def join_line() -> bytes:
    return str(cluster()[2]).encode()


def read_join_line(data: bytes) -> object:
    code = JoinCode.parse(data.decode("utf-8", "replace"))
    assert JoinCode.parse(str(code)) == code
    return code


def enrolment_request() -> bytes:
    request = cluster()[3]
    content = {"secret": "0" * 32, "csr_pem": request.pem.decode(), "wanted": "device-1", "facts": {"arch": "arm64"}}
    return json.dumps(content).encode()


def enrolment_return() -> bytes:
    return json.dumps({"certificate": "0" * 64, "csr_pem": cluster()[3].pem.decode()}).encode()


def read_enrolment_request(data: bytes) -> object:
    """As for a device whose secret or certificate was good: its signing request is read, too."""
    content = _json_object(data)
    if "certificate" in content:
        return certificates.requested_key_sha256(_Return.from_json(content).csr_pem.encode())
    request = _Request.from_json(content)
    return cluster()[0].issue(node=request.wanted, role="node", csr_pem=request.csr_pem.encode())


def enrolment_reply() -> bytes:
    authority, _, _, request = cluster()
    certificate = authority.issue(node="device-1", role="node", csr_pem=request.pem)
    content = {
        "certificate_pem": certificate.decode(),
        "node": "device-1",
        "role": "node",
        "cluster": "shoal",
        "manager": "manager",
        "port": 7070,
    }
    return json.dumps(content | {"cluster": authority.cluster}).encode()


def read_enrolment_reply(data: bytes) -> object:
    authority, _, code, request = cluster()
    manager = RemoteIdentity(node="manager", role="manager", cluster=authority.cluster)
    return _enrolled(code, request.key_pem, manager, authority.certificate_der, _json_object(data))


def member_certificate() -> bytes:
    import ssl

    return ssl.PEM_cert_to_DER_cert(cluster()[1].certificate_pem.decode())


def read_member_certificate(data: bytes) -> object:
    return certificates.authenticate(data, root_der=cluster()[0].certificate_der, now_s=time.time())


# Jobs ------------------------------------------------------------------------------------------------------


def signed_job() -> bytes:
    """A signature and a certificate, as they stand in a job."""
    signed = sign(sound_spec(), cluster()[0].identity(node="operator", role="operator"))
    return f"{signed.signature} {signed.signer_pem}".encode()


def sound_spec() -> JobSpec:
    sha256 = "a" * 64
    data = Dataset(manifest=sha256, examples=1)
    return JobSpec(
        job="echo", name="echo", entry="t:T", bundle=sha256, initial=sha256, train=data, test=data, plan=Plan()
    )


def read_signed_job(data: bytes) -> object:
    signature, _, signer_pem = data.decode("utf-8", "replace").partition(" ")
    authority = cluster()[0]
    spec = dataclasses.replace(sound_spec(), signature=signature, signer_pem=signer_pem)
    signer = check(spec, ca_pem=authority.certificate_pem, cluster=authority.cluster, now_s=None)
    assert signer == "operator", "nobody else ever signed it"
    return signer


FAMILIES: dict[str, Family] = {
    "frames": Family(read=read_frames, make_seeds=lambda: [strung(list(frames(m))) for m in sound_messages()]),
    "chunk": Family(read=read_chunk, make_seeds=lambda: [b"\x12\x03abc", b"\x12\x80\x01" + bytes(128)]),
    "envelope": Family(read=read_envelope, make_seeds=lambda: [encode_envelope(m) for m in sound_messages()]),
    "server": Family(read=read_envelope_at_server, make_seeds=lambda: [encode_envelope(m) for m in sound_messages()]),
    "coded": Family(read=read_coded, make_seeds=coded_updates),
    "tensors": Family(read=tensors.read, make_seeds=lambda: [tensor_file()]),
    "checkpoint": Family(read=read_sent_checkpoint, make_seeds=sent_checkpoints),
    "layout": Family(read=read_layout, make_seeds=lambda: [sound_layout().to_json().encode()]),
    "manifest": Family(read=read_manifest, make_seeds=lambda: [json.dumps(sound_manifest().to_plain()).encode()]),
    "prepared": Family(read=read_prepared, make_seeds=lambda: [sound_prepared()]),
    "bundle": Family(
        read=read_bundle,
        make_seeds=lambda: [
            zipped([("task.py", b"x = 1\n"), ("net/layers.py", b"y = 2\n" * 50)], how=how)
            for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
        ],
    ),
    "trainer": Family(read=read_trainer, make_seeds=trainer_bodies),
    "join": Family(read=read_join_line, make_seeds=lambda: [join_line()]),
    "request": Family(read=read_enrolment_request, make_seeds=lambda: [enrolment_request(), enrolment_return()]),
    "reply": Family(read=read_enrolment_reply, make_seeds=lambda: [enrolment_reply()]),
    "certificate": Family(read=read_member_certificate, make_seeds=lambda: [member_certificate()]),
    "signature": Family(read=read_signed_job, make_seeds=lambda: [signed_job()]),
}
