"""The project's tasks, one name each; people and CI call the same ones. Needs the standard library alone."""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import busy as busy_tests
import cli_reference as cli_page
import code_map
import example_runs
import house as figures_of
import house_words
import own_draws
import plan_table
import reference as reference_page
import release as rehearsal
import site_pages
import tab_contract
import tab_graph_rules
import tab_noise
import tier_runs
import timings as figures_of_runs
import vendored as vendored_files
from tier_runs import note

ROOT = Path(__file__).resolve().parent.parent
PROTO_DIR = ROOT / "proto"
PROTO_FILE = PROTO_DIR / "shoal" / "v1" / "shoal.proto"
CONTRACT_FILE = ROOT / "src" / "shoal" / "wire" / "contract.binpb"
#: The contract of the protocol before, with which the present one has to work.
PREVIOUS_FILE = PROTO_DIR / "previous.binpb"
#: Files of others that the console's page is made with.
VENDOR_DIR = ROOT / "src" / "shoal" / "console" / "static" / "vendor"
#: The browser's tab: its sources, and where what is built of them lies.
TAB_DIR = ROOT / "tab"
#: Its sources that are written from ours.
TAB_WRITTEN = {module.TARGET: module.text for module in (own_draws, tab_contract, tab_graph_rules, tab_noise)}
TAB_BUILT = ROOT / "src" / "shoal" / "browser" / "static"
#: Lives of Python's worker, which `npm test` plays where there is no Python.
TAB_LIVES = TAB_DIR / "test" / "lives.jsonl.gz"
TAB_LIVES_COUNT = 300
#: The walk through the code that counts the hand-offs of an update.
FIRST_HOUR = ROOT / "docs" / "contributing" / "first-hour.md"

LOCK_INPUT = ROOT / "requirements" / "dev.in"
LOCK_FILE = ROOT / "requirements" / "dev.lock"
LOCK_HEADER = """\
# Every package of a development environment but torch, with the hash of its file: for Linux on x86-64 and Python 3.11,
# where CI runs. Written by `python tools/tasks.py lock`; elsewhere, use `pip install -e '.[dev]'`.
"""

#: What `release --rehearse` works with, in an environment of its own.
RELEASE_LOCK_INPUT = ROOT / "requirements" / "release.in"
RELEASE_LOCK_FILE = ROOT / "requirements" / "release.lock"
RELEASE_LOCK_HEADER = """\
# What a release is built, checked and served with, with the hash of each file: for Linux on x86-64 and Python 3.11.
# Written by `python tools/tasks.py lock`.
"""

