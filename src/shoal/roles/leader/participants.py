"""Who may take part in the next version of a private job, and what its devices have spent. A part of the leader.

The leader lends by what it knows: what each device says of its own account, and which of its updates came. The device
has the last word (``roles.worker.participation``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.learning.privacy import Privacy
from shoal.roles.leader.workers import WorkerRecord
from shoal.wire.messages import DeviceState


class Participants:
    def __init__(self, privacy: Privacy, *, term: int) -> None:
        self._privacy = privacy
        #: There were leaders before this one, each with a chain of noise of its own. Terms begin with 1.
        self._is_first = term <= 1
        #: Device -> the last version that an update of it was for, merged or not.
        self._last: dict[str, int] = {}
        #: The most that a device has spent, as a ratio, and how often it came.
        self._worst: tuple[float, int] = (0.0, 0)

    def on_came(self, node: str, *, version: int) -> None:
        """An update of this device came while the model was at this version: whatever becomes of it, it has left."""
        self._last[node] = max(version + 1, self._last.get(node, 0))

    def note_account(self, device: DeviceState) -> None:
        """A device sent its account. It may leave a moment later."""
        privacy = self._privacy
        # An honest account never exceeds the plan's, so one that does is a lie and the status does not show it.
        if device.participations <= privacy.participations and device.spent <= privacy.ratio * 1.001:
            self._worst = max(self._worst, (min(device.spent, privacy.ratio), device.participations))

    def why_not(self, worker: WorkerRecord, *, version: int) -> str | None:
        """Why a device gets no lease while the model is at this version; None: it may."""
        if is_spent(worker):
            return "it has taken part as often as its account allows"
        told = worker.device.spent_version if worker.device is not None else None
        # An update of that version moves the next one at the earliest.
        last = max(self._last.get(worker.node, 0), 0 if told is None else told + 1)
        if last and version + 1 < last + self._privacy.apart:
            return f"it took part in version {last}, and may again in version {last + self._privacy.apart}"
        return None

    def are_spent(self, workers: Sequence[WorkerRecord], *, least: int = 1) -> bool:
        """Fewer of these devices than a version needs may take part any more."""
        return bool(workers) and sum(not is_spent(worker) for worker in workers) < least

    # What people see, and what survives ---------------------------------------------------------------------

    def figures(self, workers: Sequence[WorkerRecord], *, versions: int) -> dict[str, Any]:
        """For ``Progress``; ``versions``: of this leader's chain, or groups whose devices it asked for noise."""
        privacy = self._privacy
        for device in (worker.device for worker in workers if worker.device is not None):
            self.note_account(device)
        often = min(privacy.participations, -(-versions // max(1, privacy.apart)))
        # What was handed out before a crash and is in no checkpoint was seen too: earlier chains count in full.
        job = privacy.spent([often]) if self._is_first else privacy.ratio
        # A device counts an update before it leaves: one may be in the making, or was lost and trained again.
        job = max(job, self._worst[0])
        return {
            "epsilon": privacy.epsilon_of(min(job, privacy.ratio)),
            "epsilon_worst": privacy.epsilon_of(self._worst[0]),
            "participations_worst": self._worst[1],
        }

    def snapshot(self) -> list[float]:
        return list(self._worst)

    def restore(self, worst: object) -> None:
        match worst:
            case [float() | int() as spent, int() as came]:
                self._worst = max(self._worst, (float(spent), came))


def is_spent(worker: WorkerRecord) -> bool:
    """By its own account, as the leader heard it last."""
    return worker.device is not None and not worker.device.participations_left
