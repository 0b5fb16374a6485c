"""What a device without PyTorch can remove from its disk: only what pip wrote, and all of it comes back on failure."""

from __future__ import annotations

import sys
from pathlib import Path, PurePath

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from shoal.trainer.portable import trim

pytestmark = pytest.mark.timeout(120)


def line_graph() -> bytes:
    """A step of least squares: from w to w - rate X^T (X w - y)."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", ["column.x", "vector"], ["seen"]),
        helper.make_node("Sub", ["seen", "column.y"], ["off"]),
        helper.make_node("Transpose", ["column.x"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["turned", "off"], ["gradient"]),
        helper.make_node("Mul", ["gradient", "rate"], ["change"]),
        helper.make_node("Sub", ["vector", "change"], ["vector_next"]),
        helper.make_node("Mul", ["off", "off"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["loss"], keepdims=0),
    ]
    takes: dict[str, list[str | int]] = {"vector": [2], "rate": [], "column.x": ["batch", 2], "column.y": ["batch"]}
    gives: dict[str, list[str | int]] = {"vector_next": [2], "loss": []}
    ins, outs = (
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in each.items()] for each in (takes, gives)
    )
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(helper.make_graph(nodes, "step", ins, outs), opset_imports=[opset], ir_version=9)
    raw: bytes = model.SerializeToString()
    return raw


def test_the_graph_of_the_trial_is_a_line_that_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line_graph() == trim.TRIAL_GRAPH
    trim.trial()
    # A runtime that adds where it has to subtract is found.
    wrong = trim.TRIAL_GRAPH.replace(b"Sub", b"Add")
    monkeypatch.setattr(trim, "TRIAL_GRAPH", wrong)
    with pytest.raises(SystemExit, match="not learnt"):
        trim.trial()


def test_only_what_nothing_opens_is_named() -> None:
    places = {place for _, place in trim.files_of("onnxruntime") if not trim.is_unused(place)}
    assert any(place.name.startswith("onnxruntime_pybind11_state") for place in places)
    assert not trim.is_unused(PurePath("numpy/testing/__init__.py"))
    assert not trim.is_unused(PurePath("tests.py"))
    assert trim.is_unused(PurePath("numpy/linalg/tests/test_linalg.py"))
    assert trim.is_unused(PurePath("onnxruntime/capi/libonnxruntime.so.1"))
    assert trim.is_unused(PurePath("rich/__pycache__/text.cpython-311.pyc"))


@pytest.mark.parametrize("exit_code", [0, 1])
def test_files_go_only_where_an_agent_trains_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int
) -> None:
    files = [tmp_path / "a" / "tests" / "test_a.py", tmp_path / "b" / "libonnxruntime.so.1"]
    kept = tmp_path / "b" / "kept.py"
    for file in [*files, kept]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    # The trial sees a device without them.
    looks = f"import pathlib, sys; sys.exit({exit_code} or any(pathlib.Path(p).exists() for p in sys.argv[1:]))"
    monkeypatch.setattr(trim, "TRIALS", [(sys.executable, "-c", looks, *map(str, files))])
    assert trim.trim(files) == (exit_code == 0)
    left = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    everything = {"a/tests/test_a.py": "test_a.py", "b/libonnxruntime.so.1": "libonnxruntime.so.1"}
    assert left == {"b/kept.py": "kept.py"} | ({} if exit_code == 0 else everything)
    assert (tmp_path / "a" / "tests").exists() == (exit_code != 0)


def test_a_file_that_cannot_be_moved_leaves_all_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.pyc"
    file.write_text("a")
    with pytest.raises(FileNotFoundError):
        trim.trim([file, tmp_path / "gone.pyc"])
    assert file.read_text() == "a"
    assert list(tmp_path.iterdir()) == [file]
