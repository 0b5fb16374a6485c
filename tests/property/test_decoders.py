"""Whatever bytes arrive: a reader gives a sound value or refuses by name, soon, and without taking much memory."""

from __future__ import annotations

import io
import json
import stat
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FUZZ = str(Path(__file__).resolve().parent.parent / "fuzz")
if FUZZ not in sys.path:
    sys.path.insert(0, FUZZ)

from families import FAMILIES, Family, read_bundle, read_envelope_at_server, zipped  # noqa: E402

from shoal.errors import Corrupt, Misuse, PeerViolation, Refused, ShoalError  # noqa: E402
from shoal.learning.layout import Layout  # noqa: E402
from shoal.trainer.shards import Manifest  # noqa: E402
from shoal.wire import contract  # noqa: E402
from shoal.wire.encoding import decode_envelope  # noqa: E402
from shoal.wire.limits import BUNDLE_UNPACKED_MAX_BYTES, ENVELOPE_MAX_BYTES, WORKERS_TOLD_MAX  # noqa: E402

#: Far above what any of these inputs of a few hundred bytes needs, far below what an attack would take.
MEMORY_BYTES = 8 << 20
SECONDS = 2.0

#: No text is drawn from nothing that a reader of JSON would look at twice: these pieces are.
WORDS = [
    *(b'{}[],:" \\\0\n', b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 400, b"\xff\xfe", b"\xc3\x28", b"\\ud800"),
    *(b'"examples"', b'"shards"', b'"sha256"', b'"kind"', b'"parameter"', b'"secret"', b'"facts"', b'"../../etc"'),
    *(b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"\x0a\x80\x80", b"\x12\xff\xff\xff\xff\x7f", b"\x80" * 12),
    *(b"shoal://", b"[::1%25]", b"-----BEGIN CERTIFICATE-----\n", b"\x30\x82\xff\xff"),
]


@contextmanager
def bounded() -> Iterator[None]:
    tracemalloc.start()
    began_s = time.monotonic()
    try:
        yield
        assert time.monotonic() - began_s < SECONDS
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def read_or_refuse(family: Family, data: bytes) -> None:
    """Any other error than ours fails the test."""
    with bounded():
        said = "read"
        try:
            family.read(data)
        except ShoalError as error:
            said = str(error)
        # What cannot be encoded cannot be logged or told.
        assert said.encode()


