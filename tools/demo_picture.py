"""Draw docs/demo.svg: the live view of a real run, as a person sees it in the middle of training.

python tools/demo_picture.py
"""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from rich.console import Console

from shoal.cli.job_history import Story
from shoal.cli.render.view import render
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 104, 30
LONGEST_S = 120


async def watch() -> Story:
    """Train the MNIST example on four devices and stop looking in the middle of its third epoch."""
    async with LocalCluster(workers=4) as cluster, Operator.open(cluster.home) as operator:
        job = await operator.prepare_and_submit(str(ROOT / "examples" / "mnist"), plan={"workers_min": 4})
        story = Story(job)
        for _ in range(LONGEST_S * 4):
            story.take(await operator.status(job, story.last_event))
            progress = story.progress
            if progress and progress.epoch >= 2 and progress.batches_applied > 0.6 * progress.batches_total:
                return story
            await asyncio.sleep(0.25)
    raise TimeoutError("the third epoch did not come")


def main() -> None:
    story = asyncio.run(watch())
    console = Console(record=True, width=WIDTH, force_terminal=True, color_system="truecolor", file=io.StringIO())
    console.print(render(story, width=WIDTH, height=HEIGHT, note="Ctrl-C detaches"))
    target = ROOT / "docs" / "demo.svg"
    console.save_svg(str(target), title="shoal train examples/mnist")
    print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
