"""What a measurement prints: progress while it runs, and one line of JSON at its end."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def finish(result: dict[str, Any]) -> None:
    print(json.dumps({k: _rounded(v) if isinstance(v, float) else v for k, v in result.items()}), flush=True)


def _rounded(value: float) -> float:
    """Four decimals; of a small number, three digits that count."""
    return round(value, 4) if abs(value) >= 0.01 else float(f"{value:.3g}")
