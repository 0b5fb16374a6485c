"""`shoal join`: make this device a member of a cluster, then become its agent."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.help import RARE
from shoal.cli.options import DEFAULT_HOME, Home, LogFormat, check_home
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.identity.enrolment import Enrolled
    from shoal.identity.join_code import JoinCode

_NAME_MAX_CHARS = 63

#: How long clusters have to answer.
_FIND_S = 3.0


def join(
    line: Annotated[
        str,
        typer.Argument(
            metavar="[LINE]",
            help="The line that `shoal up` or `shoal token create` printed; not needed again once this device joined.",
            show_default=False,
        ),
    ] = "",
    line_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read the line from a file, or from standard input with `-`: it then is in no shell's history. A"
            " device that joined goes on without the file.",
            show_default=False,
        ),
    ] = None,
    remove_line: Annotated[
        bool,
        typer.Option(
            "--remove-line", help="Remove the file of --line-file once this device has joined.", rich_help_panel=RARE
        ),
    ] = False,
    name: Annotated[str, typer.Option(help="What to call this device.", show_default="its host name")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What this device is, such as room=3, for jobs that choose theirs; may be repeated; it is remembered.",
            show_default=False,
        ),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Delete this device's old identity and join as a new member.")
    ] = False,
    find: Annotated[
        bool, typer.Option("--find", help="Only list the clusters that announce themselves on the local network.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where this device keeps examples of its own, for jobs that learn from them. They stay here.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Read files of jobs here before they are fetched: what `shoal files` wrote; say it at every start.",
            show_default=False,
            rich_help_panel=RARE,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda:N|mps",
            help="The processor to train on; remembered.",
            show_default="the best that PyTorch finds",
        ),
    ] = "",
    threads: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=1024, help="Threads to train with; remembered.", show_default="all cores"),
    ] = 0,
    cores: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=1024,
            help="Leave the other cores to other work; say it at every start.",
            show_default="all cores",
            rich_help_panel=RARE,
        ),
    ] = 0,
    hours: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Work only in these hours, such as 22-6 or 20:30-6,12-13; say it at every start.",
            show_default="always",
        ),
    ] = "",
    max_temperature: Annotated[
        float,
        typer.Option(
            metavar="CELSIUS",
            help="Rest while this device is warmer; say it at every start.",
            show_default="none",
            rich_help_panel=RARE,
        ),
    ] = 0.0,
    max_epsilon: Annotated[
        float,
        typer.Option(
            metavar="EPSILON",
            help="Tell all private jobs together at most this about this device's examples; it is remembered.",
            show_default="as each plan promises",
            rich_help_panel=RARE,
        ),
    ] = 0.0,
    operator_key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Run only jobs, and take only members of sealed jobs, that the operator with this key signed (`shoal"
            " nodes key` shows it there); `none`: any operator's. It is remembered.",
            show_default="what the line says",
            rich_help_panel=RARE,
        ),
    ] = "",
    lend: Annotated[
        bool,
        typer.Option(
            "--lend",
            help="Also multiply matrices for clients of this cluster, when they ask: see docs/offload.md.",
            rich_help_panel=RARE,
        ),
    ] = False,
    hub: Annotated[
        bool,
        typer.Option(
            "--hub",
            help="Sum up for other devices and train nothing, without PyTorch; say it at every start: see"
            " docs/topologies.md.",
            rich_help_panel=RARE,
        ),
    ] = False,
    hub_mbps: Annotated[
        float,
        typer.Option(
            metavar="MBPS",
            min=0.0,
            help="What a hub's link carries each way, in million bits a second; say it at every start.",
            show_default="as the leader's",
            rich_help_panel=RARE,
        ),
    ] = 0.0,
    lead_port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Where to listen while this device leads a job, for a firewall to let through; say it at every start.",
            show_default="any free port",
            rich_help_panel=RARE,
        ),
    ] = 0,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve this device's metrics to Prometheus here: see docs/operations/metrics.md.",
            show_default="not served",
            rich_help_panel=RARE,
        ),
    ] = "",
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the bearer token that scrapers of --metrics send; needed beyond loopback.",
            show_default=False,
            rich_help_panel=RARE,
        ),
    ] = None,
    home: Home = DEFAULT_HOME,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings only.")] = False,
    log_format: LogFormat = "",
) -> None:
    """Join this device to a cluster and work for it. Joining lets the cluster's operator run task code here.

    Example:  `shoal join shoal://192.168.1.10:7071/abc… --name attic-pi4`

    With the line in a file that is removed after use:  `shoal join --line-file /etc/shoal/line --remove-line`

    With examples that never leave it:  `shoal join shoal://… --data /srv/readings`; the folder is remembered.
    """
    if find:
        _list_clusters()
        return
    line = _given_line(home, line, line_file, remove=remove_line, anew=anew)
    folder = _folder(data)
    if files is not None and not files.is_dir():
        raise Misuse(f"there is no folder {files}: --files names the folder that `shoal files --out` wrote")
    if hours or max_temperature:
        from shoal.runtime.device_limits import DeviceLimits

        # Before the line is used: it may be good for one attempt.
        DeviceLimits.of(hours=hours, max_temperature_c=max_temperature)
    if max_epsilon:
        from shoal.runtime.privacy_accounts import checked_limit

        checked_limit(max_epsilon)
    if operator_key and operator_key != "none":
        from shoal.identity.cards import parse_key

        parse_key(operator_key)
    if label:
        from shoal.where import parse_labels

        parse_labels(label)
    if log_format:
        from shoal.runtime.log_lines import log_format as checked_format

        checked_format(log_format)
    if hub_mbps and not hub:
        raise Misuse("--hub-mbps is the link of a hub: say --hub too")
    if hub and (folder is not None or device or threads or lend):
        raise Misuse("a hub trains nothing: leave out --hub, or --data, --device, --threads and --lend")
    if metrics:
        # Before the line is used: it may be good for one attempt.
        _check_metrics(metrics, metrics_token_file)
    if device:
        from shoal.trainer.processors import checked_device

        checked_device(device)
        _check_processor(device)
    member = _member(home, line, name, anew=anew)
    if line_file is not None and remove_line:
        _remove_line(line_file)
    if member.identity.role == "operator":
        if folder is not None:
            print("An operator does not train: --data is left out.", file=sys.stderr)
        print(f"{member.identity.node} may operate cluster {member.identity.cluster} from here. Try: shoal status")
        return
    _pin(home, line, operator_key, anew=anew)
    if folder is not None:
        _remember(home, folder)
    if max_epsilon:
        from shoal.runtime.paths import Paths
        from shoal.runtime.privacy_accounts import remember_limit

        remember_limit(Paths(home).node, max_epsilon)
    if label:
        from shoal.runtime import own_labels
        from shoal.runtime.paths import Paths

        own_labels.remember(Paths(home), label)
    if device or threads:
        from shoal.runtime import own_processor
        from shoal.runtime.paths import Paths

        own_processor.remember(Paths(home), device=device, threads=threads)
    # Typed text goes to the terminal below; a name from a certificate is already a plain one.
    print(f"{member.identity.node} is in cluster {member.identity.cluster}, managed at {member.manager_endpoint}.")
    print("Waiting for work. Ctrl-C leaves; `shoal join` comes back.", flush=True)
    options = ["--quiet"] if quiet else []
    if log_format:
        options += ["--log-format", log_format]
    if lend:
        options.append("--lend")
    if hub:
        options.append("--hub")
    if hub_mbps:
        options += ["--hub-mbps", str(hub_mbps)]
    if files is not None:
        options += ["--files", str(files.absolute())]
    if lead_port:
        options += ["--lead-port", str(lead_port)]
    if cores:
        options += ["--cores", str(cores)]
    if hours:
        options += ["--hours", hours]
    if max_temperature:
        options += ["--max-temperature", str(max_temperature)]
    if metrics:
        options += ["--metrics", metrics]
    if metrics_token_file is not None:
        options += ["--metrics-token-file", str(metrics_token_file.absolute())]
    if folder is not None:
        # What was typed just now is meant, whatever the environment says.
        options += ["--data", str(folder)]
    _become_agent(home, options)


def _pin(home: Path, line: str, operator_key: str, *, anew: bool) -> None:
    """Pin the operator's key that the person typed or that the line has, and show this device's own."""
    from shoal.identity.card_files import make_card_key, pin_operator, pinned_operator, unpin_operator
    from shoal.identity.cards import key_text, parse_key
    from shoal.identity.join_code import JoinCode
    from shoal.runtime.paths import Paths

    folder, of_line = Paths(home).node, JoinCode.parse(line).operator_key if line else b""
    if operator_key == "none" or (anew and not operator_key and not of_line):
        unpin_operator(folder)
    elif operator_key:
        pin_operator(folder, parse_key(operator_key), may_change=True)
    elif of_line:
        pin_operator(folder, of_line, may_change=anew)
    print(f"This device's key, for the operator to sign: {key_text(make_card_key(folder).public)}")
    if pinned := pinned_operator(folder):
        print(f"It runs only jobs, and takes only members, of the operator with the key {key_text(pinned)}")


def _check_metrics(listen: str, token_file: Path | None) -> None:
    from shoal.runtime.metrics_door import listen_at

    listen_at(listen, token_file=token_file)


def _check_processor(device: str) -> None:
    """Refuse a processor that PyTorch does not find here. Otherwise every job would fail on this device."""
    from shoal.cli import probes

    if device in ("auto", "cpu"):
        return
    if not probes.torch_facts().version:
        raise Misuse(f"--device {device}: PyTorch is not installed here. Install it, or leave --device out")
    print(f"Looking for {device} ...", file=sys.stderr, flush=True)
    tried = probes.run_torch(device=device)
    if tried.exit_code is None:
        print(f"Warning: PyTorch has not answered whether {device} is here; joining anyway.", file=sys.stderr)
    elif tried.exit_code:
        why = tried.last_words or f"PyTorch ended with exit code {tried.exit_code}"
        raise Misuse(why if why.startswith("--device") else f"--device {device} cannot be used: {why}")


def _given_line(home: Path, line: str, file: Path | None, *, remove: bool, anew: bool) -> str:
    """The join line, wherever it was given; empty: none was."""
    from shoal.cli.line_file import STANDARD_INPUT, read_line
    from shoal.identity.identity import IDENTITY_FILE

    if file is None:
        if remove:
            raise Misuse("--remove-line removes the file of --line-file: name that file")
        return line
    if line:
        raise Misuse("the line is given twice: leave out the argument or --line-file")
    if remove and file == STANDARD_INPUT:
        raise Misuse("standard input cannot be removed: leave out --remove-line")
    return read_line(file, may_be_absent=(home / "node" / IDENTITY_FILE).exists() and not anew)


def _remove_line(file: Path) -> None:
    from shoal.cli.line_file import remove_line

    if problem := remove_line(file):
        print(f"Warning: {problem}", file=sys.stderr, flush=True)


def _folder(data: Path | None) -> Path | None:
    from shoal.runtime.own_data import checked

    # Before the line is used: it may be good for one attempt.
    return checked(data) if data is not None else None


def _remember(home: Path, folder: Path) -> None:
    from shoal.runtime.own_data import remember
    from shoal.runtime.paths import Paths

    remember(Paths(home), folder)


def _list_clusters() -> None:
    """List the clusters that announce themselves here, as a hint where to ask for a line: nothing proves it."""
    import asyncio

    from shoal.cli import screen
    from shoal.cli.render.tables import clusters_table
    from shoal.identity.discovery import find

    found = asyncio.run(find(seconds=_FIND_S))
    if found:
        screen.out().print(clusters_table(found))
        screen.say(
            "To join one, ask its operator for a line (`shoal token create` there): being listed proves nothing."
        )
    else:
        screen.say("No cluster announces itself here: start it with `shoal up --announce`, on the same network.")


def _member(home: Path, line: str, name: str, *, anew: bool = False) -> Enrolled:
    """Who this device is: as it joined before, or by joining now."""
    folder = home / "node"
    from shoal.identity.enrolment import Enrolled, enrol_blocking
    from shoal.identity.identity import IDENTITY_FILE
    from shoal.identity.join_code import JoinCode
    from shoal.identity.names import check_name

    if name:
        check_name("node", name)
    code = JoinCode.parse(line) if line else None
    if (folder / IDENTITY_FILE).exists() and not anew:
        known = Enrolled.load(folder)
        member = known if code is None else moved(known, code, folder)
        if name and name != member.identity.node:
            raise Misuse(
                f"this device is {member.identity.node} already: leave out --name, or give a second one its own --home"
            )
        if member != known:
            _save(member, folder)
        return member
    if code is None:
        raise Misuse("this device has not joined a cluster: paste the line that `shoal up` printed after `shoal join`")
    # Before the line is used: it may be good for one attempt.
    check_home(home)
    wanted = name or default_name()
    joined = enrol_blocking(code, wanted=wanted, facts=_facts())
    if joined.identity.node != wanted:
        print(_renamed(wanted, joined.identity.node, was_said=bool(name)), flush=True)
    if joined.identity.role == "operator":
        folder = home / "operator"
        if (folder / IDENTITY_FILE).exists() and not anew:
            raise Misuse(
                f"a cluster is operated from {home} already: give --home another directory, and ask for a new line"
            )
    _save(joined, folder)
    return joined


def _renamed(wanted: str, got: str, *, was_said: bool) -> str:
    told = f"The name {wanted} is taken: this device is {got}."
    if was_said:
        return told
    return f"{told} To choose its name, join again with a new line:  shoal join LINE --anew --name NAME"


def _save(member: Enrolled, folder: Path) -> None:
    """Not while an agent that runs from here renews who it was: it would put that back."""
    import time

    from shoal.identity.identity import changing
    from shoal.net.renewal import LOCK_LOOK_S, LOCK_TIMEOUT_S

    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        with changing(folder) as is_alone:
            if is_alone or time.monotonic() > deadline_s:
                member.save(folder)
                return
        time.sleep(LOCK_LOOK_S)


def moved(known: Enrolled, code: JoinCode, folder: Path) -> Enrolled:
    """A member that is given a line of its own cluster again: perhaps the manager has another address now."""
    import ssl

    from shoal.identity.join_code import endpoint

    if not code.pins(ssl.PEM_cert_to_DER_cert(known.identity.ca_pem.decode("ascii"))):
        raise Misuse(
            f"this device belongs to cluster {known.identity.cluster}, and the line is another cluster's: "
            f"remove {folder} to leave the first, or give --home another directory"
        )
    port = int(known.manager_endpoint.rpartition(":")[2])
    if known.enrol_endpoint:
        # Both ports move together.
        port += code.port - int(known.enrol_endpoint.rpartition(":")[2])
    return dataclasses.replace(known, manager_endpoint=endpoint(code.host, port), enrol_endpoint=code.endpoint)


def default_name() -> str:
    """The host's name, as far as it can name a node."""
    import socket

    return name_from(socket.gethostname())


def name_from(host: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", host.partition(".")[0].lower()).strip("-")
    return plain[:_NAME_MAX_CHARS].strip("-") or "device"


def _facts() -> dict[str, str]:
    from shoal.runtime import probe

    told = dataclasses.asdict(probe.facts())
    return {name: str(value) for name, value in told.items() if str(value).isprintable()}


def _become_agent(home: Path, options: list[str]) -> None:
    # A new program in this process: what the command line and `cryptography` took is given back.
    command = [sys.executable, "-m", "shoal.runtime.agent", "--home", str(home.absolute()), *options]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
