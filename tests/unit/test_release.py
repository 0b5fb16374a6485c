"""The rehearsal of a release finds what would break it: each check is shown one thing that is wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import release  # noqa: E402
import release_archives  # noqa: E402
import release_parts  # noqa: E402
import release_readme  # noqa: E402
import release_version  # noqa: E402
from release_place import ByHand, Failed, Place  # noqa: E402

pytestmark = pytest.mark.timeout(60)

OPEN = "# Changelog\n\n## [Unreleased] - 1.2.0\n\n### Added\n\n- A thing.\n- Another.\n\n### Fixed\n\n- A slip.\n"
REPOSITORY = "https://forge.example/someone/shoal"


def place_in(folder: Path) -> Place:
    (folder / "dist").mkdir()
    return Place(scratch=folder, version="1.2.0", torch="torch==2.13.0", repository=REPOSITORY, epoch_s=1)


def test_this_checkout_states_its_version_once_and_can_close_its_changelog() -> None:
    version = release_version.check_one_place(ROOT)
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = release_version.check_changelog(text, version)
    assert entries > 100
    after = release_version.closed(text, version=version, date="2026-12-01")
    assert release_version.check_closed(after, version) == entries


def test_a_second_version_in_pyproject_is_found(tmp_path: Path) -> None:
    (tmp_path / "src" / "shoal").mkdir(parents=True)
    (tmp_path / "src" / "shoal" / "version.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "shoal"\nversion = "1.2.0"\ndynamic = ["readme"]\n')
    with pytest.raises(Failed, match="a version of its own"):
        release_version.check_one_place(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("1.2.0", "1.1.0"), "one open section"),
        (("## [Unreleased] - 1.2.0", "## [1.2.0] - 2026-01-01"), "one open section"),
        (("### Fixed", "### Mended"), "has the headings"),
        (("- A slip.\n", ""), "without entries"),
        (("# Changelog\n", "# Changelog\n\n## [1.2.0] - 2026-01-01\n"), "already"),
    ],
)
def test_a_changelog_that_cannot_be_closed_is_refused(change: tuple[str, str], problem: str) -> None:
    assert release_version.check_changelog(OPEN, "1.2.0") == 3
    with pytest.raises(Failed, match=problem):
        release_version.check_changelog(OPEN.replace(*change), "1.2.0")


def test_a_tag_needs_a_closed_changelog() -> None:
    assert release_version.check_closed(release_version.closed(OPEN, version="1.2.0", date="2026-12-01"), "1.2.0") == 3
    with pytest.raises(Failed, match="before the tag is pushed"):
        release_version.check_closed(OPEN, "1.2.0")


def test_links_that_lead_nowhere_are_counted(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A title, with `code`\n\n```\n# not a title\n```\n")
    there, picture = f"{REPOSITORY}/blob/v1/page.md", f"{REPOSITORY}/raw/v1/page.md"
    good = f'<a href="{there}">a</a><a href="{there}#a-title-with-code">b</a><img src="{picture}">'
    bad = f'<a href="{there}#not-a-title">c</a><a href="{REPOSITORY}/blob/v2/page.md">d</a><a href="page.md">e</a>'
    bad += f'<img src="{REPOSITORY}/raw/v1/gone.svg"><a href="http://plain.example">f</a><a href="#gone">g</a>'
    count, broken = release_readme.broken_links(good + bad, root=tmp_path, repository=REPOSITORY, tag="v1")
    assert count == 9
    assert len(broken) == 6
    assert not set(broken) & {there, f"{there}#a-title-with-code", picture}


def test_a_file_that_is_not_the_one_in_the_statement_is_found(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    for file in (place.wheel, place.sdist, place.dist / release_parts.SBOM):
        file.write_text(file.name)
    release_parts.state_provenance(place)
    statement = json.loads((place.dist / release_parts.PROVENANCE).read_text())
    assert {each["name"] for each in statement["subject"]} == {place.wheel.name, place.sdist.name, release_parts.SBOM}
    commit = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"]
    assert re.fullmatch("[0-9a-f]{40}", commit)
    place.wheel.write_text("another")
    with pytest.raises(Failed, match="statement of provenance"):
        release_parts.check_provenance(place)


def test_only_tracked_files_are_built(tmp_path: Path) -> None:
    release_archives.copy_source(ROOT, tmp_path / "copy")
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.py")}
    assert "src/shoal/version.py" in copied
    assert not any("__pycache__" in name for name in copied)
    assert not (tmp_path / "copy" / ".git").exists()


def test_a_step_that_fails_stops_those_after_it_and_one_for_people_is_neither(tmp_path: Path) -> None:
    def fails(place: Place) -> None:
        raise Failed("no")

    def by_hand(place: Place) -> None:
        raise ByHand("press the button")

    steps = (
        release.Step(name="first", act=lambda place: {"found": 1}),
        release.Step(name="second", act=fails, after=("first",)),
        release.Step(name="third", act=lambda place: {"never": 1}, after=("second",)),
        release.Step(name="fourth", act=by_hand),
    )
    told = release.rehearse(place_in(tmp_path), steps)
    assert (told["steps"], told["passed"]) == (3, 1)
    assert told["found"] == 1
    assert "never" not in told
    assert told["by_hand"] == ["press the button", *release.BY_HAND]
    assert told["failed"] == {"second": "no", "third": "not done, for second failed"}


def test_steps_come_after_those_that_they_need() -> None:
    names = [step.name for step in release.STEPS]
    for step in release.STEPS:
        assert all(names.index(name) < names.index(step.name) for name in step.after), step.name
    assert [step.name for step in release.needed(["readme"])] == ["tools", "build", "readme"]


def test_every_action_is_pinned_by_its_commit_and_names_its_release() -> None:
    used = [
        line.strip().removeprefix("- ")
        for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) > 10
    assert [line for line in used if not re.fullmatch(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    by_action: dict[str, set[str]] = {}
    for line in used:
        action, _, commit = line.removeprefix("uses: ").partition("@")
        by_action.setdefault(action, set()).add(commit)
    assert {action: pins for action, pins in by_action.items() if len(pins) > 1} == {}


def test_the_workflow_publishes_only_what_was_rehearsed() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert {jobs[name]["needs"] for name in ("image", "site")} == {"publish"}
    assert not any("hatchling" in step.get("run", "") for job in jobs.values() for step in job["steps"])
