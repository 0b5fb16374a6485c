"""A first day at one machine: help, typing errors, packages that are missing, a read-only disk, no GPU."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

from benchmarks.first_day_kit import (
    COLUMNS,
    ROOT,
    TWO_SCREENS,
    Case,
    expect,
    expect_words,
    line_of,
    read_only,
    run,
    without,
)
from shoal.identity.join_code import JoinCode, new_secret

#: The commands whose help people read first.
FIRST_COMMANDS = ((), ("up",), ("join",), ("train",), ("status",), ("token", "create"))

#: A loop of somebody's own, without a word of Shoal.
PLAIN_SCRIPT = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def starts_it_as_a_module(folder: Path) -> str:
    """`python -m shoal version`, where the folder of scripts is not on the PATH."""
    seen = run("version", cwd=folder, program=(sys.executable, "-m", "shoal"))
    expect(seen.code == 0, seen.text)
    expect(re.fullmatch(r"shoal \d+\.\d+\.\d+\S*\n", seen.out) is not None, seen.text)
    return seen.out


def reads_the_help(folder: Path) -> str:
    """The help of the commands that come first fits on two screens, and no flag seems to take a value."""
    lines = {}
    for words in FIRST_COMMANDS:
        seen = run(*words, "--help", cwd=folder)
        expect(seen.code == 0, seen.text)
        lines[" ".join(("shoal", *words))] = len(seen.out.splitlines())
        expect("<bool>" not in seen.out, f"{words}: a flag shows <bool>")
        expect(all(len(line) <= COLUMNS for line in seen.out.splitlines()), f"{words}: a line is wider than {COLUMNS}")
    longest = max(lines, key=lambda name: lines[name])
    # The list of all commands has two lines of exit codes more.
    expect(lines[longest] <= TWO_SCREENS + 2, f"{longest} --help has {lines[longest]} lines")
    return ", ".join(f"{name}: {count} lines" for name, count in lines.items())


def looks_for_a_rare_option(folder: Path) -> str:
    """The short help says how many options it leaves out, and where they are."""
    short, whole = run("up", "--help", cwd=folder), run("up", "--help-all", cwd=folder)
    expect_words(short.out, "more options: shoal up --help-all")
    expect("--store" not in short.out and "--store URL" in whole.out, "--store is in the wrong help")
    return line_of(short.out, "more options")


def mistypes_an_option(folder: Path) -> str:
    seen = run("up", "--prot", "7070", cwd=folder)
    expect(seen.code == 2, seen.text)
    expect_words(seen.err, "--port")
    return seen.err


def mistypes_a_plan_key(folder: Path) -> str:
    seen = run("train", str(ROOT / "examples" / "mnist"), "--plan", "lerning_rate=0.1", cwd=folder)
    expect(seen.code == 2, seen.text)
    expect_words(seen.err, "did you mean learning_rate?")
    expect(len(seen.err) < 200, f"the answer is a list: {seen.err}")
    return seen.err


def trains_a_plain_script(folder: Path) -> str:
    """A PyTorch script without a task is pointed to `shoal run`."""
    (folder / "plain.py").write_text(PLAIN_SCRIPT)
    seen = run("train", "plain.py", cwd=folder)
    expect(seen.code == 2, seen.text)
    expect_words(seen.err, "`shoal run plain.py`", "shoal.worker", "docs/loops.md")
    return seen.err


def _hints_at(folder: Path, *words: str, package: str) -> str:
    """A missing package is named as it can be installed, where there is no clone."""
    seen = run(*words, cwd=folder, env=without(folder, package.replace("-", "_")))
    expect(seen.code == 2, seen.text)
    expect("'.[" not in seen.err, f"it is advised to install from a clone: {seen.err}")
    expect_words(seen.err, "pip install", package)
    return seen.err


def opens_the_console_without_its_packages(folder: Path) -> str:
    return _hints_at(folder, "console", "--home", str(folder / "home"), package="starlette")


def serves_metrics_without_their_package(folder: Path) -> str:
    return _hints_at(folder, "metrics", "--home", str(folder / "home"), package="prometheus-client")


def starts_a_manager_on_a_read_only_disk(folder: Path) -> str:
    with read_only(folder / "disk") as disk:
        seen = run("up", "--port", "0", "--home", str(disk / "home"), cwd=folder)
    expect(seen.code == 2, f"exit code {seen.code}: {seen.text}")
    expect("defect" not in seen.text, seen.text)
    expect_words(seen.err, f"cannot write in {disk / 'home'}", "Make it writable", "--home DIR", "SHOAL_HOME")
    return seen.err


def examines_a_device(folder: Path) -> str:
    """`shoal doctor` before anything is started: a read-only home, proxies, no zeroconf, IPv6 and the processor."""
    proxies = {"https_proxy": "http://198.18.255.9:3128", "ALL_PROXY": "http://198.18.255.9:3128"}
    with read_only(folder / "disk") as disk:
        home = disk / "home"
        seen = run("doctor", "--home", str(home), cwd=folder, env=without(folder, "zeroconf") | proxies)
    signs = {line[2:26].strip(): line for line in seen.out.splitlines() if line[:1] in "✓-!✗" and line[1:2] == " "}
    expect(signs["discovery"].startswith("- "), f"what is not installed has a tick: {signs['discovery']}")
    expect(signs["disk (home)"].startswith("✗ "), signs["disk (home)"])
    expect_words(seen.out, "Make it writable".lower(), "--home DIR", "ALL_PROXY and https_proxy", "IPv4 and IPv6")
    expect("does not use a proxy" in signs["proxy"], signs["proxy"])
    expect(re.search(r"multiplies on (cpu|cuda|mps) ", signs["torch runs"]) is not None, signs["torch runs"])
    expect(seen.code == 5, f"exit code {seen.code}")
    return f"{signs['discovery']}; {signs['proxy']}"


def asks_for_a_gpu_that_is_not_there(folder: Path) -> str:
    """`join --device cuda:9` is refused before the join line is used."""
    seen = run("join", _unused_line(), "--device", "cuda:9", "--home", str(folder / "home"), cwd=folder)
    expect(seen.code == 2, f"exit code {seen.code}: {seen.text}")
    expect_words(seen.err, "--device cuda:9", "CUDA device", "--device auto or cpu")
    expect("cannot reach" not in seen.err, f"the manager was dialled first: {seen.err}")
    return line_of(seen.err, "shoal: ")


def pastes_a_line_that_was_cut_off(folder: Path) -> str:
    seen = run("join", _unused_line()[:-5], "--home", str(folder / "home"), cwd=folder)
    expect(seen.code == 2, f"exit code {seen.code}: {seen.text}")
    expect("cannot reach" not in seen.err, f"the manager was dialled first: {seen.err}")
    expect_words(seen.err, "copy")
    return seen.err


def looks_at_a_unit_before_it_is_installed(folder: Path) -> str:
    """`service install --dry-run` refuses the file that the service would fail with, and shows the unit otherwise."""
    (folder / "note.txt").write_text("the line is on the manager's desk\n")
    (folder / "line.txt").write_text(f"shoal join {_unused_line()}\n")
    words = ("service", "install", "agent", "--dry-run", "--line-file")
    wrong, right = run(*words, "note.txt", cwd=folder), run(*words, "line.txt", cwd=folder)
    expect(wrong.code == 2, f"exit code {wrong.code}: {wrong.text}")
    expect_words(wrong.err, "shoal://")
    expect(right.code == 0, right.text)
    expect_words(right.out, "[Service]", "ExecStart=")
    return wrong.err


def starts_a_manager_on_a_taken_port(folder: Path) -> str:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        seen = run("up", "--port", port, "--home", str(folder / "home"), cwd=folder)
    expect(seen.code == 2, f"exit code {seen.code}: {seen.text}")
    expect_words(seen.err, f"port {port}", "is taken by another program", "--port")
    return seen.err


def _unused_line() -> str:
    """A join line of a cluster that is nowhere. Nobody listens there: if it were dialled, that would be said."""
    return str(JoinCode(host="127.0.0.1", port=9, ca_sha256=bytes(32), secret=new_secret()))


CASES = (
    Case(name="starts_it_as_a_module", run=starts_it_as_a_module),
    Case(name="reads_the_help", run=reads_the_help),
    Case(name="looks_for_a_rare_option", run=looks_for_a_rare_option),
    Case(name="mistypes_an_option", run=mistypes_an_option),
    Case(name="mistypes_a_plan_key", run=mistypes_a_plan_key),
    Case(name="trains_a_plain_script", run=trains_a_plain_script),
    Case(name="opens_the_console_without_its_packages", run=opens_the_console_without_its_packages),
    Case(name="serves_metrics_without_their_package", run=serves_metrics_without_their_package),
    Case(name="starts_a_manager_on_a_read_only_disk", run=starts_a_manager_on_a_read_only_disk),
    Case(name="starts_a_manager_on_a_taken_port", run=starts_a_manager_on_a_taken_port),
    Case(name="pastes_a_line_that_was_cut_off", run=pastes_a_line_that_was_cut_off),
    Case(name="looks_at_a_unit_before_it_is_installed", run=looks_at_a_unit_before_it_is_installed),
    Case(name="examines_a_device", run=examines_a_device, slow=True),
    Case(name="asks_for_a_gpu_that_is_not_there", run=asks_for_a_gpu_that_is_not_there, slow=True),
)
