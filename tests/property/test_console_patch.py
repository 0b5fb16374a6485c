"""Merge patches: whatever the two documents are, the patch leads from one to the other."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.console.patch import apply, diff, without_nulls

_NAMES = st.sampled_from(["a", "b", "c", "d", "", "é"])
_LEAVES = st.one_of(st.booleans(), st.integers(-3, 3), st.floats(0.5, 2), st.text("ab<", max_size=2))
#: In an array a null is a value like any other.
_ARRAYS = st.lists(st.one_of(st.none(), _LEAVES, st.dictionaries(_NAMES, st.none() | _LEAVES, max_size=2)), max_size=3)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _LEAVES | _ARRAYS, lambda inner: st.dictionaries(_NAMES, inner, max_size=4), max_leaves=12
)
DOCUMENTS = st.dictionaries(_NAMES, _VALUES, max_size=5)


@given(DOCUMENTS, DOCUMENTS)
def test_a_patch_makes_the_new_document_of_the_old_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    before = json.dumps(old)
    assert _same(apply(old, diff(old, new)), new)
    assert json.dumps(old) == before, "applying a patch changes no document that others hold"


@given(DOCUMENTS)
def test_the_same_document_needs_no_patch(document: dict[str, Any]) -> None:
    assert diff(document, document) == {}
    assert _same(apply(document, {}), document)


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_patches_follow_each_other(one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]) -> None:
    assert _same(apply(apply(one, diff(one, two)), diff(two, three)), three)


@given(DOCUMENTS, DOCUMENTS)
def test_a_patch_survives_json(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert _same(apply(old, json.loads(json.dumps(diff(old, new)))), new)


def test_the_examples_of_the_standard() -> None:
    """RFC 7386, appendix A."""
    for target, patch, result in (
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ):
        assert apply(target, patch) == result


def test_nulls_leave_objects_and_stay_in_arrays() -> None:
    assert without_nulls({"a": None, "b": {"c": None}, "d": [None, {"e": None}]}) == {"b": {}, "d": [None, {"e": None}]}


def _same(one: Any, two: Any) -> bool:
    """Equal, and as JSON too: to Python 1 is True and 1.0."""
    return bool(one == two) and json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
