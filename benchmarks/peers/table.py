"""The tables of the comparison, from one kept result: docs/comparison.md and README.md have them between two marks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.repeats import QUIET_LOAD, ROOT

KEPT = ROOT / "benchmarks" / "results" / "peers.json"
BEGIN = "<!-- measured by `python -m benchmarks.peers`, written by its `--write`: begin -->"
END = "<!-- measured by `python -m benchmarks.peers`: end -->"

#: The columns.
PEERS = {"shoal": "Shoal", "flower": "Flower", "nvflare": "NVFLARE"}
#: Who is told to go on without a client that was lost.
FORGIVING = {"flower": "flower_timeout", "nvflare": "nvflare_three"}

Result = dict[str, Any]
Cell = Callable[[Result, str], str]


def read(file: Path) -> Result:
    """Read the last line that a run printed, or a kept file."""
    text = file.read_text(encoding="utf-8").strip()
    result: Result = json.loads(text if text.startswith("{\n") else text.splitlines()[-1])
    return result


def kept(result: Result) -> Result:
    """Return what the tables need. Commands and errors name folders of the machine that ran them."""
    lean = {name: _lean(value) if isinstance(value, dict) else value for name, value in result.items()}
    return {name: value for name, value in lean.items() if value != {}}


def _lean(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, dict) or name in {"version", "unmet", "missing", "turns", "loads"}
    }


def write(result: Result) -> None:
    if result["quick"]:
        raise SystemExit("figures of --quick do not count")
    result = kept(result)
    KEPT.parent.mkdir(exist_ok=True)
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in result.items()]
    KEPT.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    for page, block in blocks(result).items():
        file = ROOT / page
        file.write_text(replaced(file.read_text(encoding="utf-8"), block), encoding="utf-8")


def replaced(page: str, block: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"a page has no place for the table: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def blocks(result: Result) -> dict[str, str]:
    """Return the text between the marks of each page."""
    return {"docs/comparison.md": comparison(result), "README.md": readme(result)}


def comparison(result: Result) -> str:
    rows: list[tuple[str, Cell]] = [
        ("load of the machine when its turns began", _loads),
        ("commands typed, lines written", _joined(_number("steps"), _number("lines_user_writes"))),
        ("first model after", _seconds("first_model_s")),
        ("a round with training", _seconds("round_s")),
        ("a client's memory", _number("client_rss_mb", " MB")),
        ("a client sends, receives a round", _joined(_kilobytes("up"), _kilobytes("down"))),
        (f"right after {_count(result, 'rounds')} rounds", _accuracy),
        ("a client is killed: next model after", _seconds("client_killed_s")),
        ("the same, where it is told to go on without one †", _forgiven),
        ("the client is started again: it sends an update after", _seconds("client_back_s")),
        ("the server is killed, started again after 5 s", _server),
    ]
    lines = [f"| {name} | {' | '.join(cell(result, peer) for peer in PEERS)} |" for name, cell in rows]
    return "\n".join([*_head(result), *lines, "", _when(result), *_averaging(result)])


def readme(result: Result) -> str:
    rows = {
        "used in production by others": ["no", "yes", "yes"],
        "a round with training": [_seconds("round_s")(result, peer) for peer in PEERS],
        "next model after a client is killed": [_kindest(result, peer) for peer in PEERS],
    }
    return "\n".join([*_head(result), *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def _head(result: Result) -> list[str]:
    names = [f"{name} {result.get(peer, {}).get('version', '')}".strip() for peer, name in PEERS.items()]
    return [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(PEERS)]


def _when(result: Result) -> str:
    repeats = result["repeats"]
    turns = "one turn of each" if repeats == 1 else f"medians of {repeats} turns of each (least to greatest)"
    told = f"Measured on {result['date']} by `{result['command']}`: {turns}."
    if result["quiet"]:
        return told
    return (
        f"{told} **The machine was not quiet** (a load of {QUIET_LOAD:g} or more on two cores), so seconds are mostly"
        " training and waiting for a core: read them as orders of magnitude."
    )


def _averaging(result: Result) -> list[str]:
    figures = result.get("hivemind", {})
    if "average_s" not in figures:
        return []
    cell = _joined(_kilobytes("up"), _kilobytes("down"))(result, "hivemind")
    return [
        "",
        f"hivemind {figures['version']} trains nothing here: four peers average the same 61,706 values in"
        f" {_seconds('average_s')(result, 'hivemind')}; each sends and receives {cell} for that.",
    ]


# Cells -------------------------------------------------------------------------------------------


def _spread(result: Result, peer: str, *path: str) -> dict[str, float | None] | None:
    found = result.get(peer, {})
    for name in path:
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) and "median" in found else None


def _told(found: dict[str, float | None] | None, unit: str, late: str, scale: float = 1.0) -> str:
    """The median, and the spread if that says anything else. A round that nobody saw the end of is late."""
    if found is None:
        return "not measured"
    median, least, greatest = (_figure(found[name], late, scale) for name in ("median", "least", "greatest"))
    units = "" if median == late else unit
    if least == greatest:
        return median + units
    return f"{median}{units} ({least} to {greatest})"


def _figure(value: float | None, late: str, scale: float) -> str:
    if value is None:
        return late
    value *= scale
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def _number(name: str, unit: str = "") -> Cell:
    return lambda result, peer: _told(_spread(result, peer, name), unit, "none")


def _seconds(name: str) -> Cell:
    return lambda result, peer: _told(_spread(result, peer, name), " s", "none within 120 s")


def _kilobytes(way: str) -> Cell:
    return lambda result, peer: _told(_spread(result, peer, "client_bytes", way), " kB", "none", scale=0.001)


def _joined(*cells: Cell) -> Cell:
    return lambda result, peer: ", ".join(cell(result, peer) for cell in cells)


def _loads(result: Result, peer: str) -> str:
    """Return the loads of all turns of this peer, also of those with another setting."""
    names = (peer, FORGIVING.get(peer, ""))
    loads = [load for name in names for load in result.get(name, {}).get("loads", [])]
    return ", ".join(f"{load:.2g}" for load in loads) or "not measured"


def _accuracy(result: Result, peer: str) -> str:
    found = _spread(result, peer, "accuracy")
    if found is None:
        return "not measured"
    median, least, greatest = (f"{100 * (found[name] or 0.0):.1f}" for name in ("median", "least", "greatest"))
    return f"{median} %" if least == greatest else f"{median} % ({least} to {greatest})"


def _forgiven(result: Result, peer: str) -> str:
    name = FORGIVING.get(peer)
    return "as above" if name is None else _seconds("client_killed_s")(result, name)


def _kindest(result: Result, peer: str) -> str:
    """With the setting that suits a peer best, where that was measured."""
    forgiving = FORGIVING.get(peer, "")
    found = [_spread(result, name, "client_killed_s") for name in (peer, forgiving)]
    named = zip(found, (peer, forgiving), strict=True)
    known = [(each["median"], name) for each, name in named if each is not None and each["median"] is not None]
    cell = _seconds("client_killed_s")(result, min(known)[1] if known else peer)
    return f"{cell} by default" if forgiving and found[1] is None else cell


def _came(found: dict[str, float | None] | None) -> bool:
    return found is not None and found["median"] is not None


def _server(result: Result, peer: str) -> str:
    goes_on = _spread(result, peer, "server_killed_s")
    if goes_on is None:
        return "not measured"
    lost = _told(_spread(result, peer, "server_killed_lost_rounds"), "", "all")
    if _came(goes_on):
        return f"next model after {_told(goes_on, ' s', 'none within 120 s')}, {lost} models lost"
    again = _told(_spread(result, peer, "server_killed_again_s"), " s", "none within 120 s")
    return f"does not go on; the job, given again, has a first model after: {again}; {lost} models lost"


def _count(result: Result, name: str, peers: Sequence[str] = tuple(PEERS)) -> str:
    found = [_spread(result, peer, name) for peer in peers]
    return next((f"{each['median']:g}" for each in found if each is not None and each["median"] is not None), "8")
