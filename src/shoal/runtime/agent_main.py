"""Starts an agent without Python's OpenSSL: ``python -m shoal.runtime.agent_main --home DIR``.

An agent's connections are gRPC's, which has its own TLS. asyncio would load Python's for its own, of which an agent has
none: a megabyte for as long as it runs.
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> int:
    _import_asyncio()
    from shoal.runtime.agent import main as run_agent

    return run_agent()


def _import_asyncio() -> None:
    """Import asyncio as on a Python that was built without `ssl`, which asyncio allows for."""
    modules: dict[str, Any] = sys.modules
    # What starts before us (a ``sitecustomize``, a tool that measures) may have loaded either, and perhaps changed
    # `ssl`: nothing is saved then, and a second copy of it would not be the changed one.
    if "asyncio" in modules or "ssl" in modules:
        return
    modules["ssl"] = None
    try:
        import asyncio  # noqa: F401
    finally:
        del modules["ssl"]


if __name__ == "__main__":
    sys.exit(main())
