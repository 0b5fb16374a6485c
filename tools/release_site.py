"""The site of a release: built strictly, with its address, version, search, site map and list for programs."""

from __future__ import annotations

import json
import re

from release_place import Failed, Place

#: Some address, where the rehearsal is not told one.
SITE_VARIABLE, SOME_SITE = "SHOAL_SITE", "https://site.example/shoal/"


def build_site(place: Place, address: str) -> dict[str, object]:
    """Build the site as the workflow does, and check what a visitor, a search engine and a program find there."""
    target = place.scratch / "site"
    more = place.build_environment() | {SITE_VARIABLE: address, "NO_MKDOCS_2_WARNING": "1"}
    command = (place.python("tools"), "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", target)
    place.run(*command, cwd=place.source, more=more)
    located = re.findall(r"<loc>([^<]*)</loc>", (target / "sitemap.xml").read_text(encoding="utf-8"))
    if not located or not all(each.startswith(address) for each in located):
        raise Failed(f"sitemap.xml names pages outside {address}: {located[:3]}")
    absent = [each for each in located if not (target / each.removeprefix(address) / "index.html").is_file()]
    if absent:
        raise Failed(f"sitemap.xml names pages that are not built: {absent}")
    programs = (target / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\S+?)\)", programs)
    if not programs.startswith("# Shoal\n\n> ") or set(listed) - set(located) or len(listed) < len(located) // 3:
        raise Failed("llms.txt must name Shoal, say what it is, and list pages that are in the site map")
    home = (target / "index.html").read_text(encoding="utf-8")
    if f"Shoal {place.version}" not in home or f'<link rel="canonical" href="{address}">' not in home:
        raise Failed("the home page must name the version and its own address")
    if not json.loads((target / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]:
        raise Failed("the site's search finds nothing")
    return {"site_pages": len(located)}
