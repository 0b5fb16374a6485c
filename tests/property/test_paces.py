"""In whatever order updates arrive and workers fail, each pace takes every batch once, into versions without a gap."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.learning.layout import Layout
from shoal.plan import CHOICES, STALENESS, Plan, Until
from shoal.roles.actions import Action, Save, Send
from shoal.roles.events import Liveness, PeerChanged, Received, Saved, Started, TimerFired
from shoal.roles.leader.leader import Leader
from shoal.scheduling.ledger import Applied
from shoal.wire.messages import Dataset, Failed, JobSpec, Ready, Update, Work

SHA = "0" * 64
EPOCHS = 2
NODES = ("a", "b", "c", "d")

#: Who is next, and what befalls it: mostly its update comes.
happenings = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["update"] * 6 + ["twice", "lost", "fails", "asks", "time"])),
    max_size=60,
)


class Run:
    """A leader whose versions are durable at once, and workers who do what they are told to by a list.

    Value b of the model counts what batch b added to it: an update for it is 1 there and 0 elsewhere.
    """

    def __init__(self, plan: Plan, *, batches: int) -> None:
        self.batches = batches
        dataset = Dataset(manifest=SHA, examples=batches)
        spec = JobSpec(
            **{"job": "job", "name": "job", "entry": "task:Any", "bundle": SHA, "initial": SHA},
            **{"train": dataset, "test": Dataset(), "plan": plan},
        )
        layout = Layout.of([("w", (batches,), "parameter")])
        model = np.zeros(batches, dtype=np.float32)
        self.leader = Leader(spec=spec, layout=layout, model=model, term=1, manager="home")
        self.now_s = 0.0
        self.rows: list[Applied] = []
        self.lent: dict[int, Work] = {}
        self.holds: dict[str, Work] = {}
        self.happens(Started())

    def happens(self, event: Any) -> None:
        actions = self.leader.handle(event, self.now_s)
        self.leader._training.ledger.check()
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send) and isinstance(action.message, Work):
            self.lent[action.message.lease] = self.holds[action.to] = action.message
        elif isinstance(action, Save):
            self.rows += action.applied
            self.happens(Saved(version=action.version))

    def ready(self, node: str) -> None:
        self.happens(Received(sender=node, message=Ready(job="job"), size_bytes=0))

    def update(self, node: str, work: Work) -> None:
        delta = np.zeros(self.batches, dtype=np.float32)
        delta[list(work.batches)] = 1
        told = Update(
            **{"job": "job", "term": 1, "lease": work.lease, "version": work.version},
            **{"examples": len(work.batches), "loss_sum": 1.0, "tensors": {"delta": delta}},
        )
        self.happens(Received(sender=node, message=told, size_bytes=0))

    def play(self, script: list[tuple[int, str]], *, nodes: tuple[str, ...] = NODES) -> None:
        """The script, and then everyone does as is asked of them to the end."""
        for node in nodes:
            self.ready(node)
        for number, what in script:
            self._befall(nodes[number % len(nodes)], what)
        for node in nodes:
            self.ready(node)
        while self.leader.epoch < EPOCHS:
            for node in nodes:
                if self.leader.epoch < EPOCHS and (work := self.holds.pop(node, None)):
                    self.update(node, work)

    def _befall(self, node: str, what: str) -> None:
        work = self.holds.get(node)
        self.now_s += 0.01
        if what == "time":
            self.now_s += 20.0
            self.happens(TimerFired(name="tick"))
        elif what == "lost":
            self.holds.pop(node, None)
            self.happens(PeerChanged(node=node, state=Liveness.LOST, reason="gone"))
        elif what == "asks" or work is None:
            self.holds.pop(node, None)
            self.ready(node)
        elif what == "fails":
            # Rarely enough for no batch to fail the job.
            if not any(self.leader._batch_failures.by_batch.values()):
                told = Failed(job="job", term=1, lease=work.lease, reason="broken")
                self.happens(Received(sender=node, message=told, size_bytes=0))
                self.ready(node)
        else:
            del self.holds[node]
            self.update(node, work)
            if what == "twice":
                self.update(node, work)

    def made(self) -> dict[int, list[int]]:
        """Version -> its leases, in the order they were merged."""
        made: dict[int, dict[int, None]] = {}
        for row in self.rows:
            made.setdefault(row.version, {})[row.lease] = None
        return {version: list(leases) for version, leases in made.items()}

    def on_paper(self) -> np.ndarray:
        """What the history makes of the model, without momentum and by the root rule or none."""
        total = np.zeros(self.batches)
        for version, leases in self.made().items():
            examples = sum(len(self.lent[lease].batches) for lease in leases)
            for lease in leases:
                work = self.lent[lease]
                late = version - 1 - work.version
                total[list(work.batches)] += (1 + late) ** -0.5 * len(work.batches) / examples
        return total


def plan_of(**values: Any) -> Plan:
    usual: dict[str, Any] = {"batch_size": 1, "momentum": 0.0, "lease_s": 10.0, "checkpoint_every_s": 0.0}
    return Plan(**{**usual, "until": Until(epochs=EPOCHS), **values})


@given(
    happenings,
    st.sampled_from(CHOICES["pace"]),
    st.integers(1, 6),
    st.integers(1, 13),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(("leased", "fixed")),
)
def test_every_batch_once_in_versions_without_a_gap(
    script: list[tuple[int, str]], pace: str, buffer: int, batches: int, lease_batches: int, workers_min: int, work: str
) -> None:
    plan = plan_of(pace=pace, buffer=buffer, lease_batches=lease_batches, workers_min=workers_min, work=work)
    run = Run(plan, batches=batches)
    run.play(script)
    found = sorted((row.epoch, row.batch) for row in run.rows)
    assert found == [(epoch, batch) for epoch in range(EPOCHS) for batch in range(batches)]
    made = run.made()
    assert list(made) == list(range(1, run.leader.version + 1))
    # One who is lost and returns within a round is a new worker in it. ``auto`` begins in step, and a buffer it chooses
    # is of fewer than all.
    everyone = len(NODES) + sum(what == "lost" for _, what in script)
    most = {"sync": everyone, "buffered": buffer, "async": 1, "auto": everyone}[pace]
    assert all(len(leases) <= most for leases in made.values())
    np.testing.assert_allclose(run.leader.model, run.on_paper(), rtol=1e-5)


@given(happenings, st.integers(1, 13), st.sampled_from(STALENESS[:-1]))
def test_a_buffer_of_one_is_the_asynchronous_pace(script: list[tuple[int, str]], batches: int, rule: str) -> None:
    one, other = (
        Run(plan_of(pace=pace, buffer=1, staleness=rule, momentum=0.5), batches=batches)
        for pace in ("buffered", "async")
    )
    one.play(script)
    other.play(script)
    assert one.rows == other.rows
    assert one.leader.model.tobytes() == other.leader.model.tobytes()


@given(st.permutations(NODES), st.permutations(NODES), st.floats(0, 0.9))
def test_a_buffer_for_everyone_is_synchronous_where_everyone_has_one_lease(
    first: list[str], second: list[str], momentum: float
) -> None:
    """An epoch of as many leases as there are workers, and nobody who is late."""
    runs = [Run(plan_of(pace=pace, buffer=4, momentum=momentum), batches=4) for pace in ("sync", "buffered")]
    for run in runs:
        for node in NODES:
            run.ready(node)
        for order in (first, second):
            for node in order:
                run.update(node, run.holds[node])
    one, other = runs
    assert one.leader.version == other.leader.version == 2
    assert one.rows == other.rows
    assert one.leader.model.tobytes() == other.leader.model.tobytes()
