"""Which updates may be merged: what an update must say and be, and how long it may be. A part of the leader.

The leader decides in which order it checks; this part only answers. Values are checked before they are merged.
"""

from __future__ import annotations

import math
from statistics import median_high
from typing import Any

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse
from shoal.errors import PeerViolation
from shoal.learning.clipping import CLIP_ROUNDING
from shoal.learning.layout import Layout
from shoal.learning.usual import Unusual, Usual
from shoal.roles.leader.gathering.comparing import PRODUCTS_MAX_BYTES
from shoal.roles.leader.gathering.gathering import Summed
from shoal.roles.leader.local_data import Online
from shoal.roles.leader.training_state import TrainingState
from shoal.scheduling.ledger import Lease
from shoal.wire.checks import check_told
from shoal.wire.coded import bytes_max, decode_with_norm, norm_of, sizes_of
from shoal.wire.limits import SEALS_MAX_BYTES
from shoal.wire.messages import JobSpec, Update


class UpdateChecks:
    def __init__(self, *, spec: JobSpec, layout: Layout, training: TrainingState, online: Online | None) -> None:
        self._plan = spec.plan
        self._training = training
        self._online = online
        self._codec, self._sizes = Codec.parse(self._plan.codec), sizes_of(layout)
        #: The most bytes that the tensors of an update may take.
        self.update_max_bytes = bytes_max(self._codec, self._sizes)
        if self._plan.believes.sealed is not None:
            self.update_max_bytes += SEALS_MAX_BYTES
        self._usual = Usual()
        #: A version, and the norm of its model.
        self._norm: tuple[int, float] = (-1, 0.0)

    def snapshot(self) -> dict[str, Any]:
        return self._usual.snapshot()

    def restore(self, state: object) -> None:
        self._usual = Usual.restored(state)

    @property
    def moved_max_bytes(self) -> int:
        """Return the most bytes that a coded change of the model may take, or 0 if it comes uncoded."""
        down = Codec.parse(self._plan.down)
        return bytes_max(down, self._sizes) if down.form != "dense" else 0

    @property
    def products_max_bytes(self) -> int:
        """Return the most bytes that an aggregator's comparison of updates may take, or 0 if it makes none."""
        return PRODUCTS_MAX_BYTES if self._plan.believes.rule is not None else 0

    def check_report(self, update: Update, lease: Lease) -> None:
        """Raises PeerViolation for an update that is not of its lease, or says what cannot be."""
        if update.version != lease.version:
            raise PeerViolation(f"made against version {update.version}; lease {lease.id} was for {lease.version}")
        if self._online is None:
            check_told(update, examples_max=self._training.examples_in(lease))
            return
        examples_max = self._online.examples_max(lease.id)
        check_told(update, examples_max=examples_max)
        self._online.check(update, examples_max=examples_max)

    def checked(self, update: Update, lease: Lease) -> tuple[np.ndarray | Sparse, float]:
        """The values of an update that is what its lease was for, and their norm."""
        self.check_report(update, lease)
        return decode_with_norm(self._codec, update.tensors, self._sizes)

    def judge(self, node: str, update: Update, lease: Lease, norm: float, *, devices: int) -> Unusual | None:
        """Return why an update is longer than is usual, or None if it is not or the plan accepts it. In a private job
        its length is clipped, and which updates count must not depend on others."""
        if self._plan.privacy is not None or self._plan.accept_unusual:
            return None
        steps = self._steps_of(update, lease)
        return self._usual.judge(node, norm, steps=steps, model_norm=self._model_norm(), devices=devices)

    def learn_length(self, update: Update, lease: Lease, norm: float) -> None:
        """Take the length of an update that is merged for a usual one."""
        self._usual.accepted(norm, steps=self._steps_of(update, lease))

    def on_sum(self, summed: Summed) -> None:
        """The leader sees the mean of updates that aggregators summed: that of n is about √n times as short as each."""
        weights = [self._plan.weight_of(report.update.examples) for report in summed.reports]
        scale = sum(w * report.scale for w, report in zip(weights, summed.reports, strict=True)) / sum(weights)
        steps = median_high([self._steps_of(report.update, report.lease) for report in summed.reports])
        norm = norm_of(summed.mean) * math.sqrt(len(weights)) / scale
        self._usual.accepted(norm, steps=steps)

    def _steps_of(self, update: Update, lease: Lease) -> int:
        """How many steps of training an update is made of, as far as its worker did what it was lent."""
        if self._online is None:
            return len(lease.batches)
        return math.ceil(update.examples / self._plan.batch_size) * self._plan.passes

    def _model_norm(self) -> float:
        if self._norm[0] != self._training.version:
            self._norm = (self._training.version, norm_of(self._training.model))
        return self._norm[1]

    def norm_max(self) -> float:
        """Return the largest norm that aggregators may take, or 0 if there is no such limit or it is not known yet. In
        a private job it is the clip of the devices: which updates count must not depend on others."""
        if self._plan.has_leaders_noise:
            return self._plan.clip_update * (1 + CLIP_ROUNDING)
        if self._plan.accept_unusual:
            return 0.0
        limit = self._usual.limit(model_norm=self._model_norm())
        return limit if limit < math.inf else 0.0
