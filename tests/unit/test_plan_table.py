"""Which answers of a plan go together, as docs/plan.md shows it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import plan_table  # noqa: E402


def test_every_pair_of_answers_runs_or_has_rules_that_refuse_it() -> None:
    found = plan_table.survey()
    assert found.without_reason == []
    assert found.reasons[("topology", "shard"), ("pace", "async")] == ("shard-pace",)
    # No rule is about this pair: sealed sums are of the devices' own data, and these places are for sealed sums.
    assert found.reasons[("data", "shared"), ("codec", "led5%+ef")] == ("sealed-data", "led-trust")
    assert found.runs == 1066
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    assert page == plan_table.replaced(page), "run `python tools/tasks.py reference`"
