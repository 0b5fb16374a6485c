"""Both tasks, one after the other, on this machine: `python examples/detection/train.py`."""

import argparse
from pathlib import Path

from task import Detector, Digits

import shoal
from shoal.callbacks import CSV

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    heard = [CSV(given.out / "detector.csv")]
    digits = shoal.fit(Digits(), workers=given.workers, save=given.out / "digits.safetensors")
    boxes = shoal.fit(
        Detector(), workers=given.workers, save=given.out / "detector.safetensors", start=digits, callbacks=heard
    )
    for name, result in (("digits", digits), ("detector", boxes)):
        print(f"{name}: {result.history[-1].measured} after {result.version} versions, {result.seconds:.0f} s")
    detector = boxes.model()
    print(f"the detector has {sum(each.numel() for each in detector.parameters()):,} values")
