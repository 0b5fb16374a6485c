"""What a process is started with: its command line gives back the very options that it was written from."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.flock.peer_options import PeerOptions
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.manager_options import ManagerOptions

#: A word of a command line holds everything but NUL; among the first characters, those that argparse heeds.
texts = st.text(st.one_of(st.sampled_from("-=% @"), st.characters(exclude_characters="\0", codec="utf-8")), max_size=12)
paths = texts.map(Path)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False),
    str: texts,
    Path: paths,
    Path | None: st.one_of(st.none(), paths),
}


def fields_of(kind: type) -> st.SearchStrategy[dict[str, Any]]:
    """Draw every field by its type: a field that is added is drawn too."""
    hints = typing.get_type_hints(kind)
    drawn = {}
    for field in dataclasses.fields(kind):
        choices = field.metadata["choices"]
        drawn[field.name] = st.sampled_from(choices) if choices else KINDS[hints[field.name]]
    return st.fixed_dictionaries(drawn)


@given(fields_of(AgentOptions))
def test_an_agents_command_line_says_its_options(fields: dict[str, Any]) -> None:
    options = AgentOptions(**fields)
    assert AgentOptions.parse(options.to_argv()) == options


@given(fields_of(PeerOptions))
def test_a_peers_command_line_says_its_options(fields: dict[str, Any]) -> None:
    options = PeerOptions(**fields)
    assert PeerOptions.parse(options.to_argv()) == options


#: What a manager refuses if its parts do not fit together: drawn together.
stores = st.one_of(
    st.just({"store": "", "direct": "", "blobs": ""}),
    st.fixed_dictionaries(
        {"store": texts.filter(bool), "direct": texts, "blobs": texts, "disk_quota_bytes": st.just(0)}
    ),
)
tabs = st.one_of(
    st.just(
        {
            "browser": "",
            "browser_certificate": None,
            "browser_key": None,
            "browser_operator": "",
            "browser_purpose": "",
            "browser_origin": "",
        }
    ),
    st.fixed_dictionaries(
        {
            "browser": st.just("https://attic.lan:7075"),
            "browser_certificate": paths,
            "browser_key": paths,
            "browser_operator": texts.map(lambda text: text[:300]),
            "browser_purpose": texts.map(lambda text: text[:300]),
            "browser_origin": st.sampled_from(("", "https://app.lan", "https://app.lan,https://shop.lan:8443")),
        }
    ),
)
kept = st.fixed_dictionaries(
    {"keep_jobs": st.sampled_from(("", "90d", "12H", "500")), "contribute_mb": st.integers(0, 1 << 20)}
)


@given(fields_of(ManagerOptions), stores, tabs, kept)
def test_a_managers_command_line_says_its_options(
    fields: dict[str, Any], stored: dict[str, Any], door: dict[str, Any], keep: dict[str, Any]
) -> None:
    options = ManagerOptions(**fields | stored | door | keep)
    assert ManagerOptions.parse(options.to_argv()) == options
