"""Messages as plain JSON values, under the names of their fields: what ``--json`` prints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def to_plain(value: Any) -> Any:
    """Dataclasses become objects; numbers that JSON cannot say (infinities) become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
