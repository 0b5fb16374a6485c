"""Writes ``tab/src/graph_rules.ts``: what a captured graph may be, from the rules that agents check it by."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.trainer.portable import graph
from shoal.trainer.portable.graphs_file import FILE_MAX_BYTES

TARGET = Path(__file__).parents[1] / "tab" / "src" / "graph_rules.ts"


def text() -> str:
    """The file's content."""
    numbers = {
        "OPSET": graph.OPSET,
        "IR_VERSION": graph.IR_VERSION,
        "GRAPH_MAX_BYTES": graph.GRAPH_MAX_BYTES,
        "FILE_MAX_BYTES": FILE_MAX_BYTES,
        "NODES_MAX": graph.NODES_MAX,
        "NODE_NAMES_MAX": graph.NODE_NAMES_MAX,
    }
    lines = [
        "// What a captured graph may be, as `trainer/portable/graph.py` says. Written by `python tools/tasks.py tab`;",
        "// do not edit.",
        "",
        *(f"export const {name} = {value};" for name, value in numbers.items()),
        f"export const LOOP = {json.dumps(graph.LOOP)};",
        "",
        "export const OPERATIONS: ReadonlySet<string> = new Set([",
        *(f"  {json.dumps(name)}," for name in sorted(graph.OPERATIONS)),
        "]);",
        "",
        "/** Fields that each part of a graph may have, by their numbers in onnx.proto. */",
        "export const GRAPH_FIELDS = {",
        *(f"  {what}: {json.dumps(fields)}," for what, fields in graph.FIELDS.items()),
        "} as const;",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
