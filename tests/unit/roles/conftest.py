"""A small job for the roles to work on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.plan import Plan
from shoal.wire.messages import Dataset, JobSpec

# What several kinds of tests share lies there; not every import mode of pytest looks for it.
sys.path.insert(0, str(Path(__file__).parents[2] / "kits"))

SHA = "0" * 64


@pytest.fixture
def make_spec() -> Callable[..., JobSpec]:
    """A job of four batches with one example each and no held-out data, unless told otherwise."""

    def make(*, job: str = "digits", examples: int = 4, test: int = 0, **plan: Any) -> JobSpec:
        return JobSpec(
            job=job,
            name=job,
            entry="task:Digits",
            bundle=SHA,
            initial=SHA,
            train=Dataset(manifest=SHA, examples=examples),
            test=Dataset(manifest=SHA, examples=test),
            plan=Plan(**{"batch_size": 1, "momentum": 0.0, **plan}),
        )

    return make
