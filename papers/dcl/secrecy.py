"""§3.2 and §4.2: "semantic security", tried. Pixels put back where they belong, from what one executor sees.

The attack itself is ``attack.py``; here it is run over some numbers of images and set beside chance.
"""

from __future__ import annotations

import time
from statistics import fmean

from papers.dcl.attack import attacked, chance_level
from papers.harness.rows import Row
from testbed.results import say

IMAGES, QUICK_IMAGES = (50, 200, 1_000), (200,)
SEEDS, QUICK_SEEDS = 3, 1

#: What ``attack.py`` calls them, and what was done to hide the images.
HIDDEN = {
    "static": "one shuffle for all images (SLS)",
    "apart": "a shuffle for each feature",
    "mask": "masks",
}


def run(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for images in QUICK_IMAGES if quick else IMAGES:
        began_s = time.monotonic()
        found = [attacked(images=images, seed=seed) for seed in range(QUICK_SEEDS if quick else SEEDS)]
        took_s = (time.monotonic() - began_s) / len(found)
        for name, what in HIDDEN.items():
            rows.append(
                {
                    "against": name,
                    "what": what,
                    "images": images,
                    "within_one": fmean(each[name] for each in found),
                    "least": min(each[name] for each in found),
                    "chance": chance_level(),
                    "seconds": took_s,
                }
            )
        say(f"   {images} images: {rows[-3:]}")
    return rows
