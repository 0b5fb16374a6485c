"""A member of a cluster, and where its managers are. Knows files and no sockets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.identity.identity import Identity, load_private_json, save_private_json
from shoal.wire.limits import MANAGERS_MAX

MANAGER_FILE = "manager.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Enrolled:
    """A member's identity, and where to reach its cluster's managers."""

    identity: Identity
    manager_node: str
    manager_endpoint: str
    #: Where it joined, and can renew an expired certificate. Empty if unknown.
    enrol_endpoint: str = ""
    #: Where the cluster's managers are, as the last one that it reached reported. Empty if there is only one.
    managers: tuple[str, ...] = ()

    def save(self, folder: Path) -> None:
        # The identity is written last, so that a folder with an identity is complete.
        self.save_manager(folder)
        self.identity.save(folder)

    def save_manager(self, folder: Path) -> None:
        """Save only where managers are: the identity may be renewed at the same time."""
        manager = {
            "manager_node": self.manager_node,
            "manager_endpoint": self.manager_endpoint,
            "enrol_endpoint": self.enrol_endpoint,
            "managers": " ".join(self.managers),
        }
        save_private_json(folder / MANAGER_FILE, manager)

    @classmethod
    def load(cls, folder: Path) -> Self:
        identity = Identity.load(folder)
        fields = ("manager_node", "manager_endpoint")
        node, where, joined_at, managers = load_private_json(
            folder / MANAGER_FILE, fields, optional=("enrol_endpoint", "managers")
        )
        return cls(
            identity=identity,
            manager_node=node,
            manager_endpoint=where,
            enrol_endpoint=joined_at,
            managers=tuple(managers.split())[:MANAGERS_MAX],
        )
