"""What a device refuses of a graph before any library reads it."""

from __future__ import annotations

import pytest

from shoal.errors import Corrupt
from shoal.trainer.portable.graph import GRAPH_MAX_BYTES, NODES_MAX, OPERATIONS, OPSET, check_graph

onnx = pytest.importorskip("onnx")


def model(*nodes: object, opset: int = OPSET, domain: str = "", ir_version: int = 9) -> object:
    helper = onnx.helper
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in ("x", "y")]
    graph = helper.make_graph(list(nodes), "step", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)], ir_version=ir_version)


def node(kind: str = "Relu", **attributes: object) -> object:
    return onnx.helper.make_node(kind, ["x"], ["y"], **attributes)


def refused(graph: object, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        check_graph(graph.SerializeToString())  # type: ignore[attr-defined]


def test_counts_the_nodes_of_a_graph_of_ours() -> None:
    assert check_graph(model(node(), node("Transpose", perm=[0])).SerializeToString()) == 2  # type: ignore[attr-defined]


def test_refuses_operations_that_are_not_on_the_list() -> None:
    for kind in ("If", "Loop", "SequenceMap", "Dropout", "Optional"):
        assert kind not in OPERATIONS
        refused(model(node(kind)), "operation")


def test_refuses_other_domains_opsets_and_formats() -> None:
    refused(model(node(), domain="com.microsoft"), "ONNX's set")
    refused(model(node(), opset=OPSET - 1), "ONNX's set")
    refused(model(node(), ir_version=8), "format")
    custom = model(onnx.helper.make_node("Relu", ["x"], ["y"], domain="com.microsoft"))
    refused(custom, "field 7")


def test_refuses_subgraphs_functions_and_external_data() -> None:
    inner = onnx.helper.make_graph([node()], "inner", [], [])
    refused(model(node("Relu", body=inner)), "has 1 graphs")
    with_function = model(node())
    with_function.functions.add().name = "f"  # type: ignore[attr-defined]
    refused(with_function, "model of a graph has field 25")
    outside = model(node())
    table = outside.graph.initializer.add()  # type: ignore[attr-defined]
    table.data_location = onnx.TensorProto.EXTERNAL
    refused(outside, "constant of a graph has field 14")


def scan(*nodes: object, **more: object) -> object:
    """A loop over the rows of x, whose step has these nodes."""
    ends = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("x", "y")]
    return node("Scan", num_scan_inputs=1, body=onnx.helper.make_graph(list(nodes), "step", ends[:1], ends[1:]), **more)


def test_a_loop_has_one_step_that_is_checked_like_the_graph() -> None:
    assert check_graph(model(scan(node(), node())).SerializeToString()) == 3  # type: ignore[attr-defined]
    refused(model(scan(node("Dropout"))), "operation")
    refused(model(scan(scan(node()))), "a step has no loops")
    refused(model(node("Scan", num_scan_inputs=1)), "has 0 graphs")
    step = onnx.helper.make_graph([node()], "step", [], [])
    refused(model(scan(node(), other=step)), "has 2 graphs")
    refused(model(scan(node(body=step))), "has 1 graphs")
    crowd = onnx.helper.make_graph([node()] * (NODES_MAX // 2), "step", [], [])
    refused(model(*[node("Scan", body=crowd)] * 3), "more than")


def test_refuses_what_is_too_long_cut_short_or_no_protobuf() -> None:
    whole = model(node()).SerializeToString()  # type: ignore[attr-defined]
    with pytest.raises(Corrupt, match="at most"):
        check_graph(b"\0" * (GRAPH_MAX_BYTES + 1))
    for stop in range(len(whole)):
        with pytest.raises(Corrupt):
            check_graph(whole[:stop])
    with pytest.raises(Corrupt):
        check_graph(b"\xff" * 20)


def test_every_lowering_gives_operations_of_the_list() -> None:
    """Each operation that the lowerings name is on the list, and none is there for nothing."""
    import re
    from pathlib import Path

    from shoal.trainer.portable import graph

    folder = Path(graph.__file__).parent
    files = ("emit.py", "lower_values.py", "lower_layers.py", "lower_loops.py", "build.py")
    sources = "".join((folder / name).read_text() for name in files)
    named = set(re.findall(r'"([A-Z][A-Za-z]+)"', sources))
    assert named - OPERATIONS <= {"Is", "Scalar", "Tensor"}
    assert not OPERATIONS - named