#: What the Dockerfile installs beside torch: by the versions of the other lock, for both kinds of machines.
IMAGE_LOCK_FILE = ROOT / "requirements" / "image.lock"
IMAGE_LOCK_HEADER = """\
# What an image of Shoal installs beside torch, with the hash of each file: for Linux on x86-64 and arm64 and Python
# 3.11, as in the Dockerfile. Written by `python tools/tasks.py lock`, by the versions of dev.lock.
"""
IMAGE_MACHINES = ("x86_64", "aarch64")
#: Those of wheels that run on Debian 12, which has glibc 2.36.
IMAGE_GLIBCS = ("2_34", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")

#: Extras whose least versions are tried as well.
FLOOR_EXTRAS = ("browser", "console", "discovery", "metrics", "plot")
#: What is tried with the least versions of all dependencies: what reads and writes for them, and one real training.
FLOOR_TESTS = (
    "tests/unit/wire",
    "tests/unit/net",
    "tests/unit/identity",
    "tests/unit/store",
    "tests/unit/cli",
    "tests/unit/console",
    "tests/unit/exporter",
    "tests/integration/test_training.py::test_three_workers_train_the_model_that_one_process_trains",
)

#: Where pip-audit looks for known holes, in this order.
AUDIT_DATABASES = ("pypi", "osv")
#: A database that knows nothing against this one has not really answered: it carries CVE-2018-18074.
AUDIT_CANARY = "requests==2.19.0"
#: A database that takes longer for one package is taken to be away: nobody waits minutes to learn that.
CANARY_TIMEOUT_S = 30

Runner = Callable[[Sequence[str]], int]


def run(*command: str) -> int:
    """Print a command, run it at the root of the repository, return its exit code."""
    print(f"$ {shlex.join(command)}", flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    except FileNotFoundError:
        return not_installed(command[0])


def not_installed(tool: str) -> int:
    print(f"{tool} is not installed for {sys.executable}: pip install -e '.[dev]'", flush=True)
    return 127


def module(name: str, *arguments: str) -> int:
    """Run a tool of this interpreter, whatever PATH says."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        return not_installed(name)
    return run(sys.executable, "-m", name, *arguments)


def lint(extra: Sequence[str]) -> int:
    """ruff: rules, then layout."""
    codes = [module("ruff", "check", ".", *extra), module("ruff", "format", "--check", ".")]
    return first_failure(codes)


def format_(extra: Sequence[str]) -> int:
    """Let ruff mend what it can, then lay the code out."""
    codes = [module("ruff", "check", "--fix", ".", *extra), module("ruff", "format", ".")]
    return first_failure(codes)


def types(extra: Sequence[str]) -> int:
    """mypy, strict; its settings say which folders."""
    return module("mypy", *extra)


def layers(extra: Sequence[str]) -> int:
    """import-linter: imports run downward, torch and protobuf stay in their folders."""
    # It has no `python -m` form: take the script installed beside this interpreter.
    beside = Path(sys.executable).with_name("lint-imports")
    return run(str(beside) if beside.exists() else "lint-imports", *extra)


def house(extra: Sequence[str]) -> int:
    """Figures of the code: lines, names, classes, circles; --json prints only them. Fails if a fence is not 0."""
    modules = figures_of.read(ROOT / "src" / "shoal")
    found: dict[str, float | None] = {}
    found |= figures_of.figures(modules, FIRST_HOUR.read_text(encoding="utf-8") if FIRST_HOUR.exists() else None)
    found |= house_words.figures(modules, ROOT)
    found |= plan_table.figures()
    broken, is_json = figures_of.broken(found), "--json" in extra
    if is_json:
        print(json.dumps(found), flush=True)
    if broken or not is_json:
        lines = [*figures_of.to_mend(modules), *house_words.to_mend(modules, ROOT)]
        print("\n".join(lines), file=sys.stderr if is_json else sys.stdout, flush=True)
    if not is_json:
        print("\n".join(f"{name:<30} {count}" for name, count in found.items()), flush=True)
    if broken:
        print(f"must be 0: {', '.join(broken)}", file=sys.stderr, flush=True)
    return 1 if broken else 0


def plain(extra: Sequence[str]) -> int:
    """Write tools/plain_words.json: how many markers of unidiomatic wording each file may have. It only falls; a file
    that was moved takes its markers along with --moved."""
    source, documents = house_words.texts(ROOT)
    found, allowed = house_words.markers([*source, *documents], ROOT), house_words.allowed_markers(ROOT)
    more = [] if "--moved" in extra else house_words.grown(found, allowed)
    written = found if "--moved" in extra else house_words.lowered(found, allowed)
    (ROOT / "tools" / "plain_words.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print("\n".join(more), end="\n" if more else "", file=sys.stderr, flush=True)
    return 1 if more else 0


def map_(extra: Sequence[str]) -> int:
    """Write docs/code-map.md, and the lines that docs/contributing/first-hour.md names."""
    page = ROOT / "docs" / "code-map.md"
    page.write_text(code_map.replaced(page.read_text(encoding="utf-8"), code_map.written(ROOT)), encoding="utf-8")
    FIRST_HOUR.write_text(code_map.relined(FIRST_HOUR.read_text(encoding="utf-8"), ROOT), encoding="utf-8")
    return 0


def reference(extra: Sequence[str]) -> int:
    """Write docs/reference.md (every key of a plan, every method of a task), docs/cli.md (every command), and the
    tables of docs/plan.md (which answers go together)."""
    (ROOT / "docs" / "reference.md").write_text(reference_page.written(ROOT), encoding="utf-8")
    (ROOT / "docs" / "cli.md").write_text(cli_page.written(), encoding="utf-8")
    plan_page = ROOT / "docs" / "plan.md"
    plan_page.write_text(plan_table.replaced(plan_page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def pictures(extra: Sequence[str]) -> int:
    """Draw the pictures of docs/images: from predictions, tables, and recordings in tools/recordings."""
    # Not above: it needs numpy, and other tasks do not.
    sys.path.insert(0, str(ROOT / "src"))
    import pictures as drawn

    for file in drawn.write(ROOT):
        print(f"wrote {file.relative_to(ROOT)}", flush=True)
    return 0


def papers(extra: Sequence[str]) -> int:
    """Write docs/papers.md from papers/ledger.toml and the kept rows; --json only prints how much is reproduced."""
    # Not above: it needs numpy, and other tasks do not.
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from papers.harness import ledger, ledger_page

    if "--json" in extra:
        print(json.dumps(ledger.counts(ledger.read(), ledger_page.papers())), flush=True)
        return 0
    page = ROOT / "docs" / "papers.md"
    page.write_text(ledger_page.written(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def docs(extra: Sequence[str]) -> int:
    """Build the site strictly: every link and anchor holds, every block of code is run or says why not."""
    wrong = [
        f"{block.page}:{block.line}: the block {problem}"
        for document in site_pages.documents(ROOT)
        for block in site_pages.blocks(ROOT, document)
        if (problem := block.problem(ROOT))
    ]
    print("\n".join(wrong), end="\n" if wrong else "", flush=True)
    with tempfile.TemporaryDirectory(prefix="shoal-site-") as scratch:
        # Its end of life is in decision 34; a warning in every build says nothing new.
        os.environ["NO_MKDOCS_2_WARNING"] = "1"
        code = module("mkdocs", "build", "--strict", "--quiet", "--site-dir", *(extra or (scratch,)))
    return code or (1 if wrong else 0)


def vendored(extra: Sequence[str]) -> int:
    """Compare the files of others in the console's page with VENDORED.toml."""
    found = vendored_files.problems(VENDOR_DIR)
    print("\n".join(found) or "vendored files are the ones that VENDORED.toml names", flush=True)
    return 1 if found else 0


def tab(extra: Sequence[str]) -> int:
    """Build the page of the browser's tab out of tab/src."""
    for path, text in TAB_WRITTEN.items():
        path.write_text(text(), encoding="utf-8")
    TAB_LIVES.write_bytes(gzip.compress(tab_lives(), 9, mtime=0))
    return build_tab(TAB_BUILT)


def tab_lives() -> bytes:
    import tab_traces

    return "".join(tab_traces.lines(seed=1, count=TAB_LIVES_COUNT)).encode()


def tab_check(extra: Sequence[str]) -> int:
    """Fail if the tab's page in the package is not what tab/src gives, or knows another contract or other graphs."""
    if shutil.which("npm") is None:
        note("NOT CHECKED: the tab's page, for there is no npm")
        return 0
    for path, text in TAB_WRITTEN.items():
        if path.read_text(encoding="utf-8") != text():
            print(f"{path.relative_to(ROOT)} is not what it is written from: python tools/tasks.py tab", flush=True)
            return 1
    if gzip.decompress(TAB_LIVES.read_bytes()) != tab_lives():
        print(f"{TAB_LIVES.name} has lives of another worker than Python's: python tools/tasks.py tab", flush=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="shoal-tab-") as scratch:
        code = build_tab(Path(scratch))
        built = sorted(Path(scratch).glob("*.js"))
        stale = [path.name for path in built if path.read_bytes() != (TAB_BUILT / path.name).read_bytes()]
    if stale:
        print(f"{', '.join(stale)}: not what tab/src gives: python tools/tasks.py tab", flush=True)
    return code or (1 if stale else 0)


def build_tab(target: Path) -> int:
    """Install the tools by their hashes, check the types, build."""
    tools = ("npm", "ci", "--silent", "--ignore-scripts", "--prefix", str(TAB_DIR))
    types_ = ("npm", "exec", "--prefix", str(TAB_DIR), "--", "tsc", "-p", str(TAB_DIR))
    return run(*tools) or run(*types_) or run("node", str(TAB_DIR / "build.mjs"), str(target))


def bandit(extra: Sequence[str]) -> int:
    """bandit on the code."""
    folders = ("src", "tools", "baselines", "benchmarks", "dst", "papers", "testbed")
    return module("bandit", "-q", "-c", "pyproject.toml", "-r", *folders, *extra)


def security(extra: Sequence[str]) -> int:
    """bandit, then audit."""
    return first_failure([bandit(extra), audit(())])


def audit(extra: Sequence[str]) -> int:
    """Fail on installed packages with known holes. Where no database answers, say so: that is no reason to fail."""
    if importlib.util.find_spec("pip_audit") is None:
        return not_installed("pip-audit")
    with tempfile.TemporaryDirectory(prefix="shoal-audit-") as scratch:
        canary, pinned = Path(scratch) / "canary.txt", Path(scratch) / "pinned.txt"
        canary.write_text(f"{AUDIT_CANARY}\n")
        database = next((name for name in AUDIT_DATABASES if answers(name, canary)), None)
        if database is None:
            note(
                f"NOT AUDITED: pip-audit reaches none of its databases ({', '.join(AUDIT_DATABASES)}) from here; "
                "run `python tools/tasks.py audit` on a machine that does"
            )
            return 0
        pinned.write_text("\n".join(installed()) + "\n")
        return module("pip_audit", *audit_arguments(database, pinned))


def answers(database: str, canary: Path) -> bool:
    """Whether a database names the hole that it must know. A mirror without one says "no known holes" of everything."""
    command = (sys.executable, "-m", "pip_audit", *audit_arguments(database, canary), "--format", "json")
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=CANARY_TIMEOUT_S)
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return False
    return any(package.get("vulns") for package in found["dependencies"])


def audit_arguments(database: str, requirements: Path) -> tuple[str, ...]:
    settings = ("--no-deps", "--disable-pip", "--progress-spinner", "off")
    return ("--vulnerability-service", database, "--requirement", str(requirements), *settings)


def installed() -> list[str]:
    """What is installed beside shoal, as name==version. pip leaves itself out: it comes with Python, not with us."""
    command = (sys.executable, "-m", "pip", "freeze", "--exclude-editable")
    frozen = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # A build's own suffix (2.13.0+cpu) is unknown to the databases, the version before it is not.
    return [line.partition("+")[0] for line in frozen.splitlines() if "==" in line]


def test(extra: Sequence[str]) -> int:
    """pytest with these arguments; without any, the tests of the gate."""
    if extra:
        return module("pytest", "-q", *extra)
    if importlib.util.find_spec("xdist") is None:
        return not_installed("pytest-xdist")
    with tempfile.TemporaryDirectory(prefix="shoal-test-") as scratch:
        return first_failure([done.code for done in tier_runs.run_tests("gate", Path(scratch))])


def gate(extra: Sequence[str]) -> int:
    """What every change must pass: checks, unit tests, properties, seeds, one cluster per promise."""
    return tier("gate")


def full(extra: Sequence[str]) -> int:
    """What main must pass before an issue is resolved: the gate, all examples, all clusters, the audit."""
    return tier("full")


def nightly(extra: Sequence[str]) -> int:
    """Every test there is: also all seeds and mutants, whole trainings, soaks, the testbed, papers, benchmarks."""
    return tier("nightly")


def tier(name: str) -> int:
    return tier_runs.run(name) if importlib.util.find_spec("xdist") else not_installed("pytest-xdist")


def timings(extra: Sequence[str]) -> int:
    """The slowest tests and what each tier took; --json prints that for machines, --keep writes tests/timings.json."""
    match list(extra):
        case []:
            print(figures_of_runs.text(), flush=True)
        case ["--json"]:
            print(json.dumps(figures_of_runs.report()), flush=True)
        case ["--keep"]:
            figures_of_runs.keep()
        case _:
            print(f"timings takes --json or --keep, not {shlex.join(extra)}", file=sys.stderr, flush=True)
            return 2
    return 0


def busy(extra: Sequence[str]) -> int:
    """Run the longest tests of the gate, or those named, ten times beside eight busy loops."""
    return busy_tests.main(extra)


def release(extra: Sequence[str]) -> int:
    """--rehearse: every step of a release that needs no key, and a list of those that do; --json, --only, --out."""
    return rehearsal.main(extra)


def examples(extra: Sequence[str]) -> int:
    """Run every example by its test, or those named, and say what each took; --json. Some read SHOAL_DATA."""
    return example_runs.main(extra)


def lock(extra: Sequence[str]) -> int:
    """Write requirements/*.lock: the newest of everything, by hash. Says nothing of where it came from. --release
    writes only release.lock."""
    if importlib.util.find_spec("pip") is None:
        return not_installed("pip")
    if list(extra) != ["--release"]:
        code = write_lock(LOCK_FILE, LOCK_HEADER, "-r", str(LOCK_INPUT), ".[dev]", *extra) or lock_image()
        if code != 0:
            return code
    return write_lock(RELEASE_LOCK_FILE, RELEASE_LOCK_HEADER, "-r", str(RELEASE_LOCK_INPUT))


def write_lock(target: Path, header: str, *wanted: str) -> int:
    """Write the newest versions of what is wanted and of what that asks for, with the hash of each file."""
    with tempfile.TemporaryDirectory(prefix="shoal-lock-") as scratch:
        report = Path(scratch) / "report.json"
        resolving = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(report))
        code = module("pip", "install", *resolving, *wanted)
        if code != 0:
            return code
        lines = sorted(filter(None, map(locked, json.loads(report.read_text())["install"])), key=str.lower)
    target.write_text(header + "".join(lines))
    print(f"wrote {target.relative_to(ROOT)}, {len(lines)} packages", flush=True)
    return 0


