"""The same network, digits and four clients with Shoal, Flower and NVFLARE: what a user does, waits for and loses.

    python -m benchmarks.peers --install DIR        once: an environment for each peer, by pip
    python -m benchmarks.peers --environments DIR [--repeats 3 | --quick] --json
    python -m benchmarks.peers --write RESULT       the tables of docs/comparison.md and README.md, from such a result

Each client and each server is a network namespace with processes of its own (root, iproute2). A client has every fourth
digit of MNIST, 4,800 of them, and a round is one pass over them in batches of 32 (plain steps of 0.05), then a mean.
Nobody evaluates while it trains; one program judges every peer's last model. ``--quick`` has fewer rounds and
examples and kills nothing. A peer that is not installed is told as missing, and the others run.

Contenders take turns, each turn once the machine is quiet, or after ``--wait-s``. Each turn is kept in a file, so that
a run that was stopped goes on where it was, as long as the code and the releases are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import install, table
from benchmarks.peers.contenders import CONTENDERS, turn, version_of
from benchmarks.peers.repeats import Turn, Turns, is_done, wait_for_quiet
from benchmarks.peers.shares import CLIENTS
from benchmarks.peers.spread import is_quiet, of_contender
from testbed.namespaces import why_no_namespaces
from testbed.results import finish, say

VARIABLE = "SHOAL_PEERS"
#: In the environments' folder.
STATE = "turns.json"


def contest(
    given: Sequence[str], environments: Path, turns: Turns, folder: Path, *, repeats: int, wait_s: float, quick: bool
) -> dict[str, Any]:
    """Take the turns that are missing. Return each contender's figures over all."""
    versions = {name: version_of(name, environments) for name in given}
    for repeat in range(repeats):
        for name in given:
            if len([each for each in turns.of(name, versions[name]) if is_done(each)]) > repeat:
                continue
            say(f"{name}, turn {repeat + 1} of {repeats}")
            load = wait_for_quiet(wait_s)
            folder.mkdir(parents=True, exist_ok=True)
            # A new one each time: an earlier run may have left its logs there.
            place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
            figures = turn(name, environments, place, quick=quick)
            say(json.dumps({name: figures, "load": round(load, 2)}))
            turns.keep(name, versions[name], load=load, figures=figures)
    taken = {name: turns.of(name, versions[name]) for name in given}
    every: list[Turn] = sorted((each for found in taken.values() for each in found), key=lambda each: str(each["at"]))
    loads = [float(each["load"]) for each in every]
    result: dict[str, Any] = {name: of_contender(found) for name, found in taken.items()}
    result |= {"loads": loads, "repeats": repeats, "quiet": is_quiet(loads), "clients": CLIENTS, "quick": quick}
    result["command"] = f"python -m benchmarks.peers{f' --repeats {repeats}' if repeats > 1 else ''} --json"
    return result | {"date": str(every[-1]["at"])[:10] if every else str(datetime.now(UTC).date())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", type=Path, metavar="DIR", help="make the peers' environments there, and end")
    parser.add_argument("--write", type=Path, metavar="RESULT", help="keep this result, write the tables, and end")
    parser.add_argument("--table", type=Path, metavar="RESULT", help="print the tables of this result, and end")
    parser.add_argument("--environments", type=Path, metavar="DIR", help=f"where they are (or {VARIABLE})")
    parser.add_argument("--only", nargs="*", choices=tuple(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="turns of each")
    parser.add_argument("--wait-s", type=float, default=300.0, help="how long a turn waits for a quiet machine")
    parser.add_argument("--state", type=Path, metavar="FILE", help=f"where turns are kept (DIR/{STATE})")
    parser.add_argument("--quick", action="store_true", help="a few minutes: three rounds, nothing killed or kept")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs and models there")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    if given.install is not None:
        install.install(given.install)
        return
    if given.table is not None:
        print("\n\n".join(table.blocks(table.read(given.table)).values()))
        return
    if given.write is not None:
        table.write(table.read(given.write))
        return
    if reason := why_no_namespaces():
        raise SystemExit(f"this benchmark needs network namespaces: {reason}")
    environments = (given.environments or Path(os.environ.get(VARIABLE, "peers-environments"))).absolute()
    # Machines and processes are taken down on the way out, also when this is ended politely.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    turns = Turns(None if given.quick else given.state or environments / STATE)
    with tempfile.TemporaryDirectory(prefix="shoal-peers-") as scratch:
        result = contest(
            given.only,
            environments,
            turns,
            (given.keep or Path(scratch)).absolute(),
            repeats=given.repeats,
            wait_s=0.0 if given.quick else given.wait_s,
            quick=given.quick,
        )
    finish(result)


if __name__ == "__main__":
    main()
