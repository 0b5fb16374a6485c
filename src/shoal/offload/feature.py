"""The description of borrowed compute for the core."""

from __future__ import annotations

from shoal.features import Feature

FEATURE = Feature(
    name="offload",
    command="shoal.offload.cli:app",
    manager_pool="shoal.offload.runtime.exchange:Exchange",
    agent_pool="shoal.offload.runtime.lending:LendingDriver",
)
