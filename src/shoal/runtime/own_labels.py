"""What the owner of a device says that it is, such as ``room=3``: said once when it joins, kept with its membership."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.identity.identity import load_private_json, save_private_json
from shoal.runtime.paths import Paths
from shoal.where import parse_labels

LABELS_FILE = "labels.json"


def remember(places: Paths, pairs: Iterable[str]) -> None:
    """From its next start on, the agent has these labels too. An empty value takes one away. Raises Misuse."""
    known = {**parse_labels(remembered(places)), **parse_labels(pairs)}
    kept = [f"{name}={value}" for name, value in sorted(known.items()) if value]
    # With those of before they may be too many: the manager would refuse the device.
    parse_labels(kept)
    save_private_json(places.node / LABELS_FILE, {"labels": " ".join(kept)})


def remembered(places: Paths) -> tuple[str, ...]:
    """Return the labels as they are typed, in the order of their names."""
    if not (places.node / LABELS_FILE).exists():
        return ()
    (labels,) = load_private_json(places.node / LABELS_FILE, ("labels",))
    return tuple(labels.split())
