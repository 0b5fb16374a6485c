"""What a process is started with: its command line gives back the very options that it was written from."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.runtime.agent_options import AgentOptions

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


def options_of(kind: type, special: Mapping[str, st.SearchStrategy[Any]] = {}) -> st.SearchStrategy[Any]:
    """Draw every field by its type: a field that is added is drawn too."""
    hints = typing.get_type_hints(kind)
    drawn = {}
    for field in dataclasses.fields(kind):
        choices = field.metadata["choices"]
        drawn[field.name] = st.sampled_from(choices) if choices else KINDS[hints[field.name]]
    return st.builds(kind, **{**drawn, **special})


@given(options_of(AgentOptions))
def test_an_agents_command_line_says_its_options(options: AgentOptions) -> None:
    assert AgentOptions.parse(options.to_argv()) == options