def lock_image() -> int:
    """Write requirements/image.lock: what torch and the core ask for, as dev.lock has it, for both machines."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    plain = [line for line in LOCK_INPUT.read_text().splitlines() if line and not line.startswith(("#", "torch=="))]
    wanted = [*plain, *project["build-system"]["requires"], *project["project"]["dependencies"]]
    files: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-lock-") as scratch:
        versions, report = Path(scratch) / "versions.txt", Path(scratch) / "report.json"
        lines = [line for line in LOCK_FILE.read_text().splitlines() if not line.startswith("#")]
        versions.write_text("".join(f"{line.partition(' ')[0]}\n" for line in lines))
        for machine in IMAGE_MACHINES:
            platforms = [f"--platform=manylinux_{glibc}_{machine}" for glibc in IMAGE_GLIBCS]
            platforms += [f"--platform=manylinux2014_{machine}", "--only-binary=:all:", "--python-version=3.11"]
            resolving = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-c", str(versions))
            code = module("pip", "install", *resolving, *platforms, *wanted)
            if code != 0:
                return code
            for package in json.loads(report.read_text())["install"]:
                name, sha256 = locked(package).split()
                files.setdefault(name, set()).add(sha256)
    lines = [f"{name} {' '.join(sorted(hashes))}\n" for name, hashes in sorted(files.items())]
    IMAGE_LOCK_FILE.write_text(IMAGE_LOCK_HEADER + "".join(lines))
    print(f"wrote {IMAGE_LOCK_FILE.relative_to(ROOT)}, {len(lines)} packages", flush=True)
    return 0


def locked(package: dict[str, dict[str, object]]) -> str:
    """One line of the lock, from an entry of pip's report; empty for shoal itself and for torch."""
    name, version = str(package["metadata"]["name"]), package["metadata"]["version"]
    if name in ("shoal", "torch"):
        return ""
    archive = package["download_info"].get("archive_info")
    sha256 = archive.get("hashes", {}).get("sha256", "") if isinstance(archive, dict) else ""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise SystemExit(f"{name} {version} comes without a hash: it cannot be locked")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version} --hash=sha256:{sha256}\n"


