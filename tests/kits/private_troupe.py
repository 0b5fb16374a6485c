"""A troupe whose leader adds noise: what a version must be, and how often each device is in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from troupe import Troupe, plan_of

from dst.privacy_oracle import noise_at
from shoal.plan import epochs
from shoal.wire.messages import Message, Update, UpdateShard

#: So short that many updates are cut, and some are not.
CLIP = 2.5


def private_plan(**changes: Any) -> Any:
    """As many epochs as a chain of noise is long for, though many versions have fewer devices than they might."""
    given: dict[str, Any] = {"trust": "private(60, 1e-4)", "data": "local", "clip_update": CLIP, "cohort": 3}
    given |= {"until": epochs(60), "epoch_leases": 12, "apart": 1, "participations": 4000, "checkpoint_every_s": 0.0}
    return plan_of(**{**given, **changes})


class Chance:
    """Normals of a seed, as they were drawn."""

    def __init__(self, seed: int = 7) -> None:
        self._generator = np.random.default_rng(seed)
        self.drawn: list[np.ndarray] = []

    def __call__(self, size: int) -> np.ndarray:
        self.drawn.append(self._generator.standard_normal(size, dtype=np.float32))
        return self.drawn[-1]


class PrivateTroupe(Troupe):
    #: Noise is hundreds of times as long as an update.
    rounding = 2e-5

    def __init__(self, plan: Any, **changes: Any) -> None:
        self.chance = Chance()
        super().__init__(plan, examples=1, normals=self.chance, **changes)

    def _says(self, sender: str, to: str, message: Message) -> None:
        if isinstance(message, UpdateShard | Update) and message.tensors:
            assert (message.term, message.version) in self.disks.get(sender, []), f"{sender} did not count {message}"
        super()._says(sender, to, message)

    def _knows_version(self) -> None:
        # Some are passed over in one step: nobody may take part in them.
        for version in range(max(self.versions) + 1, self.leader.version + 1):
            self.versions[version] = self.leader.model

    def _check_numbers(self, versions: Sequence[int]) -> None:
        assert list(versions) == sorted(versions)
        assert len(self.chance.drawn) == self.leader.version, "noise once a version"

    def _mean(self, version: int, leases: Sequence[int]) -> np.ndarray:
        privacy = self.spec.plan.privacy
        assert privacy is not None
        total = np.zeros(self.layout.size)
        for lease in leases:
            delta = self.made[lease].delta.astype(np.float64)
            total += self._late(lease) * delta * min(1.0, privacy.clip / float(np.linalg.norm(delta)))
        return np.asarray((total + noise_at(privacy, self.chance.drawn, version - 1)) / privacy.devices)

    def check_accounts(self) -> None:
        """A device is in versions that are as far apart as the plan says, and as often as it counted at most."""
        privacy = self.spec.plan.privacy
        assert privacy is not None
        leases = {(row.version, row.node, row.lease) for row in self.rows}
        for version, node, lease in leases:
            near = [each for each in leases if each[1:] != (node, lease) and each[1] == node]
            assert all(abs(version - other) >= privacy.apart for other, _, _ in near), f"{node} in version {version}"
        for node, counted in self.disks.items():
            assert sum(each == node for _, each, _ in leases) <= len(counted)