@st.composite
def mutations(draw: st.DrawFn, seed: bytes) -> bytes:
    """A sound input, changed in a few places."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 5)):
            case 0 if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1 if at < len(data):
                data[at] = draw(st.sampled_from([0x00, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = draw(st.sampled_from(WORDS) | st.binary(max_size=8))
            case 4:
                end = draw(st.integers(at, len(data)))
                data[at:end] = b""
            case _:
                end = min(len(data), at + draw(st.integers(0, 40)))
                data[at:at] = data[at:end] * draw(st.integers(1, 3))
    return bytes(data)


@pytest.mark.parametrize("name", FAMILIES)
def test_sound_inputs_are_read_or_known_to_be_refused(name: str) -> None:
    """Else the mutations of them below would test nothing."""
    family = FAMILIES[name]
    refused = 0
    for seed in family.seeds:
        try:
            family.read(seed)
        except PeerViolation:
            refused += 1
    # On a control stream nothing is heard of work, blobs or status, nor what only a manager says; a bundle is not
    # packed by bzip2 or lzma.
    assert refused == {"server": 40, "bundle": 2}.get(name, 0)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300) | st.lists(st.sampled_from(WORDS), max_size=12).map(b"".join))
def test_arbitrary_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    read_or_refuse(FAMILIES[name], data)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=80, deadline=None)
@given(drawn=st.data())
def test_damaged_inputs_are_read_or_refused(name: str, drawn: st.DataObject) -> None:
    seed = drawn.draw(st.sampled_from(FAMILIES[name].seeds))
    read_or_refuse(FAMILIES[name], drawn.draw(mutations(seed)))


@pytest.mark.parametrize("name", ["layout", "manifest", "prepared", "trainer", "request", "reply"])
@pytest.mark.parametrize("opening", [b"[", b'{"kind":', b'{"examples":1,"shards":['])
def test_deep_nesting_is_refused(name: str, opening: bytes) -> None:
    body = opening * 5_000
    read_or_refuse(FAMILIES[name], len(body).to_bytes(4, "big") + body if name == "trainer" else body)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("a" * 64),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["examples", "shards", "sha256", "bytes", "model", "plan"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(PLAIN, st.sampled_from(["examples", "shards", "model", "layout", "train", "test", "plan", "gmacs_per_example"]))
def test_json_of_any_shape_is_read_or_refused(value: object, name: str) -> None:
    for family in ("manifest", "layout", "request", "reply"):
        read_or_refuse(FAMILIES[family], json.dumps(value).encode())
    whole = json.loads(FAMILIES["prepared"].seeds[0])
    read_or_refuse(FAMILIES["prepared"], json.dumps(whole | {name: value}).encode())


# Attacks by name -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sha256", ["../" * 10 + "etc/passwd", "/etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", "", "a" * 63 + "\0"]
)
def test_a_shard_is_named_by_its_hash_and_never_by_a_path(sha256: str) -> None:
    with pytest.raises(Corrupt):
        Manifest.from_plain({"examples": 1, "shards": [{"sha256": sha256, "examples": 1, "bytes": 1}]})


@pytest.mark.parametrize("change", [{"examples": 2}, {"examples": True}, {"examples": -1}, {"shards": {}}, {"more": 1}])
def test_a_manifest_adds_up(change: dict[str, object]) -> None:
    plain = {"examples": 1, "shards": [{"sha256": "a" * 64, "examples": 1, "bytes": 1}]}
    assert Manifest.from_plain(plain).examples == 1
    with pytest.raises(Corrupt):
        Manifest.from_plain(plain | change)


def test_what_is_said_of_a_layout_stays_short() -> None:
    with pytest.raises(Misuse) as refusal:
        Layout.from_json(json.dumps([["weight", [1 << 60] * 30_000, "parameter"]]))
    assert len(str(refusal.value)) < 1000


def empty_parts(count: int) -> bytes:
    """An envelope of a progress report with this many workers of no bytes each."""
    envelope = contract.Envelope()
    envelope.progress.job, envelope.progress.state = "echo", "training"
    for _ in range(count):
        envelope.progress.workers.add()
    return bytes(envelope.SerializeToString())


def test_an_envelope_full_of_tiny_parts_is_refused_before_they_are_built() -> None:
    full = empty_parts(ENVELOPE_MAX_BYTES // 3 - 64)
    assert len(full) <= ENVELOPE_MAX_BYTES
    began_s = time.process_time()
    with pytest.raises(PeerViolation, match=f"the maximum is {WORKERS_TOLD_MAX}"):
        decode_envelope(full)
    assert time.process_time() - began_s < 0.05
    message, _ = decode_envelope(empty_parts(WORKERS_TOLD_MAX))
    assert len(message.workers) == WORKERS_TOLD_MAX  # type: ignore[attr-defined]


def test_a_message_for_others_is_refused_before_it_is_built() -> None:
    envelope = contract.Envelope()
    for _ in range(ENVELOPE_MAX_BYTES // 2 - 64):
        envelope.status.nodes.add()
    frame, took_s = envelope.SerializeToString(), []
    for _ in range(3):
        began_s = time.process_time()
        with pytest.raises(PeerViolation, match="Status may not be sent here"):
            read_envelope_at_server(frame)
        took_s.append(time.process_time() - began_s)
    # The quickest: caches are cold on a busy machine.
    assert min(took_s) < 0.05


BOMB = bytes(BUNDLE_UNPACKED_MAX_BYTES + 1)
MODES = {"a link": stat.S_IFLNK | 0o777, "a pipe": stat.S_IFIFO | 0o644, "a device": stat.S_IFBLK | 0o644}


def with_mode(mode: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo("task.py")
        info.create_system, info.external_attr = 3, mode << 16
        archive.writestr(info, "/etc/passwd")
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        *((lambda mode=mode: with_mode(mode), "not a regular file") for mode in MODES.values()),
        *(
            (lambda name=name: zipped([(name, b"x")]), "unsafe name")
            for name in (
                "../task.py",
                "a/../../task.py",
                "/etc/task.py",
                "c:task.py",
                "a\\b",
                ".",
                "a//b",
                "a/",
                "x" * 600,
            )
        ),
        (lambda: zipped([("task.py", b"1"), ("task.py", b"2")]), "unsafe name"),
        (lambda: zipped([("a", b"1"), ("a/b", b"2")]), "does not unpack here"),
        (lambda: zipped([(f"{i}.py", b"") for i in range(1001)]), "too many files|lists 1001 files"),
        (lambda: zipped([("zeros", BOMB)]), "unpacks to"),
        (lambda: zipped([("zeros", BOMB[: 8 << 20])], how=zipfile.ZIP_BZIP2), "neither stored nor deflated"),
        (lambda: zipped([("zeros", BOMB[: 8 << 20])], how=zipfile.ZIP_LZMA), "neither stored nor deflated"),
    ],
)
def test_a_hostile_bundle_is_refused_for_what_it_is(data: object, said: str) -> None:
    made = data()  # type: ignore[operator]
    with bounded(), pytest.raises(PeerViolation, match=said):
        read_bundle(made)


def test_a_certificate_with_any_one_byte_changed_is_refused() -> None:
    """0xA3 and 0xA5 make a name of a kind that the parser knows of and does not support."""
    family = FAMILIES["certificate"]
    (seed,) = family.seeds
    for place in range(len(seed)):
        for value in (0xA3, 0xA5, seed[place] ^ 0x80):
            if value != seed[place]:
                with pytest.raises(PeerViolation):
                    family.read(seed[:place] + bytes([value]) + seed[place + 1 :])


def test_a_cluster_that_says_no_is_believed() -> None:
    with pytest.raises(Refused, match="not today"):
        FAMILIES["reply"].read(b'{"refused": "not today"}')
