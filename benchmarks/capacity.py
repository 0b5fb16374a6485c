"""What one leader core takes: updates folded in, beside bare numpy; then updates, heartbeats and connections served.

Five parts, each in processes of its own. Every rate is one over processor time: waiting for a core does not count, but
sharing caches and memory with what else runs does, so rates drift with the load. Contenders therefore take turns, and
ratios are medians over turns.

    fold      A round of dense updates (720,967 float32, 2.88 MB) and the step that ends it: bare numpy doing the same
              sums; Shoal's checks, ``Partial`` and step; the same from frames; the same through the role ``Leader``.
    sparse    The sums that a 1 % update needs (uint32 places, float32 values), with and without checks. Decoding is not
              included: ``benchmarks.codec`` measures it.
    memory    The role ``Leader`` with 10, 100 and 1,000 workers that each send a round: how its peak grows.
    served    A real manager that leads for real connections with mutual TLS: what an update (model down, update up), a
              connection, a device that waits and a row of history cost it; and what bare gRPC pays for a small one.
    beats     A real manager that hears 2,500 heartbeats a second, as from as many devices; and the part of each that is
              Shoal's own (``benchmarks.heartbeat_share``).

    python -m benchmarks.capacity --json
    python -m benchmarks.capacity --save        # also writes what `shoal plan capacity` reckons with
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import bare_grpc, heartbeat_share
from benchmarks.common import PERNET
from benchmarks.fan_in import Fleet, check_merged, enrol_all, push_rounds
from benchmarks.momentum_step import momentum_step
from shoal.errors import PeerViolation
from shoal.identity.identity import Identity
from shoal.learning.layout import Layout
from shoal.learning.partial import Partial
from shoal.plan import Plan
from shoal.roles.actions import Action, Save, Send
from shoal.roles.events import Event, Received, Saved, Started
from shoal.roles.leader.leader import Leader
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import FailureDetector, Patience
from shoal.roles.node.heartbeat_interval import interval_s
from shoal.runtime.local import LocalCluster
from shoal.runtime.malloc import keep_freed_memory
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.wire.checks import check_told, dense
from shoal.wire.frames import Assembly, envelope_frame, frames, read_chunk_frame, read_message, read_opening
from shoal.wire.limits import UPDATE_NORM_MAX
from shoal.wire.messages import Dataset, Facts, Go, Heartbeat, Hello, JobSpec, Lane, Message, Offer, Ready, Update, Work
from testbed.echo_job import echo_job
from testbed.light_workers import Client, Pulse
from testbed.processes import cpu_s, memory_mb
from testbed.results import finish, say

MEASURED_FILE = Path(__file__).resolve().parent.parent / "src" / "shoal" / "topology" / "measured.json"

#: Updates of a round: enough that the step which ends it counts for little, as it does for a busy leader.
ROUND = 100

#: Different updates that take turns, 35 MB: none of them is still in a core's own cache when it comes again.
POOL = 12

EXAMPLES = 64
MOMENTUM = 0.9
SPARSE_SHARE = 0.01

WORKERS = (10, 100, 1000)

#: One thread: a core is what is measured.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

SHA = "0" * 64

#: Folds in a round; gives the model that came of it.
Contender = Callable[[], np.ndarray]


# fold: dense updates ---------------------------------------------------------------------------------


class Step:
    """What ends a round, for everyone the same: the mean becomes a version."""

    def __init__(self, values: int) -> None:
        self.model = np.zeros(values, np.float32)
        self._velocity = np.zeros(values, np.float32)

    def __call__(self, mean: np.ndarray) -> np.ndarray:
        size = self.model.size
        self.model, self._velocity = momentum_step(
            self.model, self._velocity, mean, momentum=MOMENTUM, parameters_size=size
        )
        return self.model


def deltas(values: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.normal(scale=1e-3, size=values).astype(np.float32) for _ in range(POOL)]


def update_of(delta: np.ndarray, *, examples: int = EXAMPLES) -> Update:
    return Update(job="job", term=1, lease=1, version=0, examples=examples, tensors={"delta": delta})


def bare(pool: list[np.ndarray], round_: int) -> Contender:
    """The same sums as ours and in the same precision, in as few passes: all weigh the same, so none is scaled."""
    values = pool[0].size
    total, mean, step = np.empty(values, np.float64), np.empty(values, np.float32), Step(values)

    def run() -> np.ndarray:
        total[:] = pool[0]
        for number in range(1, round_):
            np.add(total, pool[number % POOL], out=total)
        np.multiply(total, 1 / round_, out=mean, casting="same_kind")
        return step(mean)

    return run


def bare_scaled(pool: list[np.ndarray], round_: int) -> Contender:
    """The same as most would write it: ``total += weight * update``."""
    total, step = np.zeros(pool[0].size, np.float64), Step(pool[0].size)

    def run() -> np.ndarray:
        nonlocal total
        total[:] = 0
        for number in range(round_):
            total += float(EXAMPLES) * pool[number % POOL]
        return step((total / (round_ * EXAMPLES)).astype(np.float32))

    return run


def ours(updates: Callable[[], Iterator[Update]], values: int) -> Contender:
    """Checked, merged, stepped."""
    partial, step = Partial(values), Step(values)

    def run() -> np.ndarray:
        for update in updates():
            check_told(update, examples_max=2 * EXAMPLES)
            delta = dense("delta", update.tensors, size=values)
            partial.add(delta, weight=float(update.examples))
        model = step(partial.mean())
        partial.clear()
        return model

    return run


def at_hand(pool: list[np.ndarray], round_: int, *, mixed: bool = False) -> Callable[[], Iterator[Update]]:
    """Updates as the role gets them, all of one weight or each of another."""
    known = [update_of(delta, examples=EXAMPLES + (place if mixed else 0)) for place, delta in enumerate(pool)]
    return lambda: (known[number % POOL] for number in range(round_))


def from_frames(pool: list[np.ndarray], round_: int) -> Callable[[], Iterator[Update]]:
    """Updates out of the bytes that gRPC hands over, into memory that is used again, as a session does."""
    sent = [list(frames(update_of(delta))) for delta in pool]
    buffer = np.empty(pool[0].nbytes, np.uint8)

    def read() -> Iterator[Update]:
        for number in range(round_):
            incoming = iter(sent[number % POOL])
            opening = read_opening(next(incoming))
            assembly = Assembly(opening.message, opening.infos, buffer=buffer)
            if opening.chunk is not None:
                assembly.feed(opening.chunk)
            for frame in incoming:
                assembly.feed(read_chunk_frame(frame))
            message = assembly.message()
            assert isinstance(message, Update)
            yield message

    return read


class Lead:
    """The role ``Leader`` and workers that are only their messages: leases, credits and refusals are the real ones."""

    def __init__(self, *, values: int, workers: int, rounds: int) -> None:
        spec = JobSpec(
            job="job",
            name="job",
            entry="task:Task",
            bundle=SHA,
            initial=SHA,
            train=Dataset(manifest=SHA, examples=workers * rounds),
            test=Dataset(),
            plan=Plan(batch_size=1, workers_min=workers, workers_max=workers, checkpoint_every_s=1e6),
        )
        layout = Layout.of([("flat", (values,), "parameter")])
        model = np.zeros(values, np.float32)
        self.role = Leader(spec=spec, layout=layout, model=model, term=1, manager="home")
        self._model_bytes = model.nbytes
        #: Leases that are held, and those whose holders may send now.
        self._works: dict[str, Work] = {}
        self._may_send: deque[str] = deque()
        self._happens(Started())
        for number in range(workers):
            self._happens(Received(sender=f"w{number:04}", message=Ready(job="job")))

    def _happens(self, event: Event) -> None:
        for action in self.role.handle(event, 0.0):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Save):
            self._happens(Saved(version=action.version))
        elif isinstance(action, Send) and isinstance(action.message, Work):
            self._works[action.to] = action.message
        elif isinstance(action, Send) and isinstance(action.message, Go):
            self._may_send.append(action.to)

    def round(self, tensors_of: Callable[[int], dict[str, np.ndarray]]) -> None:
        """Everyone offers what it has, and sends it when its turn comes."""
        version = self.role.version
        offered, self._works = self._works, {}
        for node, work in offered.items():
            if work.credit:
                self._may_send.append(node)
            else:
                self._happens(
                    self._said(node, Offer(job="job", term=1, lease=work.lease, size_bytes=self._model_bytes))
                )
        # What was admitted is under way, and held until it is merged.
        under_way: deque[tuple[str, dict[str, np.ndarray]]] = deque()
        count = 0
        while self._may_send or under_way:
            while self._may_send:
                under_way.append((self._may_send.popleft(), tensors_of(count)))
                count += 1
            node, tensors = under_way.popleft()
            work = offered[node]
            update = Update(job="job", term=1, lease=work.lease, version=work.version, examples=1, tensors=tensors)
            self._happens(self._said(node, update))
        assert self.role.version == version + 1, f"{count} updates of {len(offered)} made no version"

    def _said(self, node: str, message: Message) -> Received:
        return Received(sender=node, message=message, size_bytes=self._model_bytes)


def led(pool: list[np.ndarray], round_: int, turns: int) -> Contender:
    """Through the role: leases, admission, checks, sums, the step, and the next leases."""
    lead = Lead(values=pool[0].size, workers=round_, rounds=turns + 2)
    tensors = [{"delta": delta} for delta in pool]

    def run() -> np.ndarray:
        lead.round(lambda number: tensors[number % POOL])
        return lead.role.model

    return run


# sparse: the sums alone ------------------------------------------------------------------------------

Sparse = tuple[np.ndarray, np.ndarray]


def sparse_pool(values: int) -> list[Sparse]:
    draw = np.random.default_rng(1)
    kept = int(values * SPARSE_SHARE)
    places = [np.sort(draw.choice(values, kept, replace=False)).astype(np.uint32) for _ in range(POOL)]
    return [(each, draw.normal(scale=1e-3, size=kept).astype(np.float32)) for each in places]


def check_sparse(places: np.ndarray, kept: np.ndarray, *, size: int) -> None:
    """What must be known of a sparse update before it is added: where it lies, that it is finite, its norm."""
    if places.shape != kept.shape or not places.size or int(places[-1]) >= size:
        raise PeerViolation("places and values that do not fit the model")
    if not bool((places[1:] > places[:-1]).all()):
        raise PeerViolation("places that do not ascend")
    squared = float(np.dot(kept, kept))
    if not math.isfinite(squared) or math.sqrt(squared) > UPDATE_NORM_MAX:
        raise PeerViolation("an absurd norm")


def scatter(pool: list[Sparse], values: int, round_: int, *, checked: bool) -> Contender:
    """Places are all different, so plain indexing adds each once (``np.add.at`` would take repeated ones)."""
    total, step = np.zeros(values, np.float64), Step(values)

    def run() -> np.ndarray:
        total[:] = 0
        for number in range(round_):
            places, kept = pool[number % POOL]
            if checked:
                check_sparse(places, kept, size=values)
            total[places] += kept
        return step((total / round_).astype(np.float32))

    return run


# Taking turns ----------------------------------------------------------------------------------------


#: Who must come to the same model, to the bit: it is the same sums.
ALIKE = (("numpy", "dense", "dense_wire", "dense_leader"), ("sparse_numpy", "sparse"))


def take_turns(contenders: dict[str, Contender], turns: int) -> dict[str, list[float]]:
    """Processor seconds of each turn of each; the first turn of all is to get warm."""
    took_s: dict[str, list[float]] = {name: [] for name in contenders}
    models: dict[str, np.ndarray] = {}
    for turn in range(turns + 1):
        for name, run in contenders.items():
            began_s = time.process_time()
            models[name] = run()
            if turn:
                took_s[name].append(time.process_time() - began_s)
    for first, *others in ALIKE:
        for other in others:
            assert np.array_equal(models[first], models[other]), f"{other} came to another model than {first}"
    return took_s


def fold(*, values: int, turns: int, round_: int = ROUND) -> dict[str, Any]:
    keep_freed_memory()
    pool, thin = deltas(values), sparse_pool(values)
    contenders = {
        "numpy": bare(pool, round_),
        "scaled_numpy": bare_scaled(pool, round_),
        "dense": ours(at_hand(pool, round_), values),
        "dense_mixed_weights": ours(at_hand(pool, round_, mixed=True), values),
        "dense_wire": ours(from_frames(pool, round_), values),
        "dense_leader": led(pool, round_, turns),
        "sparse_numpy": scatter(thin, values, round_, checked=False),
        "sparse": scatter(thin, values, round_, checked=True),
    }
    took_s = take_turns(contenders, turns)

    def rate(name: str) -> float:
        return round_ / median(took_s[name])

    def ratio(name: str, to: str) -> float:
        return median(theirs / mine for mine, theirs in zip(took_s[name], took_s[to], strict=True))

    return {
        "dense_updates_per_s": rate("dense"),
        "dense_ratio_to_numpy": ratio("dense", "numpy"),
        "dense_ratio_to_scaled_numpy": ratio("dense", "scaled_numpy"),
        "dense_mixed_weights_updates_per_s": rate("dense_mixed_weights"),
        "dense_mixed_weights_ratio_to_scaled_numpy": ratio("dense_mixed_weights", "scaled_numpy"),
        "dense_wire_updates_per_s": rate("dense_wire"),
        "dense_wire_ratio_to_numpy": ratio("dense_wire", "numpy"),
        "dense_leader_updates_per_s": rate("dense_leader"),
        "dense_leader_ratio_to_numpy": ratio("dense_leader", "numpy"),
        "numpy_updates_per_s": rate("numpy"),
        "sparse_updates_per_s": rate("sparse"),
        "sparse_ratio_to_numpy": ratio("sparse", "sparse_numpy"),
        "role_heartbeats_per_s": role_heartbeats_per_s(),
        "sparse_is": "the sums a sparse update needs; codec not included",
        "sparse_share": SPARSE_SHARE,
        "round_updates": round_,
        "turns": turns,
        "params": values,
    }


# memory: flat in the number of workers ---------------------------------------------------------------


def grown_mb(*, workers: int, values: int, rounds: int = 2) -> float:
    """How far the peak of this process rises over what it held before there was a leader. Run in a new process."""
    keep_freed_memory()
    before_mb = memory_mb(os.getpid())
    sent = list(frames(update_of(np.full(values, 1e-3, np.float32))))
    lead = Lead(values=values, workers=workers, rounds=rounds + 2)

    def received(_number: int) -> dict[str, np.ndarray]:
        message = read_message(iter(sent))
        assert isinstance(message, Update)
        return dict(message.tensors)

    for _ in range(rounds):
        lead.round(received)
    return memory_mb(os.getpid(), "VmHWM") - before_mb


# served: over sockets --------------------------------------------------------------------------------


async def served(*, workers: int, values: int, rounds: int, listen_s: float) -> dict[str, float]:
    """What a manager that leads pays for each thing, in processor seconds and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        ready = echo_job(Path(folder), values=values, batches=workers * (rounds + 2))
        async with LocalCluster(workers=0) as cluster, Operator.open(cluster.home) as operator:
            assert cluster.manager is not None
            pid, homes = cluster.manager.pid, Path(folder) / "homes"
            await enrol_all(cluster, homes, workers)
            idle_core = await _load_of(pid, listen_s)
            before_mb, before_s = memory_mb(pid), cpu_s(pid)
            port = int(cluster.endpoint.rpartition(":")[2])
            fleet = await Fleet.start(homes, workers=workers, port=port, values=values)
            try:
                await asyncio.gather(fleet.heard(Lane.CONTROL, "welcomed"), fleet.heard(Lane.WORK, "connected"))
                connected_s, connected_mb = cpu_s(pid) - before_s, memory_mb(pid)
                beating_core = await _load_of(pid, listen_s)
                rows_bytes = _registry_bytes(cluster.home)
                job = await operator.submit(ready, plan={"workers_min": workers, "until": {"epochs": 1}})
                await fleet.heard(Lane.CONTROL, "assigned")
                fleet.order(Lane.WORK, f"begin {job}")
                pushed_s, took_s = await _pushed(fleet, rounds, pid)
                # A leader reports twice a second, and of a small model all rounds may be over before its first report.
                await asyncio.sleep(1.0)
                await check_merged(operator, job, rounds=rounds, round_bytes=workers * values * 4)
                rows_bytes = _registry_bytes(cluster.home) - rows_bytes
            finally:
                await fleet.stop()
    updates = workers * rounds
    return {
        # Heartbeats go on meanwhile: one a second from each.
        "update_core_s": (pushed_s - beating_core * took_s) / updates,
        # Seldom as they are, each wakes the process; those of a busy manager come together and cost less.
        "seldom_heartbeat_core_s": (beating_core - idle_core) / workers,
        # Each worker opens two, one for each lane.
        "connection_core_s": connected_s / (2 * workers),
        "device_bytes": (connected_mb - before_mb) * 1024**2 / workers,
        "manager_bytes": before_mb * 1024**2,
        "history_bytes": rows_bytes / updates,
    }


