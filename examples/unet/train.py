"""Which pixels are of a cell? A small U-Net: `python examples/unet/train.py`."""

import argparse

import numpy as np
import torch
from torch import nn

import shoal

SIDE = 32


class Cells(shoal.Task):
    plan = shoal.Plan(
        batch_size=16, lease_batches=8, inner="adamw", learning_rate=5e-3, momentum=0.0, until=shoal.epochs(10)
    )

    def model(self):
        return UNet()

    def examples(self, split):
        """Made-up images of a microscope, and which pixels are of a cell: both are images of bytes."""
        rng = np.random.default_rng(0 if split == "train" else 1)
        pairs = [drawn(rng) for _ in range(512 if split == "train" else 128)]
        return {"image": np.stack([image for image, _ in pairs]), "cell": np.stack([cell for _, cell in pairs])}

    def collate(self, rows, *, training):
        return {"image": rows["image"].float()[:, None] / 255, "cell": rows["cell"].float()}

    def step(self, model, batch, lease):
        return nn.functional.binary_cross_entropy_with_logits(model(batch["image"]), batch["cell"])

    def metrics(self, model, batch):
        """Count the pixels of both and of either. Shoal adds the counts of all batches and divides once."""
        found, true = model(batch["image"]) > 0, batch["cell"] > 0
        return {"iou": shoal.ratio((found & true).sum(), (found | true).sum())}


class UNet(nn.Module):
    """Down two steps and up again, with what was seen on the way down (Ronneberger et al., MICCAI 2015, figure 1)."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.second, self.deep = block(1, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.raise_deep = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.raise_second = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join_second, self.join_first = block(4 * width, 2 * width), block(2 * width, width)
        self.top = nn.Conv2d(width, 1, 1)

    def forward(self, image):
        first = self.first(image)
        second = self.second(nn.functional.max_pool2d(first, 2))
        deep = self.deep(nn.functional.max_pool2d(second, 2))
        up = self.join_second(torch.cat([second, self.raise_deep(deep)], 1))
        return self.top(self.join_first(torch.cat([first, self.raise_second(up)], 1))).squeeze(1)


def block(inputs, outputs):
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
        *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
    )


def drawn(rng):
    """One to five cells, each an ellipse with a dark rim, on a ground of uneven light with noise."""
    down, across = np.mgrid[:SIDE, :SIDE]
    slope = rng.normal(0, 1.5, 2)
    image = 90 + slope[0] * down + slope[1] * across
    cell = np.zeros((SIDE, SIDE), bool)
    for _ in range(rng.integers(1, 6)):
        (y, x), (height, width) = rng.uniform(4, SIDE - 4, 2), rng.uniform(2.5, 6, 2)
        far = ((down - y) / height) ** 2 + ((across - x) / width) ** 2
        cell |= far < 1
        image = np.where(far < 1, np.where(far > 0.6, image - 25, image + 30), image)
    return np.clip(image + rng.normal(0, 14, image.shape), 0, 255).astype(np.uint8), cell.astype(np.uint8)


def draw(model, file, count=6):
    from matplotlib.figure import Figure

    rows = {name: torch.as_tensor(each[:count]) for name, each in Cells().examples("test").items()}
    with torch.no_grad():
        found = model.eval()(Cells().collate(rows, training=False)["image"]) > 0
    figure = Figure(figsize=(1.4 * count, 4.4), layout="constrained")
    for line, (name, images) in zip(
        figure.subplots(3, count), (("image", rows["image"]), ("true", rows["cell"]), ("found", found)), strict=True
    ):
        for axes, image in zip(line, images, strict=True):
            axes.imshow(image, cmap="gray")
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw what was found; needs matplotlib")
    given = parser.parse_args()
    result = shoal.fit(Cells(), workers=2)
    overlap = result.history["iou"][-1]
    print(f"overlap (IoU) {overlap:.3f} after {result.version} versions, in {result.seconds:.0f} s")
    if given.picture:
        draw(result.model(), given.picture)