def floors(extra: Sequence[str]) -> int:
    """A quick part of the tests, with the least versions that pyproject.toml allows; --list prints those for pip."""
    pins = least_versions()
    if list(extra) == ["--list"]:
        print("\n".join(f"{name}=={version}" for name, version in pins.items()))
        return 0
    others = [f"{name} {have}, not {least}" for name, least in pins.items() if not same(have := found(name), least)]
    if others:
        print(f"not the least versions: {', '.join(others)}: pip install what `tasks.py floors --list` prints")
        return 1
    return module("pytest", "-q", *FLOOR_TESTS, *extra)


def least_versions() -> dict[str, str]:
    """Every dependency but torch, with the version behind its `>=`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for extra in FLOOR_EXTRAS for each in project["optional-dependencies"][extra]]
    parts = [re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", each) for each in (*project["dependencies"], *extras)]
    if None in parts:
        raise SystemExit("a dependency in pyproject.toml is not of the form name>=version")
    return {part[1]: part[2] for part in parts if part is not None}


def found(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def same(have: str, least: str) -> bool:
    """Whether these are one version: 43 is 43.0.0."""
    return re.sub(r"(\.0)+$", "", have) == re.sub(r"(\.0)+$", "", least)


def proto(extra: Sequence[str]) -> int:
    """Compile the wire contract to the descriptor that shoal.wire loads."""
    compiled, code = compile_contract()
    if code == 0:
        CONTRACT_FILE.write_bytes(compiled)
        print(f"wrote {CONTRACT_FILE.relative_to(ROOT)}, {len(compiled)} bytes", flush=True)
    return code


def proto_check(extra: Sequence[str]) -> int:
    """Fail if the committed descriptor is not what the contract compiles to, or breaks with the protocol before."""
    compiled, code = compile_contract()
    if code != 0:
        return code
    if not CONTRACT_FILE.exists() or CONTRACT_FILE.read_bytes() != compiled:
        print(
            f"{CONTRACT_FILE.relative_to(ROOT)} does not match {PROTO_FILE.relative_to(ROOT)}: "
            "run `python tools/tasks.py proto` and commit both",
            flush=True,
        )
        return 1
    print(f"{CONTRACT_FILE.relative_to(ROOT)} matches {PROTO_FILE.relative_to(ROOT)}", flush=True)
    # Not above: it needs protobuf, and other tasks do not.
    import contract_changes

    broken = contract_changes.breaks(PREVIOUS_FILE.read_bytes(), compiled)
    for change in broken:
        print(f"breaks with the protocol before: {change}: leave it, and add a field or a message beside it")
    return int(bool(broken))


def compile_contract() -> tuple[bytes, int]:
    """The compiled contract, and protoc's exit code."""
    with tempfile.TemporaryDirectory(prefix="shoal-proto-") as scratch:
        out = Path(scratch) / CONTRACT_FILE.name
        # The path of a file below --proto_path is its name inside the descriptor: keep it short and stable.
        code = module("grpc_tools.protoc", f"--proto_path={PROTO_DIR}", f"--descriptor_set_out={out}", str(PROTO_FILE))
        return (out.read_bytes(), 0) if code == 0 else (b"", code)


