"""Every message there is, with values of every kind: out, in, and the same."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Misuse, PeerViolation
from shoal.learning.metrics import MetricSum
from shoal.learning.outer_rule import OUTER_KINDS
from shoal.plan import CHOICES, PUBLISH, STALENESS, Plan, Until
from shoal.states import REPORTED
from shoal.until import Goal, Plateau
from shoal.wire import contract, messages
from shoal.wire.encoding import decode_envelope, encode_envelope, from_json, to_json
from shoal.wire.limits import (
    BATCHES_MAX,
    COME_MOST_S,
    CONTRIBUTION_MAX_BYTES,
    LABELLED_MAX,
    MANAGERS_MAX,
    SECONDS_MAX,
    SIDE_MAX,
)
from shoal.wire.messages import (
    CALLS,
    PEER_PHASES,
    TASK_KINDS,
    Admit,
    AggregatorReady,
    AskContributions,
    Blob,
    Caught,
    Command,
    Contribute,
    ContributionView,
    Dataset,
    DeviceState,
    Facts,
    Heartbeat,
    Hop,
    JobSpec,
    Leads,
    Leave,
    Lend,
    LogRecord,
    Measure,
    MemberKey,
    Message,
    MetricView,
    ModelShard,
    NeedOperand,
    PartialSum,
    PeerStatus,
    Pool,
    Progress,
    Ready,
    Reduce,
    RightOperand,
    RollBackModel,
    Route,
    Routed,
    SealRoster,
    SettleContributions,
    SetUpAggregator,
    TileResult,
    TileTask,
    Update,
    Wait,
    Welcome,
    Work,
)
from shoal.wire.messages.operator import ENDED_PAGE_MAX

SHA = st.text("0123456789abcdef", min_size=64, max_size=64)
ID = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
#: What may appear on a terminal.
SHOWN = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=60)
INTEGER = st.integers(-(1 << 62) + 1, (1 << 62) - 1)
FLOAT = st.floats(allow_nan=False)
HOST = st.from_regex(r"[0-9A-Za-z.-]{1,20}", fullmatch=True) | st.from_regex(r"\[[0-9a-f:]{2,20}\]", fullmatch=True)
ENDPOINT = st.builds("{}:{}".format, HOST, st.integers(0, 65535))

NAME = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=64)
FIGURES = st.lists(
    st.builds(
        MetricView,
        name=NAME,
        value=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        lower=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda metric: metric.name,
).map(tuple)
SUMS_OF = st.sampled_from([("mean", 2), ("ratio", 2), ("f1", 3), ("confusion", 4), ("confusion", 4096)])
SUMS = st.lists(
    st.builds(
        lambda name, kind, number, lower: MetricSum(name=name, kind=kind[0], sums=(number,) * kind[1], lower=lower),
        NAME,
        SUMS_OF,
        FLOAT,
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda metric: metric.name,
).map(tuple)
GOALS = st.builds(Goal, metric=NAME, at_least=st.floats(-9, 9)) | st.builds(Goal, metric=NAME, at_most=st.floats(-9, 9))
PLATEAUS = st.builds(Plateau, metric=NAME, patience=st.integers(1, 500), min_change=st.floats(0, 9))
STATES = st.builds(
    DeviceState,
    kind=SHOWN,
    examples=st.integers(0, LABELLED_MAX),
    temperature_c=st.none() | FLOAT,
    battery=st.none() | FLOAT,
)
PLANS = st.builds(
    Plan,
    batch_size=st.integers(1, 1 << 40),
    lease_batches=st.integers(1, 4096),
    learning_rate=st.floats(1e-9, 10),
    momentum=st.floats(0, 0.999),
    weight_decay=st.floats(0, 1),
    workers_min=st.integers(1, 10),
    workers_max=st.integers(10, 1 << 20),
    until=st.builds(
        Until,
        accuracy=st.none() | st.floats(0.1, 1),
        epochs=st.integers(1, 99),
        seconds=st.none() | st.floats(1, 9),
        goals=st.lists(GOALS, max_size=3).map(tuple),
        plateaus=st.lists(PLATEAUS, max_size=3).map(tuple),
    ),
    judged_by=st.just("") | NAME,
    seed=INTEGER,
    lease_s=st.floats(0, 1e6),
    pace=st.sampled_from(CHOICES["pace"]),
    work=st.sampled_from(("leased", "fixed")),
    codec=st.sampled_from(("dense", "bf16", "top1%+ef+4bit")),
    codec_down=st.sampled_from(("", "top5%")),
    outer_rate=st.floats(0.1, 2),
    outer=st.sampled_from(("sgd", "nesterov")),
    buffer=st.integers(1, 1 << 40),
    # The others are not for every topology, or need labels, which only devices with examples of their own report.
    staleness=st.sampled_from(STALENESS[:-2]),
    topology=st.sampled_from(("star", "tree", "auto")),
    aggregators=st.integers(0, 99),
    schedule=st.sampled_from(("", "warmup 20 cosine 2000", "step 7 x0.5")),
    shuffle=st.just("window"),
    cache_mb=st.integers(0, 1 << 40),
    ema=st.floats(0, 0.9999),
) | st.builds(
    Plan,
    data=st.just("local"),
    share_labels=st.just(True),
    labels_epsilon=st.floats(0, 9),
    staleness=st.sampled_from(STALENESS),
    work=st.just("sized"),
    budget_s=st.floats(0.1, 1e6),
    budget_joules=st.floats(0, 1e6),
    budget_battery_percent=st.floats(0, 100),
    epoch_leases=st.integers(1, 1 << 20),
    refuse_smallest=st.floats(0, 99),
    refuse_alike=st.floats(0, 99),
    requests_per_s=st.floats(0, 1e6),
    publish=st.sampled_from(("", *PUBLISH)),
    versions_kept=st.integers(1, 100),
    until=st.builds(Until, endless=st.just(True)),
    cohort=st.integers(0, 99),
    outer=st.sampled_from(OUTER_KINDS),
    outer_rate=st.none() | st.floats(1e-9, 0.9),
    outer_beta2=st.floats(0, 0.9999),
    outer_epsilon=st.floats(1e-12, 1),
)
#: Where the parts of a model begin and end: one after the other.
CUTS = st.lists(st.integers(1, 1 << 40), min_size=1, max_size=4, unique=True).map(sorted)
PART = {"start": st.integers(0, 1 << 30), "stop": st.integers((1 << 30) + 1, 1 << 40)}
OF = {"job": ID, "term": INTEGER, "formation": INTEGER}
RATE = st.floats(0, allow_infinity=False)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
NATURAL = st.integers(0, (1 << 62) - 1)
SECONDS = st.floats(0, SECONDS_MAX)
SIDES = {name: st.integers(1, SIDE_MAX) for name in ("rows", "inner", "columns")}


def route(job: str, term: int, formation: int, cuts: list[int], data: str) -> Route:
    starts = [0, *cuts[:-1]]
    hops = [
        Hop(node=f"{data}-{number}"[:63], endpoint=f"h:{number}", start=start, stop=stop)
        for number, (start, stop) in enumerate(zip(starts, cuts, strict=True))
    ]
    return Route(job=job, term=term, formation=formation, hops=tuple(hops))


def count(job: str, term: int, formation: int, rows: list[tuple[int, float, float]], last: bool, rate: float) -> Reduce:
    leases, weights, scales = zip(*rows, strict=True) if rows else ((), (), ())
    return Reduce(
        job=job,
        term=term,
        formation=formation,
        version=3,
        leases=leases,
        weights=weights,
        scales=scales,
        last=last,
        outer_rate=rate,
    )


DATASETS = st.builds(Dataset, manifest=SHA | st.just(""), examples=st.integers(0, 1 << 40))
SPECS = st.builds(
    JobSpec,
    job=ID,
    name=TEXT,
    entry=TEXT,
    kwargs_json=TEXT,
    bundle=SHA,
    initial=SHA,
    train=st.builds(Dataset, manifest=SHA, examples=st.integers(1, BATCHES_MAX)),
    test=DATASETS,
    plan=PLANS,
)
KEYS = st.builds(
    MemberKey,
    node=ID,
    public=st.binary(min_size=32, max_size=32),
    nonce=st.binary(min_size=16, max_size=16),
    signature=st.binary(max_size=80),
    certificate=st.binary(max_size=100),
)
#: Classes whose fields obey rules of their own.
SPECIAL: dict[Any, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=32),
    MemberKey: KEYS,
    SealRoster: st.builds(
        SealRoster,
        job=ID,
        term=INTEGER,
        roster=INTEGER,
        keys=st.lists(KEYS, max_size=3, unique_by=lambda key: key.node).map(tuple),
    ),
    Plan: PLANS,
    Dataset: DATASETS,
    JobSpec: SPECS,
    Blob: st.builds(Blob, sha256=SHA, size_bytes=INTEGER),
    AskContributions: st.builds(AskContributions, set=ID | st.just(""), after=INTEGER),
    Contribute: st.builds(Contribute, set=ID, sha256=SHA, size_bytes=st.integers(1, CONTRIBUTION_MAX_BYTES)),
    ContributionView: st.builds(
        ContributionView,
        number=INTEGER,
        set=ID,
        sha256=SHA,
        node=ID | st.just(""),
        certificate=TEXT,
        entries=INTEGER,
        size_bytes=INTEGER,
        at_s=FLOAT,
        state=TEXT,
        by=TEXT,
    ),
    SettleContributions: st.builds(
        SettleContributions, set=ID, sha256s=st.lists(SHA, min_size=1, max_size=3).map(tuple), approve=st.booleans()
    ),
    Facts: st.builds(
        Facts,
        host=SHOWN,
        arch=SHOWN,
        cpus=INTEGER,
        memory_mb=INTEGER,
        python=SHOWN,
        torch=SHOWN,
        shoal=SHOWN,
        labels=st.lists(st.from_regex(r"x[a-z0-9_]{0,9}=[A-Za-z0-9._/-]{1,9}", fullmatch=True), max_size=3).map(tuple),
    ),
    Heartbeat: st.builds(
        Heartbeat,
        seq=INTEGER,
        load=st.floats(allow_nan=False, allow_infinity=False),
        memory_free_mb=INTEGER,
        link_bytes_per_s=st.floats(0, allow_infinity=False),
    ),
    Leave: st.builds(Leave, reason=TEXT, come_s=st.floats(0, COME_MOST_S)),
    Welcome: st.builds(
        Welcome,
        heartbeat_s=st.floats(allow_nan=False),
        lost_after_s=st.floats(allow_nan=False),
        reason=TEXT,
        time_s=st.floats(allow_nan=False),
        redial_s=st.floats(allow_nan=False),
        come_s=st.floats(0, COME_MOST_S),
        managers=st.lists(ENDPOINT, max_size=MANAGERS_MAX).map(tuple),
    ),
    Admit: st.builds(Admit, job=ID, term=INTEGER, nodes=st.lists(ID, max_size=3).map(tuple)),
    Leads: st.builds(Leads, job=ID, term=INTEGER, endpoint=ENDPOINT | st.just("")),
    SetUpAggregator: st.builds(
        SetUpAggregator,
        **OF,
        **PART,
        kind=st.sampled_from(("tree", "shard")),
        version=INTEGER,
        parameters=st.integers(0, 1),
        momentum=st.floats(0, 0.999),
        outer=st.sampled_from(OUTER_KINDS),
        outer_rate=POSITIVE,
        outer_beta2=st.floats(0, 0.9999),
        outer_epsilon=POSITIVE,
        weight_decay=RATE,
        inner_rate=POSITIVE,
        outer_steps=NATURAL,
        members=st.lists(ID, max_size=3).map(tuple),
    ),
    AggregatorReady: st.builds(AggregatorReady, **OF, endpoint=ENDPOINT | st.just(""), reason=TEXT),
    Route: st.builds(route, **OF, cuts=CUTS, data=st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)),
    Routed: st.builds(Routed, **OF, unreached=st.lists(ID, max_size=3).map(tuple)),
    ModelShard: st.builds(ModelShard, **OF, **PART, version=INTEGER),
    PeerStatus: st.builds(
        PeerStatus,
        plan=SHA,
        coordinator=ID,
        phase=st.sampled_from(PEER_PHASES),
        of=st.lists(ID, max_size=5, unique=True).map(tuple),
        weight=RATE,
        spent_joules=RATE,
        made_of=st.integers(0, 1 << 40),
        metrics=FIGURES,
        examples=st.integers(0, 1 << 40),
    ),
    Command: st.builds(Command, term=INTEGER, number=INTEGER, kind=st.sampled_from(CALLS), other=ID, reason=TEXT),
    PartialSum: st.builds(
        PartialSum,
        term=INTEGER,
        coordinator=ID,
        round=INTEGER,
        merge=INTEGER,
        of=st.lists(ID, min_size=1, max_size=5, unique=True).map(tuple),
        weight=st.floats(0, LABELLED_MAX, exclude_min=True),
    ),
    Reduce: st.builds(
        count, **OF, rows=st.lists(st.tuples(INTEGER, POSITIVE, POSITIVE), max_size=3), last=st.booleans(), rate=RATE
    ),
    DeviceState: STATES,
    Ready: st.builds(Ready, job=ID, up_bytes_per_s=RATE, down_bytes_per_s=RATE, medium=SHOWN, state=st.none() | STATES),
    Wait: st.builds(Wait, job=ID, reason=TEXT, retry_after_s=st.floats(0, SECONDS_MAX)),
    Update: st.builds(
        Update,
        job=ID,
        term=INTEGER,
        lease=INTEGER,
        version=INTEGER,
        examples=st.integers(3 * 99, 1 << 40),
        fresh=INTEGER,
        fresh_metrics=SUMS,
        logged=SUMS,
        labels=st.lists(st.integers(0, 99), max_size=3).map(tuple),
        joules=FLOAT,
        state=st.none() | STATES,
    ),
    RollBackModel: st.builds(
        RollBackModel, job=ID, version=INTEGER, reason=TEXT, until_accuracy=st.none() | st.floats(0.1, 1)
    ),
    LogRecord: st.builds(LogRecord, job=ID, term=INTEGER, kind=SHOWN, reason=TEXT),
    Measure: st.builds(Measure, number=INTEGER, **SIDES),
    Lend: st.builds(Lend, number=INTEGER, seconds=SECONDS, task_max_bytes=NATURAL, rights_max_bytes=NATURAL),
    Pool: st.builds(
        Pool,
        executors=NATURAL,
        multiply_adds_per_s=RATE,
        latency_s=SECONDS,
        window=NATURAL,
        task_max_bytes=NATURAL,
        right_max_bytes=NATURAL,
    ),
    TileTask: st.builds(
        TileTask,
        task=INTEGER,
        kind=st.sampled_from(TASK_KINDS),
        group=INTEGER,
        right=SHA | st.just(""),
        deadline_s=st.floats(0, SECONDS_MAX, exclude_min=True),
        avoid=st.lists(ID, max_size=3).map(tuple),
        **SIDES,
    ),
    RightOperand: st.builds(RightOperand, right=SHA),
    NeedOperand: st.builds(NeedOperand, right=SHA),
    TileResult: st.builds(TileResult, task=INTEGER, executor=ID | st.just(""), seconds=SECONDS, reason=TEXT),
    Caught: st.builds(Caught, executor=ID, reason=TEXT),
    messages.ReduceResult: st.builds(
        messages.ReduceResult,
        job=ID,
        term=INTEGER,
        formation=INTEGER,
        version=INTEGER,
        leases=st.lists(INTEGER, max_size=3).map(tuple),
        weight=FLOAT,
        bytes_up=st.integers(0, 1 << 40),
        bytes_down=st.integers(0, 1 << 40),
    ),
}
#: Lists whose parts obey rules of their own.
LISTS = {tuple[MetricView, ...]: FIGURES, tuple[MetricSum, ...]: SUMS}
SCALARS: dict[Any, st.SearchStrategy[Any]] = {str: TEXT, int: INTEGER, float: FLOAT, bool: st.booleans()}


LABELS = st.lists(st.from_regex(r"x[a-z0-9_]{0,9}=[A-Za-z0-9._/-]{0,9}", fullmatch=True), max_size=3).map(tuple)


def of(hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, types.UnionType):
        return st.none() | of(next(arg for arg in typing.get_args(hint) if arg is not types.NoneType))
    if hint in LISTS:
        return LISTS[hint]
    if typing.get_origin(hint) is tuple:
        return st.lists(of(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    return SPECIAL[hint] if hint in SPECIAL else built(hint)


def built(cls: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.name != "tensors"]
    own: dict[str, st.SearchStrategy[Any]] = {"job": ID | st.just(""), "node": ID}
    if cls is Work:
        own["rate"] = RATE
    if cls is messages.LabelNode:
        own["labels"] = LABELS
    if cls is Progress:
        own["state"] = st.sampled_from(sorted(REPORTED))
    if cls in (messages.Denied, messages.Dismiss):
        own["endpoint"] = ENDPOINT | st.just("")
    if cls is messages.ManagerView:
        own |= {"manager": ENDPOINT, "others": st.lists(ENDPOINT, max_size=3).map(tuple)}
    if cls is messages.AskStatus:
        own["ended_page"] = st.integers(0, ENDED_PAGE_MAX)
    if cls in (messages.DrainManager, messages.UndrainManager):
        own["manager"] = ENDPOINT | st.just("")
    return st.builds(cls, **{name: own[name] if name in own else of(hints[name]) for name in names})


CLASSES = [getattr(messages, name) for name in sorted(contract.ENVELOPE_FIELDS.values())]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_message_comes_back_as_it_was(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(of(cls))
    assert decode_envelope(encode_envelope(message)) == (message, ())
    assert from_json(cls, json.loads(json.dumps(to_json(message)))) == message


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_violation(data: bytes) -> None:
    try:
        message, _ = decode_envelope(data)
    except PeerViolation:
        return
    assert isinstance(message, Message)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CLASSES), st.data())
def test_a_message_with_some_bytes_changed_is_a_message_or_a_violation(cls: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode_envelope(data.draw(of(cls))))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        message, _ = decode_envelope(bytes(encoded))
    except PeerViolation:
        return
    # Whatever was read can be said again.
    try:
        assert decode_envelope(encode_envelope(message))[0] == message
    except Misuse as error:
        pytest.fail(f"{message} was read and cannot be written: {error}")
