"""The code map, docs/code-map.md: a table per folder, a row per file, which is the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

BEGIN, END = "<!-- code map: written by `python tools/tasks.py map` -->", "<!-- end of the code map -->"

#: Folder -> what it is, in the order of a reader: what a user touches, what decides, what acts, what checks.
ROOMS = {
    "src/shoal": "what a user touches",
    "src/shoal/plan_rules": "which keys of a plan do not go together",
    "src/shoal/learning": "equations of learning",
    "src/shoal/sealing": "masks that cancel in a sum",
    "src/shoal/compress": "updates in fewer bytes",
    "src/shoal/scheduling": "which batches, for which worker, until when",
    "src/shoal/scheduling/profile": "how many examples fit a device's budget",
    "src/shoal/topology": "star, tree or shard: predict and choose",
    "src/shoal/wire": "what crosses the wire",
    "src/shoal/wire/messages": "everything that is ever said, a file a conversation",
    "src/shoal/roles": "the contract of roles, and what several of them use",
    "src/shoal/roles/manager": "the manager",
    "src/shoal/roles/leader": "the leader of one job",
    "src/shoal/roles/leader/gathering": "how the updates of a version become one sum",
    "src/shoal/roles/worker": "the worker of one job",
    "src/shoal/roles/aggregator": "sums a part of the updates for a leader",
    "src/shoal/roles/node": "which role a message is for, on each node",
    "src/shoal/identity": "who a member is",
    "src/shoal/net": "gRPC, sessions under limits, access",
    "src/shoal/store": "what is durable",
    "src/shoal/trainer": "the child process that trains, and its sandbox",
    "src/shoal/trainer/portable": "a training step as an ONNX graph: captured with PyTorch, run without",
    "src/shoal/runtime": "the real driver",
    "src/shoal/sim": "the virtual driver",
    "src/shoal/sim/driver": "twins of the runtime's parts",
    "src/shoal/cli": "the command line",
    "src/shoal/cli/commands": "one file a command",
    "src/shoal/cli/render": "what people see",
    "src/shoal/console": "the page in a browser",
    "src/shoal/data": "well-known data sets",
    "src/shoal/flock": "a feature: devices without a manager",
    "src/shoal/flock/pairing": "which two merge next",
    "src/shoal/exporter": "a feature: metrics for Prometheus",
    "src/shoal/browser": "a feature: tabs of browsers that train",
    "src/shoal/offload": "a feature: products on devices that need not be trusted",
    "src/shoal/offload/roles": "its roles",
    "src/shoal/offload/runtime": "its driver",
    "src/shoal/offload/torch": "its layers for PyTorch",
    "dst": "seeded disasters and oracles (not in the wheel)",
    "dst/seeds": "many seeds and deliberate bugs: played, noted, found again",
    "testbed": "real devices made of this machine, and kits for tests, papers and benchmarks",
    "testbed/attacks": "attacks on real processes and on roles",
    "testbed/chaos": "a soak under faults",
    "testbed/crashes": "crashes while a checkpoint is saved",
    "testbed/managers": "several managers on one database, and what hurts them",
    "testbed/soak": "hours under faults, and what grows meanwhile",
    "testbed/servers": "PostgreSQL, object storage and HAProxy on ports of their own",
    "testbed/browsers": "a browser without a screen, and a checker of its pages",
    "tools": "checks of this repository",
}


def written(root: Path) -> str:
    """The code map of a tree."""
    return "\n".join(_tables(root))


def replaced(page: str, table: str) -> str:
    """A page with its code map replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


_LINK = re.compile(r"\[`(?P<path>[\w/]+\.py)::(?P<name>[\w.]+)`\]\((?P<target>[^)#]+)#L\d+\)")


def relined(page: str, root: Path) -> str:
    """A page whose links to functions name the lines where they stand now. KeyError: one is not there."""

    def link(found: re.Match[str]) -> str:
        path, name = found["path"], found["name"]
        return f"[`{path}::{name}`]({found['target']}#L{_line_of(root / 'src' / 'shoal' / path, name)})"

    return _LINK.sub(link, page)


def _line_of(path: Path, name: str) -> int:
    """The line of ``Class.method`` in a file."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    line = 0
    for part in name.split("."):
        found = next((node for node in body if isinstance(node, _NAMED) and node.name == part), None)
        if found is None:
            raise KeyError(f"{path.name} has no {name}")
        body, line = found.body, found.lineno
    return line


_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _tables(root: Path) -> Iterator[str]:
    for folder, what in ROOMS.items():
        files = [path for path in sorted((root / folder).glob("*.py")) if _says(path)]
        if not files:
            continue
        yield f"**`{folder.removeprefix('src/shoal/') if folder != 'src/shoal' else folder}/`**: {what}\n"
        yield "| file | |\n|---|---|"
        for path in files:
            yield f"| [`{path.stem}`](../{path.relative_to(root).as_posix()}) | {_says(path)} |"
        yield ""


def _says(path: Path) -> str:
    """The first sentence of a file's docstring; empty where it has none."""
    told = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    first = re.split(r"(?<=[.?!])\s", " ".join(told.split()), maxsplit=1)[0]
    return first.replace("|", "\\|")
