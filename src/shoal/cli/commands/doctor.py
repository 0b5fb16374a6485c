"""`shoal doctor`: why will this device not work? Probes the device, has `checks` judge, says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.exits import Exit
from shoal.cli.options import DEFAULT_HOME, Home, Json

if TYPE_CHECKING:
    from shoal.cli.findings import Finding
    from shoal.identity.enrolment import Enrolled
    from shoal.identity.join_code import JoinCode

_SIGNS = {"ok": ("✓", "green"), "note": ("-", "dim"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


def doctor(
    line: Annotated[
        str,
        typer.Option(metavar="LINE", help="Also check the way to the cluster of this join line.", show_default=False),
    ] = "",
    port: Annotated[int, typer.Option(min=1, max=65534, help="The port that `shoal up` would use here.")] = 7070,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Say why this device will not work, and what to do about it: Python, PyTorch, CPU, ports, disk, clock, memory.

    Example:  `shoal doctor`  or, before joining,  `shoal doctor --line shoal://192.168.1.10:7071/abc…`
    """
    import platform

    from shoal.cli import screen
    from shoal.cli.findings import report, worst
    from shoal.identity.join_code import JoinCode
    from shoal.version import __version__

    code = JoinCode.parse(line) if line else None
    findings: list[Finding] = []
    for finding in examine(home, code=code, port=port):
        findings.append(finding)
        if not json:
            _print(finding)
    if json:
        about = {"shoal": __version__, "python": platform.python_version(), "machine": platform.machine()}
        screen.print_json(report(findings, **about))
    else:
        _conclude(findings)
    raise typer.Exit(Exit.UNFIT if worst(findings) == "fail" else Exit.OK)


def examine(home: Path, *, code: JoinCode | None, port: int) -> Iterator[Finding]:
    """Every check, as it is made: the first answers are there while PyTorch still starts."""
    import tempfile

    from shoal.cli import checks, probes
    from shoal.identity.discovery import is_installed

    yield checks.check_python(sys.version_info[:3], bits=probes.bits())
    yield checks.check_packages(probes.missing_packages())
    yield checks.check_discovery(is_installed=is_installed())
    yield checks.check_cpu(cpu := probes.cpu_facts())
    yield checks.check_torch(torch := probes.torch_facts())
    if torch.version:
        yield checks.check_torch_runs(probes.run_torch(device=probes.chosen_device(home)), cpu=cpu)
    yield checks.check_memory(*probes.memory_bytes())
    yield checks.check_shared_memory(probes.shared_memory_facts())
    yield checks.check_disk(probes.disk_facts("home", home))
    yield checks.check_disk(probes.disk_facts("temporary", Path(tempfile.gettempdir())))
    yield checks.check_proxies(probes.proxy_variables())
    yield checks.check_open_files(probes.open_files_limit(), devices=probes.devices_max())
    if (own := probes.own_data_facts(home)) is not None:
        yield checks.check_own_data(own)
    if (spent := probes.privacy_facts(home)) is not None:
        yield checks.check_privacy(spent)
    if code is not None:
        yield from _check_line(home, code)
    elif (member := _enrolled(home / "node")) is not None:
        yield from _check_member(home, member)
    else:
        yield from _check_manager(home, port)


def _check_line(home: Path, code: JoinCode) -> Iterator[Finding]:
    """A device that is about to join: can it reach the cluster, and is it the right one?"""
    import ssl

    from shoal.cli import checks, findings, probes
    from shoal.identity.join_code import endpoint

    outcome, seconds = probes.reach(code.host, code.port)
    where = endpoint(code.host, code.port)
    yield checks.check_reach(outcome, endpoint=where, purpose="joining", seconds=seconds)
    ca_pem = ""
    if outcome == "open":
        try:
            authority_der = probes.authority_of(code.host, code.port)
        except (OSError, ValueError) as error:
            do = "is this the port that `shoal up` printed? Ask for a new join line"
            yield findings.fail("cluster", f"{where} does not speak as a manager: {error}", do)
        else:
            if code.pins(authority_der):
                ca_pem = ssl.DER_cert_to_PEM_cert(authority_der)
                yield findings.ok("cluster", "it is the one the join line was made for")
            else:
                do = "ask the manager for a new line; if it is new, someone may be in the middle"
                yield findings.fail("cluster", f"{where} is not the one the join line was made for", do)
    # `shoal up` works over one port and enrols over the next.
    work, seconds = probes.reach(code.host, code.port - 1)
    where = endpoint(code.host, code.port - 1)
    yield checks.check_reach(work, endpoint=where, purpose="work", seconds=seconds)
    yield checks.check_clock(probes.clock_facts(home, manager=(code.host, code.port), ca_pem=ca_pem))


