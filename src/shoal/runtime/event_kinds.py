"""The kinds of events: one list for roles, journals, logs, hooks, the exporter and the console. Only values.

A kind is ``subject.past-participle``. The reason of a ``device.`` event begins with the device's name, so a program
that needs the name does not read the sentence after it.
"""

from __future__ import annotations

import logging

#: A line of a log that is not an event, and an event whose kind this release does not know.
LOG, OTHER = "log", "other"

#: An event that ends work without success.
ERRORS: dict[str, str] = {
    "job.failed": "a job that ended without success",
}

#: Faults: something is wrong, or somebody was refused. A view with little room shows them before other events.
WARNINGS: dict[str, str] = {
    "algorithm.failed": "an algorithm that gave no answer that a leader could use",
    "checkpoint.damaged": "a checkpoint that cannot be read",
    "device.lost": "a device that is gone: it was silent, did not reconnect, or left",
    "device.refused": "a device that may not connect, or that broke the protocol",
    "device.revoked": "a device that an operator shut out of the cluster",
    "device.suspected": "a device that is silent or disconnected, and may come back",
    "executor.excluded": "an offload executor that gave a wrong result",
    "group.voided": "a sealed group whose updates are in no version",
    "helper.lost": "the loss of the helper that opens sealed sums",
    "hook.failed": "a hook that failed",
    "key.misused": "a use of a key that was replaced or that another device has",
    "leader.missed": "a leader out of the manager's reach, which may lead on",
    "leader.paused": "a leader whose process stood still",
    "lease.declined": "a lease that a device declined to protect its privacy",
    "lease.expired": "a lease without an update by its deadline",
    "lease.failed": "a lease whose training failed on its device",
    "link.broken": "a connection between a worker and its leader that cannot be made",
    "merge.rejected": "a merge of a flock that a peer cannot use",
    "merge.undone": "a merge of a flock that a peer gave up",
    "model.invalid": "a model, or a part of one, that a device cannot use",
    "model.reverted": "a return of the model to an earlier version, since the newer ones were bad",
    "peer.excluded": "a peer that a round of a flock does not wait for",
    "peer.refused": "a peer with another task or plan",
    "pool.lost": "an offload pool that is gone with tasks of this client",
    "preparation.deferred": "a device that could not prepare a job and gets it again later",
    "preparation.failed": "a device that could not prepare a job",
    "publication.failed": "a version that could not be published",
    "quota.exceeded": "a disk quota that no removal of files can keep",
    "quorum.lost": "a flock of which less than half is here",
    "save.failed": "a version that could not be saved",
    "seal.refused": "a step of a sealed sum that a member refused",
    "store.reverted": "a database that went back to an earlier state",
    "store.slowed": "a database or bucket that takes long to answer",
    "sum.rejected": "a sum of an aggregator that the leader cannot use",
    "task.failed": "an offload task that failed on its executor",
    "task.refused": "an offload task that its executor did not do",
    "trainer.failed": "a trainer process that failed",
    "training.diverged": "a result with values that are not finite",
    "training.failed": "a training of a flock's peer that failed",
    "update.down-weighted": "a device whose updates count less, since they differ from the others",
    "update.dropped": "an update that no version will contain",
    "update.invalid": "a part of an update that an aggregator cannot use",
    "update.rejected": "an update that the leader rejected",
    "update.withheld": "an update that stays on its device to protect its privacy",
    "version.discarded": "versions that lost against a longer history",
    "version.fenced": "a version from a leader whose term is over",
    "version.refused": "a version from a leader that cannot be read",
}

