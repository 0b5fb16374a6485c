"""Where Shoal keeps its files on a device. Paths only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def default_home() -> Path:
    return Path(os.environ.get("SHOAL_HOME", "~/.shoal")).expanduser()


@dataclass(frozen=True, slots=True)
class Paths:
    home: Path

    @property
    def authority(self) -> Path:
        return self.home / "cluster" / "authority"

    @property
    def manager(self) -> Path:
        return self.home / "cluster" / "manager"

    @property
    def registry(self) -> Path:
        return self.home / "cluster" / "registry.sqlite"

    @property
    def blobs(self) -> Path:
        return self.home / "cluster" / "blobs"

    @property
    def published(self) -> Path:
        """Models that were published, by hash: apart from other blobs, so that it is known which are of no use."""
        return self.home / "cluster" / "published"

    def checkpoints(self, job: str) -> Path:
        return self.home / "cluster" / "checkpoints" / job

    @property
    def remembered(self) -> Path:
        """What a manager remembers of what it wrote to its database."""
        return self.home / "cluster" / "remembered"

    @property
    def operator(self) -> Path:
        """The identity and address with which commands on this machine reach the cluster."""
        return self.home / "operator"

    @property
    def node(self) -> Path:
        """The identity of this device as a node, and its manager's address."""
        return self.home / "node"

    @property
    def cache(self) -> Path:
        """Code and data a worker has fetched, by hash."""
        return self.home / "cache"

    @property
    def prepared(self) -> Path:
        return self.home / "prepared"
