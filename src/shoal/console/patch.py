"""JSON merge patches (RFC 7386): what changed from one document to the next, and back. Pure.

A patch says null for a member that is gone, so a document that is patched holds no null in an object. In an array it
may: arrays are replaced whole.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]


def diff(old: Document, new: Document) -> Document:
    """The smallest merge patch that makes ``new`` of ``old``; empty: they are the same."""
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
    """Whether JSON writes them differently: to Python, 1 is True."""
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
    """A document with a patch applied. ``old`` is not changed; what the patch does not name is shared with it."""
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
    """A document whose objects hold no null, so that it can be patched. Arrays stay as they are."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value
