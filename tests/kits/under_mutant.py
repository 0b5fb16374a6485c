"""A plugin of pytest that puts a mutant into the code of every test: ``-p under_mutant``, and ``SHOAL_MUTANT`` names
it."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from mutants import CAUGHT_BY_A_STORY


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    mutant, _ = CAUGHT_BY_A_STORY[os.environ["SHOAL_MUTANT"]]
    with mutant():
        return (yield)
