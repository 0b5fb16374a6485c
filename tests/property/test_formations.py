"""Whatever is heard first, lost or spoilt: a version made by aggregators is the mean of the leases that are in it.

That a worker trains exactly the version its lease names, bit for bit, is checked by the troupe at each lease: in a
shard those values come from the aggregators, who took the step for their parts themselves.
"""

from __future__ import annotations

from typing import Any

from happenings import NODES, befalls, happenings
from hypothesis import given
from hypothesis import strategies as st
from troupe import Troupe, plan_of

from shoal.learning.outer_rule import ADAPTIVE

EPOCHS = 3

shapes = st.sampled_from(
    [("tree", "sync"), ("tree", "sync"), ("tree", "async"), ("tree", "buffered"), ("shard", "sync")]
)


def play(troupe: Troupe, script: list[tuple[str, int]], *, nodes: tuple[str, ...]) -> None:
    troupe.joins(*nodes)
    troupe.forms()
    for what, number in script:
        befalls(troupe, what, number)
    troupe.spoils.clear()
    troupe.walls.clear()
    for node in nodes:
        if node not in troupe.devices:
            troupe.joins(node)
    troupe.finishes(epochs=max(EPOCHS, troupe.leader.epoch + 1))
    assert not troupe.ended
    troupe.check_batches(EPOCHS)
    troupe.check_versions()


@given(
    happenings,
    shapes,
    st.integers(3, 5),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(0, 3),
    st.tuples(st.integers(1, 6), st.integers(0, 3)),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from(["sgd", "sgd", *ADAPTIVE]),
    st.lists(st.sampled_from([1e5, 1e6, 5e6]), min_size=5, max_size=5),
)
def test_every_batch_once_and_each_version_the_mean_of_its_leases(
    script: list[tuple[str, int]],
    shape: tuple[str, str],
    count: int,
    examples: int,
    lease_batches: int,
    aggregators: int,
    size: tuple[int, int],
    momentum: float,
    outer: str,
    rates: list[float],
) -> None:
    plan: dict[str, Any] = {"topology": shape[0], "pace": shape[1], "momentum": momentum, "buffer": 2}
    if outer != "sgd":
        # A value near 0 is rounded in another order on paper, and divided by what is as small.
        plan |= {"outer": outer, "weight_decay": 0.1, "outer_epsilon": 1e-3, "schedule": "warmup 3 linear 9"}
    plan |= {"lease_batches": lease_batches, "aggregators": aggregators}
    parameters, buffers = size
    troupe = Troupe(
        plan_of(**plan),
        examples=examples,
        parameters=parameters,
        buffers=buffers,
        rates=dict(zip(NODES, rates, strict=True)),
    )
    play(troupe, script, nodes=NODES[:count])
