"""What is in a release and where it came from: a list of parts (CycloneDX), and a statement of provenance (in-toto).

The statement is not signed here: a signature needs the identity of the workflow, which makes and signs one of its own.
"""

from __future__ import annotations

import json
import subprocess
import tomllib

from release_archives import digests
from release_place import ROOT, Failed, Place

SBOM, PROVENANCE = "shoal.cdx.json", "shoal.provenance.json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"


def list_parts(place: Place) -> dict[str, object]:
    """List what is installed with the core, and check that every dependency is in the list with a version."""
    target = place.dist / SBOM
    command = (place.python("tools").with_name("cyclonedx-py"), "environment", "--of", "JSON", "--output-reproducible")
    place.run(*command, "--validate", "-o", target, place.python("core"))
    listed = {part["name"].lower(): part.get("version") for part in json.loads(target.read_text())["components"]}
    project = tomllib.loads((place.source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {"shoal", *(each.partition(">=")[0] for each in project["dependencies"])}
    if missing := sorted(name for name in wanted if not listed.get(name)):
        raise Failed(f"the list of parts lacks {', '.join(missing)}")
    return {"parts": len(listed)}


def state_provenance(place: Place) -> None:
    """Write which commit, builder and files this release is made of; the hashes are those of the files as they lie."""
    commit, at_tag = _git("rev-parse", "HEAD"), f"{place.repository}/blob/v{place.version}"
    files = {name: sha256 for name, sha256 in digests(place.dist).items() if name != PROVENANCE}
    (hatchling,) = (
        line.split()[0].partition("==")[2]
        for line in (ROOT / "requirements" / "release.lock").read_text().splitlines()
        if line.startswith("hatchling==")
    )
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in files.items()],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{at_tag}/tools/release.py",
                "externalParameters": {"version": place.version, "SOURCE_DATE_EPOCH": place.epoch_s},
                "internalParameters": {"hatchling": hatchling, "has_local_changes": bool(_git("status", "--short"))},
                "resolvedDependencies": [{"uri": f"git+{place.repository}", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": f"{at_tag}/.github/workflows/release.yml"}},
        },
    }
    (place.dist / PROVENANCE).write_text(json.dumps(statement, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    check_provenance(place)


def check_provenance(place: Place) -> None:
    """Compare every file of the release with the statement, as someone who downloads both would."""
    statement = json.loads((place.dist / PROVENANCE).read_text(encoding="utf-8"))
    stated = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    found = {name: sha256 for name, sha256 in digests(place.dist).items() if name != PROVENANCE}
    if stated != found or not {place.wheel.name, place.sdist.name, SBOM} <= stated.keys():
        raise Failed(f"the statement of provenance names {stated}, and the files are {found}")


def _git(*words: str) -> str:
    command = ("git", *words)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
