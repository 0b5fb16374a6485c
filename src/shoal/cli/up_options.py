"""The options of `shoal up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.help import RARE

#: What a printed line is good for, unless the operator says otherwise.
LINE_DEVICES = 20
LINE_HOURS = 24.0

Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="The address to listen on; 0.0.0.0 is every one, IPv4 and IPv6.")
]

Port = Annotated[
    int,
    typer.Option(
        min=0, max=65534, help="Devices work over this port and join over the next one; 0 lets the system choose."
    ),
]

Advertise = Annotated[
    str,
    typer.Option(
        metavar="HOST[:PORT][,...]",
        help="The address or name that devices dial: a DNS name outlives a change of address. They join over the"
        " next port. After a comma, those of the cluster's other managers, which devices dial if this one is gone.",
        show_default="this machine's address",
    ),
]

Direct = Annotated[
    str,
    typer.Option(
        metavar="HOST[:PORT]",
        help="Where devices dial this manager and no other, if --advertise is a proxy before several: a device is"
        " sent to the manager that has its job. Without a port, the one that is listened on.",
        show_default="as --advertise",
        rich_help_panel=RARE,
    ),
]

Token = Annotated[
    bool | None,
    typer.Option(
        "--token/--no-token",
        help="Print a new line to join with, or none.",
        show_default="only while no device has joined",
    ),
]

Devices = Annotated[
    int | None,
    typer.Option(min=1, help="Print a new line, for this many devices.", show_default=str(LINE_DEVICES)),
]

Hours = Annotated[
    float | None,
    typer.Option(
        min=0.01, help="Print a new line, which can be used for this many hours.", show_default=f"{LINE_HOURS:g}"
    ),
]

Name = Annotated[str, typer.Option(metavar="CLUSTER", help="What to call a new cluster.")]

Approve = Annotated[
    bool, typer.Option("--approve", help="A device that joins waits until you say `shoal nodes approve`.")
]

CertificateDays = Annotated[
    float,
    typer.Option(
        min=1, help="How long a device's certificate is valid; devices renew theirs in time.", rich_help_panel=RARE
    ),
]

Announce = Annotated[
    bool, typer.Option("--announce", help="Let `shoal join --find` see this cluster on the local network.")
]

Lead = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where leaders run: `here` (this machine), `devices`, or `auto` (devices lead sealed jobs without"
        " signed members, this machine the others).",
        rich_help_panel=RARE,
    ),
]

Console = Annotated[bool, typer.Option("--console", help="Run `shoal console` beside it, for as long as this runs.")]

Browser = Annotated[
    str,
    typer.Option(
        metavar="ORIGIN",
        help="Let tabs of browsers train: https://NAME:PORT with a certificate for that name, or"
        " http://127.0.0.1:PORT for this machine's own. Needs `shoal browser runtime` once.",
        show_default="no tabs",
        rich_help_panel=RARE,
    ),
]

BrowserCertificate = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The certificate of --browser, PEM.", show_default=False, rich_help_panel=RARE),
]

BrowserKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The key of --browser-certificate.", show_default=False, rich_help_panel=RARE),
]

BrowserOperator = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help="Who runs this cluster, as visitors read it before they agree.",
        show_default="not told",
        rich_help_panel=RARE,
    ),
]

BrowserPurpose = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help="What the cluster trains for, as visitors read it before they agree.",
        show_default="not told",
        rich_help_panel=RARE,
    ),
]

BrowserOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Let pages of this other site, such as https://app.example, use the door of --browser and show its page"
        " in a frame. Repeat it for more sites.",
        show_default="only pages of --browser",
        rich_help_panel=RARE,
    ),
]

DiskQuota = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="The most that the cluster's files may take, such as 20GB: beyond it the files of the jobs that ended"
        " first go.",
        show_default="all of the disk",
        rich_help_panel=RARE,
    ),
]

KeepJobs = Annotated[
    str,
    typer.Option(
        metavar="TIME|COUNT",
        help="Remove ended jobs after this time, such as 90d, or all but this many, with their checkpoints and"
        " published versions.",
        show_default="all are kept",
        rich_help_panel=RARE,
    ),
]

CheckIn = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Devices without work hang up and come again after this time, such as 6h: for fleets of many"
        " thousands. A job waits for them that long.",
        show_default="devices stay connected",
        rich_help_panel=RARE,
    ),
]

ContributeMb = Annotated[
    int,
    typer.Option(
        metavar="MB",
        min=0,
        help="Let each device add up to this many megabytes of entries to shared sets (`shoal contribute`). They wait"
        " for your approval.",
        show_default="none",
        rich_help_panel=RARE,
    ),
]

Store = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="SHOAL_STORE",
        help="Keep members, jobs and history in PostgreSQL: postgresql://USER@HOST/DATABASE. A password belongs in"
        " SHOAL_STORE or ~/.pgpass, not here.",
        show_default="a file in HOME",
        rich_help_panel=RARE,
    ),
]

Blobs = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Keep models, checkpoints and data in an S3: s3://BUCKET/PREFIX, with AWS_ACCESS_KEY_ID and its kin.",
        show_default="a folder in HOME",
        rich_help_panel=RARE,
    ),
]

Downloads = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where devices download data and models that are in --blobs: through this `manager`, from the `bucket`"
        " by signed URLs, or from a CDN in front of it, https://HOST/PREFIX.",
        rich_help_panel=RARE,
    ),
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings only, not every decision.")]

Json = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON when the cluster is up.", rich_help_panel=RARE)
]
