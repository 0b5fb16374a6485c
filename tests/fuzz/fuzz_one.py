"""Fuzz one family of readers with atheris, guided by which lines an input reaches. See README.md beside this file.

python tests/fuzz/fuzz_one.py FAMILY [options of libFuzzer, such as -max_total_time=60]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shoal", "zipfile", "json"]):
    from families import FAMILIES

from shoal.errors import ShoalError


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in FAMILIES:
        sys.exit(f"usage: {sys.argv[0]} FAMILY [options]; families: {' '.join(FAMILIES)}")
    family = FAMILIES[sys.argv[1]]

    def one_input(data: bytes) -> None:
        try:
            family.read(data)
        except ShoalError:
            pass

    with tempfile.TemporaryDirectory(prefix="shoal-fuzz-") as folder:
        for number, seed in enumerate(family.seeds):
            (Path(folder) / f"seed-{number}").write_bytes(seed)
        # An input that takes longer than this, or more memory, is a finding like a crash.
        limits = ["-timeout=5", "-rss_limit_mb=1024", "-max_len=4096"]
        again = any(not option.startswith("-") for option in sys.argv[2:])
        corpus = [] if again else [folder]
        atheris.Setup([sys.argv[0], *limits, *sys.argv[2:], *corpus], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