#: What a cluster does when nothing is wrong.
NOTES: dict[str, str] = {
    "budget.ignored": "an energy budget that does not apply to a device",
    "card.changed": "a new or removed signature of an operator for a device",
    "client.connected": "a client that asks an offload pool for products",
    "coordinator.elected": "a new term of a flock's coordinator",
    "coordinator.followed": "a peer that follows a new coordinator",
    "device.assigned": "a device that got a job",
    "device.connected": "a connection of a device to the manager",
    "device.dismissed": "a device that left a job at once",
    "device.forgotten": "a device whose record an operator removed",
    "device.held": "a device that an operator holds back",
    "device.joined": "a device that is ready to work for a job",
    "device.labelled": "a change of a device's labels",
    "device.left": "a browser's tab that rests, or whose user ended it",
    "device.readmitted": "a device that may get work again",
    "device.recalled": "a device that another job needs",
    "device.referred": "a device that was sent to another manager",
    "device.released": "a device that its leader let go",
    "device.returned": "a device that responds again",
    "entries.contributed": "a file of entries that a member added to a shared set",
    "executor.readmitted": "an excluded executor that gets tasks again",
    "files.removed": "files of an ended job that made room on the disk",
    "goal.unmeasured": "an end of the job that its evaluations do not measure",
    "helper.connected": "a helper that is ready to open sealed sums",
    "history.adopted": "the history of an earlier leader, which others continue",
    "job.finished": "a job that reached its end",
    "job.given": "a job that another manager got",
    "job.removed": "a job that was removed with its files",
    "job.resumed": "a leader that continues from a saved version",
    "job.started": "a leader that began a job",
    "job.stopped": "a job that an operator stopped",
    "job.submitted": "a job that appeared in the console",
    "job.taken": "a job that this manager got from another",
    "leader.appointed": "a new term of a leader",
    "leader.awaited": "a leader that has a moment to report to a restarted manager",
    "leader.connected": "a leader that workers can dial",
    "leader.recalled": "a leader that must hand over",
    "leader.resigned": "a leader that handed over",
    "leader.returned": "a leader that is back in the manager's reach",
    "lease.waived": "leases at the end of an epoch that are too few for a sealed sum",
    "manager.lost": "a manager that the console cannot reach",
    "manager.returned": "a manager that answers the console again",
    "merge.forced": "a merge of peers that were busy for too long",
    "merge.started": "a merge between two peers of a flock",
    "operator.acted": "a command of an operator",
    "pace.changed": "a change of how many updates make a version",
    "peer.joined": "a peer that this one met",
    "peer.prepared": "a peer that is ready to train",
    "product.kept": "a product that is computed at home",
    "profiles.reset": "measurements of devices that begin again",
    "residual.dropped": "a rest of earlier updates that was dropped with them",
    "root.chosen": "a peer that holds all updates of a round",
    "round.repeated": "a round of a flock without any update",
    "saturation.estimated": "an estimate of whether more devices help",
    "shares.divided": "a new division of an epoch among the devices",
    "task.reissued": "offload tasks that another executor gets",
    "term.ended": "a term of a leader that is over",
    "tile.repeated": "a tile that several executors compute, to compare",
    "topology.abandoned": "a topology that could not be set up",
    "topology.changed": "a topology that applies from now on",
    "topology.planned": "a topology that is being set up",
    "version.adopted": "a version that a flock continues with",
    "version.made": "a version that a root made",
    "version.published": "a version that is served from now on",
    "version.reinstated": "an earlier version that is served again",
    "version.skipped": "a version without participants",
}

#: Events that come with every epoch, evaluation or lease: views leave them out first.
ROUTINE: dict[str, str] = {
    "epoch.done": "an epoch whose batches are all applied",
    "job.evaluated": "an evaluation of the model",
    "lease.returned": "a lease whose batches go to other devices",
}

#: What a leader notes and the manager records itself, such as ``device.lost``. They are logged at level debug, and no
#: journal has them: each event is one line.
DETAILS: dict[str, str] = {
    "end.decided": "a leader's decision to end its job, before the last version is saved",
    "worker.lost": "a worker that its leader lost",
    "worker.suspected": "a worker that its leader does not hear from",
}

#: Kinds of faults.
FAULTS: frozenset[str] = frozenset({**ERRORS, **WARNINGS})

#: Every kind that a journal may have, and what such an event is about.
KINDS: dict[str, str] = {**ERRORS, **WARNINGS, **NOTES, **ROUTINE}


def event_of(kind: str) -> str:
    """Return the kind, or ``other`` if this release does not know it: another release may have recorded it."""
    return kind if kind in KINDS else OTHER


def is_fault(kind: str) -> bool:
    return kind in FAULTS


def device_of(kind: str, reason: str) -> str:
    """Return the device that an event is about, or an empty string if it is about something else."""
    return reason.partition(" ")[0].rstrip(":") if kind.startswith("device.") else ""


def level_of(kind: str) -> int:
    """Return how loudly an event is logged."""
    if kind in ERRORS:
        return logging.ERROR
    if kind in WARNINGS:
        return logging.WARNING
    return logging.DEBUG if kind in DETAILS else logging.INFO
