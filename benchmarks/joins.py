"""What a join costs a manager that has many members already, in processor time.

A real manager is started on a registry that holds so many members with a certificate each. Devices join it over TLS
with a join line, from this process; the manager's processor time is counted, and divided by the joins. The same is done
with few members. All devices of a fleet may have the same host name, so the newcomers want one that is taken.

    python -m benchmarks.joins --json
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sqlite3
import tempfile
from pathlib import Path

from shoal.identity.enrolment import enrol
from shoal.identity.join_code import JoinCode
from shoal.runtime import local
from shoal.runtime.local import LocalCluster
from shoal.runtime.own_cluster import open_cluster
from shoal.runtime.paths import Paths
from shoal.store.registry import Registry
from testbed.processes import cpu_s
from testbed.results import finish, say

MEMBERS = 100_000
QUICK_MEMBERS = 20_000
FEW = 100

#: The name that all of them want.
NAME = "raspberrypi"

#: A manager that reads so many members takes a while to start on a busy machine.
local.START_TIMEOUT_S = 600.0


def fill(registry: Path, members: int) -> None:
    """Write members into the registry of a manager that does not run, as if they had joined."""
    database = sqlite3.connect(registry)
    names = [f"{NAME}-{number}" if number > 1 else NAME for number in range(1, members + 1)]
    hashes = [hashlib.sha256(name.encode()).hexdigest() for name in names]
    with database:
        database.executemany(
            "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state) VALUES"
            " (?, 'node', '{}', 1.0, 1.0, 'enrolled')",
            ((name,) for name in names),
        )
        database.executemany(
            "INSERT INTO certificates (sha256, node, role, key_sha256, issued_s, expires_s, number) VALUES"
            " (?, ?, 'node', ?, 1.0, 9e9, 1)",
            zip(hashes, names, hashes, strict=True),
        )
    database.close()


async def join_ms(members: int, joins: int) -> tuple[float, float]:
    """Milliseconds of the manager's processor a join, and seconds that it takes to start."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        open_cluster(Paths(home), name="joins")
        Registry(Paths(home).registry).close()
        fill(Paths(home).registry, members)
        # A line is made at the start, for as many devices as will join.
        options = ("--devices", str(joins + 1))
        async with LocalCluster(workers=0, home=home, manager_options=options) as cluster:
            assert cluster.manager is not None
            pid = cluster.manager.pid
            started_s = cpu_s(pid)
            code = JoinCode.parse(cluster.join_line)
            # The first one pays for imports.
            await enrol(code, wanted=NAME)
            before_s = cpu_s(pid)
            for _ in range(joins):
                joined = await enrol(code, wanted=NAME)
            used_s = cpu_s(pid) - before_s
            number = int(joined.identity.node.rpartition("-")[2])
            assert number > members, f"{joined.identity.node} was taken"
    return 1e3 * used_s / joins, started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--joins", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MEMBERS:,} members, within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    members = QUICK_MEMBERS if given.quick else given.members
    joins = min(given.joins, 40) if given.quick else given.joins
    few_ms, _ = asyncio.run(join_ms(FEW, joins))
    say(f"with {FEW} members: {few_ms:.1f} ms of processor a join")
    many_ms, start_s = asyncio.run(join_ms(members, joins))
    say(f"with {members:,} members: {many_ms:.1f} ms of processor a join; {start_s:.1f} s to start")
    finish(
        {
            "join_cpu_ms": many_ms,
            "few_join_cpu_ms": few_ms,
            "start_cpu_s": start_s,
            "members": members,
            "joins": joins,
            "load_1m": os.getloadavg()[0],
        }
    )


if __name__ == "__main__":
    main()
