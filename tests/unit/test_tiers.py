"""The tier of a test follows from its nearest marker or its place, and the gate tries fewer examples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import tiers  # noqa: E402

pytestmark = pytest.mark.timeout(120)

_CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT / "tools")!r})
from tiers import pytest_addoption, pytest_collection_modifyitems, pytest_ignore_collect
"""

_PLAIN = """
import pytest

def test_plain():
    pass

@pytest.mark.gate("join")
def test_marked_gate():
    pass

@pytest.mark.full
def test_marked_full():
    pass

@pytest.mark.nightly
def test_marked_nightly():
    pass
"""

_NIGHTLY_FILE = """
import pytest

pytestmark = pytest.mark.nightly

def test_of_the_file():
    pass

@pytest.mark.gate("the nearest marker counts")
def test_of_its_own():
    pass
"""

_EXAMPLES = """
from hypothesis import given, settings, strategies as st

seen = {"explicit": 0, "default": 0, "few": 0, "method": 0}

@settings(max_examples=200, database=None)
@given(st.integers())
def test_explicit(number):
    seen["explicit"] += 1

@given(st.integers())
def test_default(number):
    seen["default"] += 1

@settings(max_examples=3, database=None)
@given(st.integers())
def test_few(number):
    seen["few"] += 1

class TestMethod:
    @settings(max_examples=80, database=None)
    @given(st.integers())
    def test_method(self, number):
        seen["method"] += 1

def test_the_counts():
    print(sorted(seen.items()))
"""


def _repository(folder: Path) -> Path:
    """Lay out a small repository whose tests use the plugin."""
    markers = "".join(f"    {tier}\n" for tier in tiers.TIERS)
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}")
    files = {
        "conftest.py": _CONFTEST,
        "unit/test_it.py": _PLAIN,
        "unit/test_bench_it.py": "def test_a_benchmark():\n    pass\n",
        "unit/papers/test_paper.py": "def test_a_paper():\n    pass\n",
        "unit/test_examples.py": _EXAMPLES,
        "integration/test_real.py": _PLAIN.replace("def test_", "def test_real_"),
        "integration/test_nightly.py": _NIGHTLY_FILE,
    }
    for name, text in files.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _pytest(folder: Path, *words: str) -> str:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, "tests")
    # Other plugins of this environment take seconds to load.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def _chosen(folder: Path, *words: str) -> set[str]:
    lines = _pytest(folder, "--collect-only", "--ignore=tests/unit/test_examples.py", *words).splitlines()
    return {line.rpartition("::")[2] for line in lines if "::" in line}


GATE = {"test_plain", "test_marked_gate", "test_real_marked_gate", "test_of_its_own"}
FULL = {"test_marked_full", "test_real_plain", "test_real_marked_full"}
NIGHTLY = {"test_marked_nightly", "test_real_marked_nightly", "test_of_the_file", "test_a_benchmark", "test_a_paper"}


def test_a_tier_runs_its_tests_and_those_of_the_tiers_before_it(tmp_path: Path) -> None:
    folder = _repository(tmp_path)
    assert _chosen(folder, "--tier", "gate") == GATE
    assert _chosen(folder, "--tier", "full") == GATE | FULL
    assert _chosen(folder, "--tier", "nightly") == GATE | FULL | NIGHTLY
    assert _chosen(folder) == GATE | FULL | NIGHTLY


def test_only_tier_leaves_out_the_tiers_before_it(tmp_path: Path) -> None:
    folder = _repository(tmp_path)
    assert _chosen(folder, "--tier", "full", "--only-tier") == FULL
    assert _chosen(folder, "--tier", "nightly", "--only-tier") == NIGHTLY


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("gate", {"default": 25, "explicit": 50, "few": 3, "method": 20}),
        ("full", {"default": 100, "explicit": 200, "few": 3, "method": 80}),
    ],
)
def test_the_gate_tries_a_share_of_the_examples(tmp_path: Path, tier: str, expected: dict[str, int]) -> None:
    folder = _repository(tmp_path)
    said = _pytest(folder, "-s", "--tier", tier, "--ignore=tests/integration")
    assert str(sorted(expected.items())) in said
