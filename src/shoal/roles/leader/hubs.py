"""The hubs of a job as its leader records them: they sum up for workers and hold no lease. A part of the leader."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRecord:
    node: str
    #: The rates of its link as it told them; 0: not known.
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    medium: str = ""


class Hubs:
    def __init__(self) -> None:
        self._hubs: dict[str, HubRecord] = {}
        #: Hubs that are silent, or whose session broke.
        self.suspects: set[str] = set()
        #: Nodes that are not trusted with sums of this job any more, whether they are here or not.
        self.set_aside: set[str] = set()

    def __contains__(self, node: str) -> bool:
        return node in self._hubs

    def add(self, hub: HubRecord) -> bool:
        """True: it was not here."""
        is_new = hub.node not in self._hubs
        self._hubs[hub.node] = hub
        self.suspects.discard(hub.node)
        return is_new

    def remove(self, node: str) -> bool:
        """False: it was not here."""
        self.suspects.discard(node)
        return self._hubs.pop(node, None) is not None

    def nodes(self) -> list[str]:
        return sorted(self._hubs)

    def able(self, *, without: Collection[str] = ()) -> list[HubRecord]:
        """Hubs that may be aggregators, by name; not those that are silent or set aside, nor these."""
        away = {*self.suspects, *self.set_aside, *without}
        return [self._hubs[node] for node in sorted(self._hubs) if node not in away]
