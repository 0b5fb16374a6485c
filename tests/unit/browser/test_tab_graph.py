"""The tab's reader of graphs against Python's: whole graphs, and thousands that were broken."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import Corrupt
from shoal.trainer.portable.graph import NODES_MAX, OPERATIONS, OPSET, check_graph

onnx = pytest.importorskip("onnx")

TAB = Path(__file__).parents[3] / "tab"
BROKEN = 6_000

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine"),
    pytest.mark.skipif(
        not (TAB / "node_modules").is_dir(), reason="the tab's tools are not here: python tools/tasks.py tab"
    ),
]

PLAY = """
import { readFileSync } from "node:fs";
import { checkGraph } from "./built/graph.mjs";
const told = readFileSync(process.argv[1], "utf-8").trim().split("\\n").map((line) => {
  try {
    return checkGraph(new Uint8Array(Buffer.from(line, "base64")));
  } catch (error) {
    return error.message;
  }
});
console.log(JSON.stringify(told));
"""


def model(*kinds: str, opset: int = OPSET, domain: str = "", ir_version: int = 9, **attributes: object) -> bytes:
    helper = onnx.helper
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in ("x", "y")]
    nodes = [helper.make_node(kind, ["x"], ["y"], **attributes) for kind in kinds]
    constant = helper.make_tensor("c", 1, [3], [1.0, 2.0, 3.0])
    graph = helper.make_graph(nodes, "step", ends[:1], ends[1:], [constant])
    sets = [helper.make_opsetid(domain, opset)]
    whole: bytes = helper.make_model(graph, opset_imports=sets, ir_version=ir_version).SerializeToString()
    return whole


def step(*kinds: str, **attributes: object) -> object:
    helper = onnx.helper
    ends = [helper.make_tensor_value_info(name, 1, None) for name in ("x", "y")]
    nodes = [helper.make_node(kind, ["x"], ["y"], **attributes) for kind in kinds]
    return helper.make_graph(nodes, "step", ends[:1], ends[1:])


def in_tab(graphs: list[bytes], folder: Path) -> list[int | str]:
    """What the tab says of each: how many nodes it has, or why it is refused."""
    subprocess.run(["node", "build.mjs", str(folder / "built")], cwd=TAB, check=True, timeout=300)
    (folder / "graphs").write_text("\n".join(base64.b64encode(graph).decode() for graph in graphs))
    command = ["node", "--input-type=module", "-e", PLAY, str(folder / "graphs")]
    told = subprocess.run(command, cwd=TAB, check=True, capture_output=True, text=True, timeout=300)
    found: list[int | str] = json.loads(told.stdout)
    return found


def in_python(graph: bytes) -> int | None:
    try:
        return check_graph(graph)
    except Corrupt:
        return None


def broken(whole: list[bytes], count: int) -> list[bytes]:
    """Bytes changed, put in, taken out, or cut off."""
    draw = np.random.Generator(np.random.PCG64(23))
    made = []
    for _ in range(count):
        graph = bytearray(whole[int(draw.integers(len(whole)))])
        for _ in range(int(draw.integers(1, 4))):
            at = int(draw.integers(len(graph)))
            match int(draw.integers(4)):
                case 0:
                    graph[at] = int(draw.integers(256))
                case 1:
                    graph.insert(at, int(draw.integers(256)))
                case 2:
                    del graph[at]
                case _:
                    graph[at] ^= 1 << int(draw.integers(8))
            graph = graph or bytearray(b"\0")
        made.append(bytes(graph[: int(draw.integers(1, len(graph) + 1))] if draw.random() < 0.1 else graph))
    return made


def test_a_tab_reads_graphs_as_an_agent_does(tmp_path: Path) -> None:
    bad = [
        model("If"),
        model("Loop", "Relu"),
        model("Relu", domain="com.microsoft"),
        model("Relu", opset=OPSET - 1),
        model("Relu", ir_version=8),
        model("Relu", body=step()),
        model("Scan"),
        model("Scan", body=step("If")),
        model("Scan", body=step("Scan", body=step())),
        model("Scan", body=step(), other=step()),
        model("Scan", "Scan", body=step(*["Relu"] * (NODES_MAX // 2))),
        # A mark of byte order before a name that is on the list.
        model("\ufeffRelu"),
        model(*["Relu"] * (NODES_MAX + 1)),
        b"\xff" * 20,
        # The number of a field beyond 64 bits, whose last 64 are a field of ours.
        b"\x88\x80\x80\x80\x80\x80\x80\x80\x80\x02\x09" + model("Relu"),
        model("Relu") + model("Relu"),
    ]
    loop = model("Scan", num_scan_inputs=1, body=step("Relu", "Tanh"))
    good = [
        model(*sorted(OPERATIONS - {"Scan"})),
        loop,
        model("Transpose", "Relu", perm=[0, 1]),
        model("Relu", alpha=0.5, name_="n"),
    ]
    graphs = [*good, *bad, *broken([*good[1:], model("Relu")], BROKEN)]
    told, ours = in_tab(graphs, tmp_path), [in_python(graph) for graph in graphs]
    assert ours[: len(good)] == [len(OPERATIONS) - 1, 3, 2, 1]
    assert ours[len(good) : len(good) + len(bad)] == [None] * len(bad)
    differ = [
        (told_, wanted) for told_, wanted in zip(told, ours, strict=True)
        if (told_ if isinstance(told_, int) else None) != wanted
    ]  # fmt: skip
    assert differ == []
    # Of those that were broken both kinds are many: a reader that takes all or none would not pass.
    taken = sum(each is not None for each in ours[len(good) + len(bad) :])
    assert 300 < taken < BROKEN - 300
    assert '"If"' in str(told[len(good)])