def first_failure(codes: Sequence[int]) -> int:
    """The first exit code that is not 0, or 0."""
    return next((code for code in codes if code != 0), 0)


TASKS: dict[str, Runner] = {
    "lint": lint,
    "format": format_,
    "types": types,
    "layers": layers,
    "house": house,
    "map": map_,
    "plain": plain,
    "reference": reference,
    "pictures": pictures,
    "papers": papers,
    "docs": docs,
    "vendored": vendored,
    "tab": tab,
    "tab-check": tab_check,
    "proto": proto,
    "proto-check": proto_check,
    "bandit": bandit,
    "audit": audit,
    "security": security,
    "test": test,
    "lock": lock,
    "release": release,
    "examples": examples,
    "floors": floors,
    "gate": gate,
    "full": full,
    "nightly": nightly,
    "timings": timings,
    "busy": busy,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python tools/tasks.py",
        description="\n".join(f"  {name:<12} {task.__doc__}" for name, task in TASKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=TASKS, metavar="TASK")
    options, extra = parser.parse_known_args(arguments)
    if extra and options.task in ("gate", "full", "nightly", "proto", "proto-check"):
        parser.error(f"{options.task} takes no arguments; {shlex.join(extra)} was given")
    code = TASKS[options.task](extra)
    # A child ended by a signal reports a negative code; a shell says 128 + its number.
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
