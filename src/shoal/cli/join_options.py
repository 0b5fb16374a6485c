"""The options of `shoal join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.help import RARE

Line = Annotated[
    str,
    typer.Argument(
        metavar="[LINE]",
        help="The line that `shoal up` or `shoal token create` printed; not needed again once this device joined.",
        show_default=False,
    ),
]

LineFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read the line from a file, or from standard input with `-`: it then is in no shell's history. A"
        " device that joined goes on without the file.",
        show_default=False,
    ),
]

RemoveLine = Annotated[
    bool,
    typer.Option(
        "--remove-line", help="Remove the file of --line-file once this device has joined.", rich_help_panel=RARE
    ),
]

Name = Annotated[str, typer.Option(help="What to call this device.", show_default="its host name")]

Label = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="What this device is, such as room=3, for jobs that choose theirs; may be repeated; it is remembered.",
        show_default=False,
    ),
]

Anew = Annotated[bool, typer.Option("--anew", help="Delete this device's old identity and join as a new member.")]

Find = Annotated[
    bool, typer.Option("--find", help="Only list the clusters that announce themselves on the local network.")
]

Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where this device keeps examples of its own, for jobs that learn from them. They stay here.",
        show_default=False,
    ),
]

Part = Annotated[
    str,
    typer.Option(
        metavar="N/OF",
        help="Which part of a set that tasks divide among devices is this one's, such as 17/1000: see docs/online.md."
        " It is remembered.",
        show_default=False,
        rich_help_panel=RARE,
    ),
]

Files = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Read files of jobs here before they are fetched: what `shoal files` wrote; say it at every start.",
        show_default=False,
        rich_help_panel=RARE,
    ),
]

Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda:N|mps",
        help="The processor to train on; remembered.",
        show_default="the best that PyTorch finds",
    ),
]

Threads = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=1024, help="Threads to train with; remembered.", show_default="all cores"),
]

Cores = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        max=1024,
        help="Leave the other cores to other work; say it at every start.",
        show_default="all cores",
        rich_help_panel=RARE,
    ),
]

Hours = Annotated[
    str,
    typer.Option(
        metavar="SPAN",
        help="Work only in these hours, such as 22-6 or 20:30-6,12-13; say it at every start.",
        show_default="always",
    ),
]

MaxTemperature = Annotated[
    float,
    typer.Option(
        metavar="CELSIUS",
        help="Rest while this device is warmer; say it at every start.",
        show_default="none",
        rich_help_panel=RARE,
    ),
]

MaxEpsilon = Annotated[
    float,
    typer.Option(
        metavar="EPSILON",
        help="Tell all private jobs together at most this about this device's examples; it is remembered.",
        show_default="as each plan promises",
        rich_help_panel=RARE,
    ),
]

OperatorKey = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        help="Run only jobs, and take only members of sealed jobs, that the operator with this key signed (`shoal"
        " nodes key` shows it there); `none`: any operator's. It is remembered.",
        show_default="what the line says",
        rich_help_panel=RARE,
    ),
]

Lend = Annotated[
    bool,
    typer.Option(
        "--lend",
        help="Also multiply matrices for clients of this cluster, when they ask: see docs/offload.md.",
        rich_help_panel=RARE,
    ),
]

Hub = Annotated[
    bool,
    typer.Option(
        "--hub",
        help="Sum up for other devices and train nothing, without PyTorch; say it at every start: see"
        " docs/topologies.md.",
        rich_help_panel=RARE,
    ),
]

HubMbps = Annotated[
    float,
    typer.Option(
        metavar="MBPS",
        min=0.0,
        help="What a hub's link carries each way, in million bits a second; say it at every start.",
        show_default="as the leader's",
        rich_help_panel=RARE,
    ),
]

LeadPort = Annotated[
    int,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="Where to listen while this device leads a job, for a firewall to let through; say it at every start.",
        show_default="any free port",
        rich_help_panel=RARE,
    ),
]

Metrics = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Serve this device's metrics to Prometheus here: see docs/operations/metrics.md.",
        show_default="not served",
        rich_help_panel=RARE,
    ),
]

MetricsTokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with the bearer token that scrapers of --metrics send; needed beyond loopback.",
        show_default=False,
        rich_help_panel=RARE,
    ),
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings only.")]
