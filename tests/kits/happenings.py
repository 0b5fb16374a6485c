"""What may befall a troupe, for properties to draw."""

from __future__ import annotations

from hypothesis import strategies as st
from troupe import Troupe

NODES = ("a", "b", "c", "d", "e")

#: Draws the next event and its node: mostly a message arrives, or a trainer is done.
happenings = st.lists(
    st.tuples(
        st.sampled_from(
            ["hears"] * 10
            + ["trains"] * 3
            + ["round", "tick", "time", "lost", "silent", "joins", "cut", "cut-hop"]
            + ["wall", "spoils"]
        ),
        st.integers(0, 30),
    ),
    max_size=60,
)


def befalls(troupe: Troupe, what: str, number: int) -> None:
    here = sorted(troupe.devices)
    node = here[number % len(here)]
    troupe.now_s += 0.01
    match what:
        case "hears":
            lines = troupe.waiting()
            if lines:
                troupe.hears(lines[number % len(lines)])
        case "trains":
            at_work = troupe.at_work()
            if at_work:
                troupe.trains(at_work[number % len(at_work)])
        case "round":
            troupe.round()
        case "tick":
            troupe.passes(0.6)
        case "time":
            troupe.passes(4.0 + number)
        case "lost" if len(here) > 1:
            troupe.loses(node)
        case "silent" if len(here) > 1:
            # It takes a while until that is known.
            troupe.loses(node, heard=False)
            troupe.passes(8.0)
            troupe.is_missed(node)
        case "wall":
            troupe.walls ^= {(node, NODES[number % len(NODES)])}
        case "joins":
            away = [each for each in NODES if each not in troupe.devices]
            if away:
                troupe.joins(away[number % len(away)])
        case "cut":
            troupe.cuts(node)
        case "cut-hop":
            hops = sorted(troupe.devices[node].sessions)
            if hops:
                troupe.cuts(node, hops[number % len(hops)])
        case "spoils" if not any(troupe.leader._batch_failures.by_batch.values()):
            # Bad values of most devices would speak against the model, and end the job. It is one device at a time.
            if not {*troupe.spoils, *troupe.leader._suspicion.accused} - {node}:
                troupe.spoils.add(node)
        case _:
            pass
