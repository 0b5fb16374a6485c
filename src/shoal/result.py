"""What a job came to: how it ended, how good its model is, and where that model lies. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import Misuse
from shoal.history import History
from shoal.states import JobState
from shoal.task import Task

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a job came to."""

    job: str
    state: JobState
    reason: str
    #: Share of held-out examples that are right; None if the task has none.
    accuracy: float | None
    loss: float | None
    seconds: float
    version: int
    workers: int
    #: The model as a safetensors file; None: the job ended before there was one.
    path: Path | None
    #: None: the job was found by its id, and its code is on the cluster.
    task: Task | None
    #: How many devices have an update in some version; 0 if nobody counted them.
    took_part: int = 0
    #: With which the job built its model.
    seed: int = 0
    #: Every evaluation that was seen.
    history: History = field(default_factory=History)

    def model(self) -> nn.Module:
        """The task's model with the trained parameters, in evaluation mode."""
        if self.path is None:
            raise Misuse(f"job {self.job} has no model: it {self.state} before its first version was saved")
        if self.task is None:
            raise Misuse(f"job {self.job} was found by its id: shoal.load(result.path, task) makes its model")
        from shoal.trainer.trained import trained_model

        return trained_model(self.task, self.path, seed=self.seed)
