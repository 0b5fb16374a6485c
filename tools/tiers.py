"""Which tests run when: *gate* for every change, *full* for main, *nightly* by the clock. A plugin of pytest.

A test belongs to the tier of its nearest marker (``gate``, ``full`` or ``nightly``). Without one it belongs to the
gate, or to full if it lies in ``tests/integration``, where every test starts real processes. ``--tier T`` runs the
tests of T and of the tiers before it; without the option every test that was named runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tasks.py reads TIERS where pytest is not installed
    from pathlib import Path

    import pytest

TIERS = ("gate", "full", "nightly")
#: Folders and files (by the start of their path below ``tests``) whose tests are not for the gate unless marked.
DEFAULTS = {
    "integration/": "full",
    # The tests of reproductions and benchmarks hold what they measure, not what Shoal does.
    "unit/papers/": "nightly",
    "unit/test_bench_": "nightly",
}
#: Property tests in the gate try this share of their examples.
GATE_EXAMPLES = 0.25
EXAMPLES_MIN = 10


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test."""
    for mark in item.iter_markers():
        if mark.name in TIERS:
            return mark.name
    return default_of(item.path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default=None, help="run the tests of this tier and of those before it")
    parser.addoption("--only-tier", action="store_true", help="leave out the tests of the tiers before it")


def default_of(path: Path) -> str:
    """Return the tier of the tests of a file that no marker puts into another."""
    below = path.as_posix().rpartition("/tests/")[2]
    return next((tier for start, tier in DEFAULTS.items() if below.startswith(start)), TIERS[0])


def allowed_in(config: pytest.Config) -> tuple[str, ...]:
    """Return the tiers whose tests run, or none if all do."""
    chosen = config.getoption("tier")
    if chosen is None:
        return ()
    last = TIERS.index(chosen)
    return TIERS[last : last + 1] if config.getoption("only_tier") else TIERS[: last + 1]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files without a test of the chosen tier: to import them takes a quarter of a minute per process."""
    allowed = allowed_in(config)
    if not allowed or not collection_path.match("test_*.py") or default_of(collection_path) in allowed:
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if any(f"mark.{tier}" in text for tier in allowed) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    allowed = allowed_in(config)
    if not allowed:
        return
    left_out = [item for item in items if tier_of(item) not in allowed]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if tier_of(item) in allowed]
    if allowed == TIERS[:1]:
        for item in items:
            _try_fewer_examples(item)


def _try_fewer_examples(item: pytest.Item) -> None:
    """Lower the number of examples of a Hypothesis test, as ``@settings`` above it would."""
    from hypothesis import is_hypothesis_test, settings

    function = getattr(item, "obj", None)
    if function is None or not is_hypothesis_test(function):
        return
    function = getattr(function, "__func__", function)
    # Hypothesis refuses a second ``@settings`` and offers no other way to change the first; test_tiers.py fails if a
    # release renames the attribute.
    own = getattr(function, "_hypothesis_internal_use_settings", None) or settings()
    fewer = max(EXAMPLES_MIN, int(own.max_examples * GATE_EXAMPLES))
    function._hypothesis_internal_use_settings = settings(own, max_examples=min(own.max_examples, fewer))
