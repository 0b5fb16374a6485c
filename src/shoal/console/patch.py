"""JSON merge patches (RFC 7386): what changed from one document to the next, and back. Pure.

A patch has null for a removed member, so the objects of a patched document hold no null. Arrays may, since they are
replaced as a unit.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]


def diff(old: Document, new: Document) -> Document:
    """Return the smallest merge patch that turns ``old`` into ``new``, or {} if they are equal."""
    patch: Document = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
            continue
        before = old[name]
        if before is value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := diff(before, value):
                patch[name] = inner
        elif _differ(before, value):
            patch[name] = value
    return patch


def _differ(one: Any, two: Any) -> bool:
    """Whether JSON writes two values differently: in Python, 1 equals True."""
    if one is two:
        return False
    if type(one) is not type(two) or one != two:
        return True
    if isinstance(one, list):
        return any(map(_differ, one, two))
    if isinstance(one, dict):
        return any(_differ(value, two[name]) for name, value in one.items())
    return False


def apply(old: Any, patch: Any) -> Any:
    """Return a document with a patch applied. ``old`` does not change; the result shares its unchanged parts."""
    if not isinstance(patch, dict):
        return patch
    merged: Document = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = apply(merged.get(name), value)
    return merged


def without_nulls(value: Any) -> Any:
    """Return a document without nulls in its objects, so that it can be patched. Arrays stay as they are."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value
