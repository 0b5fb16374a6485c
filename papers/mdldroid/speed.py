"""Figures 11b and 14: a run on N devices against one device, and against a master, on the testbed and by a model of it.

On the testbed every member is a process in a network of its own with a limited link, and what it trains is a wait as
long as a phone would take for its share; models, sockets, merges and the broadcast are real. The model adds the same up
from the schedule and the measured time of one merge, so that other links can be asked about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean, median

from benchmarks.chain_broadcast import rounds_needed
from benchmarks.chain_links import EqualLinks
from benchmarks.chain_schedule import play
from papers.harness.rows import Row
from papers.mdldroid.busy import name_of
from papers.mdldroid.crew import Crew, Seat
from papers.mdldroid.setting import PARAMETERS
from shoal.flock.pairing.pairs import EarliestTwo, Holder
from testbed.devices import Testbed, boards
from testbed.namespaces import why_no_namespaces
from testbed.results import say

SIZES = (2, 3, 4, 6, 8, 9)
#: What one device alone takes for an epoch, and what each link carries each way: a tenth of the time, and ten times the
#: rate, of a minute an epoch over a Bluetooth socket of 2 Mb/s. Only the ratio matters.
EPOCH_S = 6.0
RATE_MBIT = 20.0
ROUNDS = 5
#: What a merge takes, as a share of the epoch of one device alone.
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)


def run(quick: bool) -> list[Row]:
    rows: list[Row] = []
    if why_not := why_no_namespaces():
        say(f"   testbed: not run: {why_not}")
    else:
        rows += asyncio.run(_on_testbed((3,) if quick else SIZES, rounds=1 if quick else ROUNDS))
    for share in SHARES:
        rows += [{"what": "model", "share": share, **modelled(size, merge_share=share)} for size in SIZES]
    return rows


async def _on_testbed(sizes: Sequence[int], *, rounds: int) -> list[Row]:
    devices = boards(max(sizes), up_mbps=RATE_MBIT, down_mbps=RATE_MBIT)
    rows: list[Row] = []
    with Testbed(devices) as bed:
        seats = [Seat(before=device.exec(), host=device.address) for device in bed]
        async with Crew(values=PARAMETERS, seats=seats[:2]) as crew:
            # Two that train for no time: a merge and one hop of the broadcast.
            merge_s = median([await crew.chain_round(train_s=[0.0, 0.0]) for _ in range(rounds)]) / 2
        for size in sizes:
            row: Row = {"what": "testbed", "devices": size, "merge_s": merge_s, "one_s": EPOCH_S}
            async with Crew(values=PARAMETERS, seats=seats[:size]) as crew:
                train_s = [EPOCH_S / size] * size
                for how, play_round in (("chain", crew.chain_round), ("master", crew.master_round)):
                    taken = [await play_round(train_s=train_s) for _ in range(rounds)]
                    await crew.check()
                    row[f"{how}_s"] = median(taken)
            row["model_chain_s"] = EPOCH_S * modelled(size, merge_share=merge_s / EPOCH_S)["chain"]
            row["model_master_s"] = EPOCH_S * modelled(size, merge_share=merge_s / EPOCH_S)["master"]
            rows.append(row)
            say(f"   {size}: one {EPOCH_S:.2f} s, chain {row['chain_s']:.2f} s, master {row['master_s']:.2f} s")
    return rows


def modelled(size: int, *, merge_share: float) -> Row:
    """An epoch as a share of that of one device alone: training, merges, broadcast; all devices alike and free.

    A master's one link carries N - 1 models in and N - 1 out; a chain's merges and its broadcast are ⌈log2 N⌉ each.
    """
    devices = [Holder(name=name_of(place), ready_s=1 / size) for place in range(size)]
    merged = play(EarliestTwo(), devices, links=EqualLinks(each_s=merge_share)).makespan_s
    return {
        "devices": size,
        "chain": merged + rounds_needed(size) * merge_share,
        "master": 1 / size + 2 * (size - 1) * merge_share,
    }


def against_one(row: Row) -> float:
    return float(row["one_s"] / row["chain_s"])


def against_master(row: Row) -> float:
    return float(row["master_s"] / row["chain_s"])


def summed(rows: Sequence[Row]) -> dict[str, float | dict[str, float]]:
    """Of the testbed's rows: the speedups by size and on average."""
    found = [row for row in rows if row["what"] == "testbed"]
    if not found:
        return {}
    return {
        "speedup_vs_one": {str(row["devices"]): against_one(row) for row in found},
        "speedup_vs_master": {str(row["devices"]): against_master(row) for row in found},
        "speedup_vs_master_mean": fmean(against_master(row) for row in found),
    }