def _check_member(home: Path, member: Enrolled) -> Iterator[Finding]:
    """A device that has joined: does its certificate hold, and is its manager there?"""
    from shoal.cli import checks, probes

    host, port = _address(member)
    yield checks.check_membership(_membership_problem(member))
    outcome, seconds = probes.reach(host, port)
    yield checks.check_reach(outcome, endpoint=member.manager_endpoint, purpose="work", seconds=seconds)
    ca_pem = member.identity.ca_pem.decode("ascii")
    yield checks.check_clock(probes.clock_facts(home, manager=(host, port), ca_pem=ca_pem))


def _check_manager(home: Path, port: int) -> Iterator[Finding]:
    """A machine that may become or is a manager: are its ports free, or its own?"""
    import socket

    from shoal.cli import checks, probes

    operator = _enrolled(home / "operator")
    if operator is None:
        clock, own_port = probes.clock_facts(home), 0
    else:
        address = _address(operator)
        clock = probes.clock_facts(home, manager=address, ca_pem=operator.identity.ca_pem.decode("ascii"))
        # A certificate of this home's own authority proves that it is our manager that holds the port. Where it cannot
        # be verified, as after its end, the lock of a manager that runs tells as much.
        is_ours = clock.not_before_s is not None or probes.manager_runs(home)
        own_port = address[1] if is_ours else 0
    for number, purpose in ((port, "work"), (port + 1, "joining")):
        outcome = probes.listen("0.0.0.0", number)
        ours = own_port != 0 and number - own_port in (0, 1)
        other = probes.cluster_at("127.0.0.1", number) if outcome == "busy" and not ours else ""
        yield checks.check_listen(
            outcome, port=number, purpose=purpose, manager_runs=ours, other_cluster=other, home=str(home)
        )
    yield checks.check_families(has_ipv6=socket.has_dualstack_ipv6())
    yield checks.check_clock(clock)


def _enrolled(folder: Path) -> Enrolled | None:
    from shoal.identity.enrolment import Enrolled
    from shoal.identity.identity import IDENTITY_FILE

    # A damaged identity is an error of its own, which `load` raises.
    return Enrolled.load(folder) if (folder / IDENTITY_FILE).exists() else None


def _address(member: Enrolled) -> tuple[str, int]:
    host, _, port = member.manager_endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def _membership_problem(member: Enrolled) -> str:
    import time

    from shoal.errors import PeerViolation
    from shoal.identity import certificates, chain

    own, root = map(chain.der_of, (member.identity.certificate_pem, member.identity.ca_pem))
    try:
        certificates.authenticate(own, root_der=root, now_s=time.time())
    except PeerViolation as error:
        return error.reason
    return ""


def _print(finding: Finding) -> None:
    from rich.text import Text

    from shoal.cli import screen

    sign, style = _SIGNS[finding.state]
    terminal = screen.out()
    terminal.print(Text.assemble((f"{sign} ", style), (f"{finding.check:<24}", "bold"), finding.found), soft_wrap=True)
    if finding.do:
        terminal.print(Text.assemble(" " * 26, ("→ ", style), finding.do), soft_wrap=True)


def _conclude(findings: list[Finding]) -> None:
    from shoal.cli import screen
    from shoal.cli.render.format import plural

    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    if failed:
        screen.say(f"\n{plural(failed, 'check')} failed: do what the arrows say, then run it again.", "bold red")
    elif warned:
        screen.say(f"\nThis device will work; {plural(warned, 'thing')} could be better.", "yellow")
    else:
        screen.say("\nThis device is ready.", "green")