#: Clients of bare gRPC, a process each.
BARE_CLIENTS = 8


async def bare_update_core_s(*, values: int, seconds: float) -> float:
    """What a server of bare gRPC pays to send a model of so many values and to receive as much: nobody pays less."""
    with tempfile.TemporaryDirectory() as folder:
        async with LocalCluster(workers=0) as cluster:
            await enrol_all(cluster, Path(folder), BARE_CLIENTS)
            homes, place = {home.name: home for home in Path(folder).iterdir()}, Paths(cluster.home).manager
            async with bare_grpc.bare(
                place, homes, on=lambda _, *words: words, server="", host="127.0.0.1", values=values, work=False
            ) as rival:
                before_s = cpu_s(rival.server.pid)
                _, rounds = await rival.measure(seconds)
                return (cpu_s(rival.server.pid) - before_s) / (rounds * BARE_CLIENTS)


async def _load_of(pid: int, seconds: float) -> float:
    """Cores that a process is using, over a while."""
    before_s, began_s = cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


async def _pushed(fleet: Fleet, rounds: int, pid: int) -> tuple[float, float]:
    """Processor seconds and seconds of so many rounds. The first models have gone out when the first push begins."""
    before_s = cpu_s(pid)
    took_s = await push_rounds(fleet, rounds, pid)
    return cpu_s(pid) - before_s, took_s


