"""Rollback: the model is suspected, and the job goes back to the last version that was found good. A leader's part.

One bad result is its device's fault. When the results of most devices are bad, the model is: the devices that
contributed to it since it was found good are set aside.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.roles.leader.leases import Leases
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.suspicion import BatchFailures
from shoal.roles.machine import Machine

#: Nodes that a reason names.
NAMED_MAX = 8

#: What a person can do about a model that broke.
NEXT = "Look at what they sent in `shoal jobs show`, take out who is not to be trusted, or try a lower learning rate"


class Rollback:
    def __init__(self, machine: Machine, shared: Shared, *, leases: Leases, failures: BatchFailures) -> None:
        self._machine = machine
        self._training, self._workers, self._formations = shared.training, shared.workers, shared.formations
        self._evaluations = shared.evaluations
        self._durability = shared.durability
        self._suspicion = shared.suspicion
        self._shares = shared.shares
        self._leases = leases
        self._failures = failures

    def witnesses(self) -> list[str]:
        """Devices whose bad results speak against the model; empty: each is at fault itself."""
        # A device that was left out for its results alone is a witness still.
        here = [node for node in self._suspicion.accused if self._workers.get(node) is not None]
        return self._suspicion.witnesses(sorted({*here, *(member.node for member in self._workers.able())}))

    def go_back(self, witnesses: Sequence[str]) -> str | None:
        """Go back to the last version that was found good. Returns why the job has to fail; None: it goes on."""
        training, before = self._training, self._training.version
        culprits = self._suspicion.take_contributors()
        seen = f"{_named(witnesses)} get values that are not finite or far from what is usual"
        if not culprits:
            what = f"version {before}, which nobody moved since it was found good"
            return f"the model is suspected: {seen} from {what}: try a lower learning rate"
        self._leases.forget_all("the model is suspected")
        good = training.good_version
        self._evaluations.cancel()
        self._failures.clear()
        training.go_back()
        self._durability.on_went_back(good)
        self._formations.mark_broken(f"the model went back to version {good}")
        told = f"version {training.version} is version {good} again, the last that was found good: {seen}"
        out = f"set aside: it contributed to the model after version {good}, and by version {before} it was broken"
        for node in culprits:
            self._workers.set_aside(node, out)
        self._machine.record("model.reverted", f"{told}; set aside, since they contributed: {_named(culprits)}")
        self._workers.expect_nothing("its lease was taken back: the model is suspected")
        self._workers.release()
        self._shares.on_changed()
        if self._workers.trusted:
            return None
        none = f"the model is suspected: {seen}. It went back to version {good}, and no worker is left that did not"
        return f"{none} contribute since ({_named(culprits)}). {NEXT}"


def _named(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:NAMED_MAX]) + (f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else "")
