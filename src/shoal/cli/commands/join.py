"""`shoal join`: make this device a member of a cluster, then become its agent."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import join_options
from shoal.cli.options import DEFAULT_HOME, Home, LogFormat, check_home
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.identity.enrolment import Enrolled
    from shoal.identity.join_code import JoinCode
    from shoal.runtime.agent_options import AgentOptions

_NAME_MAX_CHARS = 63

#: How long clusters have to answer.
_FIND_S = 3.0


def join(
    line: join_options.Line = "",
    line_file: join_options.LineFile = None,
    remove_line: join_options.RemoveLine = False,
    name: join_options.Name = "",
    label: join_options.Label = None,
    anew: join_options.Anew = False,
    find: join_options.Find = False,
    data: join_options.Data = None,
    part: join_options.Part = "",
    files: join_options.Files = None,
    device: join_options.Device = "",
    threads: join_options.Threads = 0,
    cores: join_options.Cores = 0,
    hours: join_options.Hours = "",
    max_temperature: join_options.MaxTemperature = 0.0,
    max_epsilon: join_options.MaxEpsilon = 0.0,
    operator_key: join_options.OperatorKey = "",
    lend: join_options.Lend = False,
    hub: join_options.Hub = False,
    hub_mbps: join_options.HubMbps = 0.0,
    lead_port: join_options.LeadPort = 0,
    metrics: join_options.Metrics = "",
    metrics_token_file: join_options.MetricsTokenFile = None,
    home: Home = DEFAULT_HOME,
    quiet: join_options.Quiet = False,
    log_format: LogFormat = "",
) -> None:
    """Join this device to a cluster and work for it. Joining lets the cluster's operator run task code here.

    Example:  `shoal join shoal://192.168.1.10:7071/abc… --name attic-pi4`

    With the line in a file that is removed after use:  `shoal join --line-file /etc/shoal/line --remove-line`

    With examples that never leave it:  `shoal join shoal://… --data /srv/readings`; the folder is remembered.
    """
    from shoal.runtime.agent_options import AgentOptions

    if find:
        _list_clusters()
        return
    line = _given_line(home, line, line_file, remove=remove_line, anew=anew)
    kept = _Kept(
        data=_folder(data),
        part=part,
        labels=tuple(label or ()),
        device=device,
        threads=threads,
        max_epsilon=max_epsilon,
        operator_key=operator_key,
    )
    options = AgentOptions(
        home=home.absolute(),
        quiet=quiet,
        log_format=log_format,
        lend=lend,
        hub=hub,
        hub_mbps=hub_mbps,
        files=_files(files),
        lead_port=lead_port,
        cores=cores,
        hours=hours,
        max_temperature_c=max_temperature,
        metrics=metrics,
        metrics_token_file=metrics_token_file.absolute() if metrics_token_file is not None else None,
        # What was typed just now is meant, whatever the environment says.
        data=kept.data,
        part=kept.part,
    )
    _check(options, kept)
    member = _member(home, line, name, anew=anew)
    if line_file is not None and remove_line:
        _remove_line(line_file)
    if member.identity.role == "operator":
        _tell_operator(member, kept)
        return
    _pin(home, line, operator_key, anew=anew)
    _remember(home, kept)
    _work(member, options)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """What a device keeps with its membership: typed once, it holds at every later start."""

    data: Path | None
    part: str
    labels: tuple[str, ...]
    device: str
    threads: int
    max_epsilon: float
    operator_key: str


def _tell_operator(member: Enrolled, kept: _Kept) -> None:
    if kept.data is not None:
        print("An operator does not train: --data is left out.", file=sys.stderr)
    print(f"{member.identity.node} may operate cluster {member.identity.cluster} from here. Try: shoal status")


def _work(member: Enrolled, options: AgentOptions) -> None:
    # Typed text goes to the terminal below; a name from a certificate is already a plain one.
    print(f"{member.identity.node} is in cluster {member.identity.cluster}, managed at {member.manager_endpoint}.")
    print("Waiting for jobs. Ctrl-C disconnects; run `shoal join` to reconnect.", flush=True)
    _become_agent(options)


def _check(options: AgentOptions, kept: _Kept) -> None:
    """Refuse what an agent could not do, before the line is used: it may be good for one attempt."""
    if options.hours or options.max_temperature_c:
        from shoal.runtime.device_limits import DeviceLimits

        DeviceLimits.of(hours=options.hours, max_temperature_c=options.max_temperature_c)
    _check_kept(kept)
    if options.log_format:
        from shoal.runtime.log_lines import log_format as checked_format

        checked_format(options.log_format)
    if options.hub_mbps and not options.hub:
        raise Misuse("--hub-mbps is the link of a hub: say --hub too")
    if options.hub and (kept.data is not None or kept.part or kept.device or kept.threads or options.lend):
        raise Misuse("a hub trains nothing: leave out --hub, or --data, --part, --device, --threads and --lend")
    if options.metrics:
        from shoal.runtime.metrics_door import listen_at

        listen_at(options.metrics, token_file=options.metrics_token_file)
    if kept.device:
        _check_processor(kept.device)


def _check_kept(kept: _Kept) -> None:
    if kept.part:
        from shoal.data.local import parse_part

        parse_part(kept.part)
    if kept.max_epsilon:
        from shoal.runtime.privacy_accounts import checked_limit

        checked_limit(kept.max_epsilon)
    if kept.operator_key and kept.operator_key != "none":
        from shoal.identity.cards import parse_key

        parse_key(kept.operator_key)
    if kept.labels:
        from shoal.where import parse_labels

        parse_labels(kept.labels)


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


def _check_processor(device: str) -> None:
    """Refuse a processor that PyTorch does not find here. Otherwise every job would fail on this device."""
    from shoal.cli import probes
    from shoal.trainer.processors import checked_device

    checked_device(device)
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


def _files(files: Path | None) -> Path | None:
    if files is not None and not files.is_dir():
        raise Misuse(f"there is no folder {files}: --files names the folder that `shoal files --out` wrote")
    return files.absolute() if files is not None else None


def _remember(home: Path, kept: _Kept) -> None:
    """Write down what was typed and holds from now on. The operator's key has a place of its own."""
    from shoal.runtime.paths import Paths

    places = Paths(home)
    if kept.data is not None:
        from shoal.runtime import own_data

        own_data.remember(places, kept.data)
    if kept.part:
        from shoal.runtime import own_share

        own_share.remember(places, kept.part)
    if kept.max_epsilon:
        from shoal.runtime.privacy_accounts import remember_limit

        remember_limit(places.node, kept.max_epsilon)
    if kept.labels:
        from shoal.runtime import own_labels

        own_labels.remember(places, kept.labels)
    if kept.device or kept.threads:
        from shoal.runtime import own_processor

        own_processor.remember(places, device=kept.device, threads=kept.threads)


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


def _become_agent(options: AgentOptions) -> None:
    # A new program in this process: what the command line and `cryptography` took is given back.
    command = [sys.executable, "-m", "shoal.runtime.agent_main", *options.to_argv()]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