def _registry_bytes(home: Path) -> int:
    """What the manager's database takes, with what its log has not handed over yet."""
    connection = sqlite3.connect(f"file:{Paths(home).registry}?mode=ro", uri=True)
    try:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        return int(pages) * int(connection.execute("PRAGMA page_size").fetchone()[0])
    finally:
        connection.close()


# beats: a busy manager --------------------------------------------------------------------------------

#: From one device 25 a second, which is half of what it may say; so 100 do for 2,500 that say one a second.
BEAT_EVERY_S = 0.04
BEATERS = 100


async def busy_heartbeat_core_s(seconds: float) -> float:
    """Processor seconds of a manager for each heartbeat, while many come."""
    with tempfile.TemporaryDirectory() as folder:
        async with LocalCluster(workers=0) as cluster:
            assert cluster.manager is not None
            homes = Path(folder) / "homes"
            await enrol_all(cluster, homes, BEATERS)
            port = cluster.endpoint.rpartition(":")[2]
            words = ("--homes", str(homes), "--port", port, "--pid", str(cluster.manager.pid))
            told = await asyncio.to_thread(in_a_process, "--part", "beats", *words, "--seconds", str(seconds))
    assert told["heard_per_s"] > 0.8 * BEATERS / BEAT_EVERY_S, f"only {told['heard_per_s']:.0f} heartbeats a second"
    return float(told["core_s"])


