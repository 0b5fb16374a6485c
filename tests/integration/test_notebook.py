"""The notebook of the examples, executed as a person runs it: a task of a cell trains, is shown, and is plotted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook" / "digits.ipynb"


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.timeout(1200)
def test_the_notebook_runs(tmp_path: Path, real_data: Path) -> None:
    for package in ("nbconvert", "ipykernel", "matplotlib", "pandas"):
        pytest.importorskip(package, exc_type=ImportError)
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--output-dir", str(tmp_path)]
    command += ["--ExecutePreprocessor.timeout=900", str(NOTEBOOK)]
    places = {"IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1140, cwd=tmp_path, env={**os.environ, **places}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    cells = json.loads((tmp_path / "digits.ipynb").read_text())["cells"]
    shown = [output for cell in cells for output in cell.get("outputs", ())]
    pages = [page for page in map(html, shown) if "<svg" in page]
    # One output that was updated in place: a table and a curve of the job.
    assert len(pages) == 1
    assert "finished" in pages[0]
    assert "accuracy" in pages[0]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert any('class="dataframe"' in html(output) for output in shown)
    said = "".join("".join(output.get("text", ())) for output in shown)
    assert ": finished, 9" in said
    assert "it is a 7, the model says 7" in said


def html(output: dict[str, Any]) -> str:
    return "".join(output.get("data", {}).get("text/html", ()))


@pytest.mark.needs_data
@pytest.mark.timeout(600)
def test_algorithms_are_compared_in_a_notebook(tmp_path: Path, real_data: Path) -> None:
    for package in ("nbconvert", "ipykernel", "matplotlib"):
        pytest.importorskip(package, exc_type=ImportError)
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--output-dir", str(tmp_path)]
    places = {
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "SHOAL_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(
        [*command, "--ExecutePreprocessor.timeout=500", str(NOTEBOOK.with_name("algorithms.ipynb"))],
        capture_output=True,
        text=True,
        timeout=560,
        env={**os.environ, **places},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    cells = json.loads((tmp_path / "algorithms.ipynb").read_text())["cells"]
    shown = [output for cell in cells for output in cell.get("outputs", ())]
    said = "".join("".join(output.get("text", ())) for output in shown)
    assert all(name in said for name in ("FedAvg", "SCAFFOLD", "median"))
    assert any("image/png" in output.get("data", {}) for output in shown)
