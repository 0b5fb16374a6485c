"""A release, rehearsed: every step that needs no key, in the order of the workflow, and a list of those that do."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import release_archives as archives
import release_image
import release_index as index
import release_parts as parts
import release_readme
import release_site as site
import release_upgrade
import release_version
from release_place import REPOSITORY_VARIABLE, ROOT, SOME_REPOSITORY, ByHand, Failed, Place

#: What only a person with an account or a key can do, in this order.
BY_HAND = (
    "PyPI: claim the name shoal, and name .github/workflows/release.yml, environment `release`, as its publisher",
    "GitHub: make the environment `release` with a reviewer; turn on Pages, Discussions and private reports",
    "GitHub: set the variables SHOAL_SITE (an address that ends with /) and SHOAL_IMAGE (ghcr.io/OWNER/shoal)",
    "SECURITY.md: write the address for reports",
    "CHANGELOG.md: give the open section today's date, open the next one, and commit both",
    "git: sign and push the tag `v` + version; the workflow does the rest and asks the reviewer before it publishes",
    "GitHub: make the image's package public once",
    "Zenodo or another archive: store the release, and add its DOI to CITATION.cff",
)
#: In a rehearsal as in README: trained until most digits are right, which takes seconds.
_DEMO = ("demo", "--json", "--workers", "2", "--target", "0.9")

Figures = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step: its name, what it does, and the steps that must have passed before."""

    name: str
    act: Callable[[Place], Figures | None]
    after: tuple[str, ...] = ()


def _version(place: Place) -> Figures:
    return {"version": release_version.check_one_place(ROOT)}


def _changelog(place: Place) -> Figures:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    check = release_version.check_closed if place.is_tagged else release_version.check_changelog
    return {"changelog_entries": check(text, place.version)}


def _core(place: Place) -> Figures:
    index.serve(place)
    index.install(place, "core")
    return {"installed_from_index": True}


def _readme(place: Place) -> Figures:
    program = Path(release_readme.__file__)
    tag = f"v{place.version}"
    told = place.run(place.python("tools"), program, place.wheel, place.source, place.repository, tag)
    found: Figures = json.loads(told.strip().splitlines()[-1])
    if broken := found.pop("broken"):
        raise Failed(f"links of the README that lead nowhere: {broken}")
    return found


def _demo(place: Place) -> Figures:
    told = place.run(place.python("torch").with_name("shoal"), *_DEMO, more={"HOME": str(place.scratch)})
    found = json.loads(told.strip().splitlines()[-1])
    return {"demo_accuracy": found["accuracy"], "demo_s": round(found["seconds"], 1)}


STEPS = (
    Step(name="version", act=_version),
    Step(name="changelog", act=_changelog),
    Step(name="tools", act=archives.make_tools),
    Step(name="build", act=archives.build_twice, after=("tools",)),
    Step(name="check", act=archives.check_archives, after=("build",)),
    Step(name="readme", act=_readme, after=("build",)),
    Step(name="site", act=lambda place: site.build_site(place, _site_address()), after=("build",)),
    Step(name="install-core", act=_core, after=("build",)),
    Step(name="install-onnx", act=lambda place: index.install(place, "onnx", extra="onnx"), after=("install-core",)),
    Step(name="install-torch", act=lambda place: index.install(place, "torch", extra="torch"), after=("install-core",)),
    Step(name="demo", act=_demo, after=("install-torch",)),
    Step(name="upgrade", act=release_upgrade.upgrade, after=("install-torch",)),
    Step(name="parts", act=parts.list_parts, after=("install-core",)),
    Step(name="provenance", act=parts.state_provenance, after=("parts",)),
    Step(name="image", act=release_image.build_image, after=("build",)),
)


def main(extra: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python tools/tasks.py release")
    parser.add_argument("--rehearse", action="store_true", required=True, help="do every step that needs no key")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    parser.add_argument("--closed", action="store_true", help="of a tag: the changelog has to be closed for it")
    parser.add_argument("--only", nargs="+", metavar="STEP", choices=[step.name for step in STEPS])
    parser.add_argument("--out", type=Path, metavar="DIR", help="copy the files of the release to this folder")
    options = parser.parse_args(extra)
    chosen = needed(options.only) if options.only else STEPS
    with tempfile.TemporaryDirectory(prefix="shoal-release-") as scratch:
        place = make_place(Path(scratch), is_tagged=options.closed)
        try:
            report = rehearse(place, chosen)
        finally:
            place.close()
        if options.out is not None and report["passed"] == report["steps"]:
            shutil.copytree(place.dist, options.out, dirs_exist_ok=True)
    if options.json:
        print(json.dumps(report), flush=True)
    return 0 if report["passed"] == report["steps"] else 1


def needed(names: Sequence[str]) -> tuple[Step, ...]:
    """Return these steps and those that they come after, in order."""
    wanted = set(names)
    for step in reversed(STEPS):
        if step.name in wanted:
            wanted |= set(step.after)
    return tuple(step for step in STEPS if step.name in wanted)


def rehearse(place: Place, steps: Sequence[Step]) -> Figures:
    """Do the steps, say what each took, and return the figures that they found."""
    figures: Figures = {"same_bytes_twice": False, "installed_from_index": False}
    passed, left, failed = set[str](), dict[str, str](), dict[str, str]()
    for step in steps:
        began_s, told = time.monotonic(), "passed"
        if missing := [name for name in step.after if name not in passed]:
            told = failed[step.name] = f"not done, for {', '.join(missing)} failed"
        else:
            try:
                figures |= step.act(place) or {}
                passed.add(step.name)
            except ByHand as reason:
                left[step.name] = str(reason)
                told = f"left to a person: {reason}"
            except Failed as error:
                told = failed[step.name] = str(error)
        print(f"{time.monotonic() - began_s:8.1f} s  {step.name:<14} {told}", file=sys.stderr, flush=True)
    by_hand = [*left.values(), *BY_HAND]
    print("\nby hand:", *by_hand, sep="\n  - ", file=sys.stderr, flush=True)
    # A step that this machine cannot do is neither passed nor failed: it is in the list for people.
    report: Figures = {"steps": len(steps) - len(left), "passed": len(passed)}
    return report | figures | {"by_hand": by_hand} | ({"failed": failed} if failed else {})


def make_place(scratch: Path, *, is_tagged: bool = False) -> Place:
    torch = re.findall(r"^torch==\S+$", (ROOT / "requirements" / "dev.in").read_text(encoding="utf-8"), re.MULTILINE)
    when = ("git", "log", "-1", "--format=%ct")
    committed = subprocess.run(when, cwd=ROOT, capture_output=True, text=True, check=True)
    return Place(
        scratch=scratch,
        version=release_version.version_of(ROOT),
        torch=torch[0],
        repository=os.environ.get(REPOSITORY_VARIABLE, SOME_REPOSITORY).rstrip("/"),
        epoch_s=int(committed.stdout),
        is_tagged=is_tagged,
    )


def _site_address() -> str:
    return os.environ.get(site.SITE_VARIABLE) or site.SOME_SITE