async def beat(homes: Path, *, port: int, pid: int, seconds: float) -> dict[str, float]:
    """Send heartbeats and count answers, in a process of its own; what the manager used meanwhile, for each."""
    identities = [Identity.load(home) for home in sorted(homes.iterdir())]
    clients = [Client(identity, Lane.CONTROL, port=port) for identity in identities]
    pulse = Pulse(clients, every_s=BEAT_EVERY_S)
    beating = asyncio.create_task(pulse.run())
    # Until all are welcomed and in step.
    await asyncio.sleep(3.0)
    heard, before_s, began_s = len(pulse.took_ms()), cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    heard, used_s, took_s = len(pulse.took_ms()) - heard, cpu_s(pid) - before_s, time.monotonic() - began_s
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
    return {"core_s": used_s / heard, "heard_per_s": heard / took_s}


def role_heartbeats_per_s(count: int = 20_000) -> float:
    """What the roles alone take: a heartbeat read from its frame, noted as a sign of life, and handled."""
    patience, nodes = Patience(), [f"w{number:04}" for number in range(1000)]
    members, manager = FailureDetector(patience), Manager(node="home", patience=patience)
    manager.handle(Started(), 0.0)
    for node in nodes:
        members.on_heard(node, 0.0)
        manager.handle(Received(sender=node, message=Hello(node=node, incarnation="one", facts=Facts())), 0.0)
    frame = envelope_frame(Heartbeat(seq=1))
    began_s = time.process_time()
    for number in range(count):
        node = nodes[number % len(nodes)]
        message = read_opening(frame).message
        members.on_heard(node, 1.0)
        manager.handle(Received(sender=node, message=message), 1.0)
    return count / (time.process_time() - began_s)


# All of it -------------------------------------------------------------------------------------------


def in_a_process(*words: str) -> Any:
    """Run a part of this benchmark on its own, with one thread; what it says last is its result."""
    command = [sys.executable, "-m", "benchmarks.capacity", *words]
    done = subprocess.run(
        command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, check=True, timeout=300, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(*, values: int, quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result, and what a plan reckons with."""
    folded = in_a_process("--part", "fold", "--params", str(values), "--turns", "7" if quick else "31")
    say(f"dense: {folded['dense_updates_per_s']:.0f} updates/s, {folded['dense_ratio_to_numpy']:.2f} of bare numpy")
    say(f"sparse sums: {folded['sparse_updates_per_s']:.0f} updates/s, {folded['sparse_ratio_to_numpy']:.2f} of numpy")
    memory = {
        workers: in_a_process("--part", "memory", "--params", str(values), "--workers", str(workers))["grown_mb"]
        for workers in WORKERS
    }
    say(f"the leader's peak with {', '.join(f'{n} workers: +{mb:.0f} MB' for n, mb in memory.items())}")
    workers, rounds, listen_s = (40, 8, 4.0) if quick else (200, 20, 20.0)
    # Two sizes tell what an update costs whatever its size, and what a byte of it costs.
    large = asyncio.run(served(workers=workers, values=values, rounds=rounds, listen_s=listen_s))
    small = asyncio.run(served(workers=workers, values=values // 100, rounds=rounds, listen_s=1.0))
    say(f"served: {1e3 * large['update_core_s']:.2f} ms of processor an update")
    say(f"served: {1e3 * small['update_core_s']:.2f} ms one of a hundredth of its size")
    bare_core_s = asyncio.run(bare_update_core_s(values=values // 100, seconds=2.0 if quick else 10.0))
    say(f"bare gRPC: {1e3 * bare_core_s:.2f} ms the same, both ways")
    heartbeat_core_s = asyncio.run(busy_heartbeat_core_s(4.0 if quick else 20.0))
    say(f"heartbeats: {1e6 * heartbeat_core_s:.0f} µs of processor each, {BEATERS / BEAT_EVERY_S:.0f} a second")
    own_us = in_a_process("--part", "share", "--seconds", "3" if quick else "15")
    say(f"of a heartbeat, our own: {own_us['changed']:.0f} µs, {own_us['steady']:.0f} µs of one that says nothing new")
    # Both ways: a model down and an update up.
    moved_bytes = 2 * 4 * (values - values // 100)
    byte_core_s = max(0.0, large["update_core_s"] - small["update_core_s"]) / moved_bytes
    figures = {
        "fold_core_s_per_byte": 1 / (folded["dense_wire_updates_per_s"] * 4 * values),
        "update_core_s": max(0.0, large["update_core_s"] - byte_core_s * 2 * 4 * values),
        "update_core_s_per_byte": byte_core_s,
        "heartbeat_core_s": heartbeat_core_s,
        "connection_core_s": large["connection_core_s"],
        "device_bytes": large["device_bytes"],
        "manager_bytes": large["manager_bytes"],
        "leader_bytes": memory[WORKERS[-1]] * 1024**2,
        "history_bytes": large["history_bytes"],
    }
    result = {
        **folded,
        **{f"leader_grown_mb_{workers}": mb for workers, mb in memory.items()},
        "served_updates_per_s": 1 / large["update_core_s"],
        "served_small_updates_per_s": 1 / small["update_core_s"],
        "heartbeats_per_s": 1 / heartbeat_core_s,
        "own_heartbeat_us": own_us["changed"],
        "own_steady_heartbeat_us": own_us["steady"],
        "small_update_core_ms": 1e3 * small["update_core_s"],
        "bare_small_update_core_ms": 1e3 * bare_core_s,
        "idle_heartbeats_a_minute": 60 / interval_s(Patience(), devices=workers, is_idle=True),
        "seldom_heartbeats_per_s": 1 / large["seldom_heartbeat_core_s"],
        "connections_per_s": 1 / large["connection_core_s"],
        "device_kb": large["device_bytes"] / 1024,
        "history_bytes": large["history_bytes"],
        "served_workers": workers,
        "load_1m": os.getloadavg()[0],
    }
    return result, figures


def save(figures: dict[str, float], *, workers: int, load: float) -> None:
    saved = {
        "about": "Written by `python -m benchmarks.capacity --save`; docs/scale.md explains it. Do not edit.",
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "devices_tried": workers,
        "load": round(load, 1),
        "figures": {name: float(f"{value:.4g}") for name, value in figures.items()},
    }
    MEASURED_FILE.write_text(json.dumps(saved, indent=2) + "\n")
    say(f"wrote {MEASURED_FILE}")


def machine() -> str:
    """In the words in which a reader compares it with another."""
    names = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    model = " ".join(names[0].split()) if names else platform.machine()
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, numpy {np.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=PERNET)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.add_argument("--save", action="store_true", help="keep the figures for `shoal plan capacity`")
    parser.add_argument("--part", choices=("fold", "memory", "beats", "share"), help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, default=7, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=10, help=argparse.SUPPRESS)
    parser.add_argument("--homes", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--pid", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=4.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part == "fold":
        finish(fold(values=given.params, turns=given.turns))
    elif given.part == "memory":
        finish({"grown_mb": grown_mb(workers=given.workers, values=given.params)})
    elif given.part == "beats":
        # Not rounded: it is microseconds.
        print(json.dumps(asyncio.run(beat(given.homes, port=given.port, pid=given.pid, seconds=given.seconds))))
    elif given.part == "share":
        print(json.dumps(asyncio.run(heartbeat_share.shares_us(int(given.seconds * 10)))))
    else:
        result, figures = measure(values=given.params, quick=given.quick)
        if given.save:
            save(figures, workers=result["served_workers"], load=result["load_1m"])
        finish(result)


if __name__ == "__main__":
    main()
