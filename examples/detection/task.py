"""Find digits in a scene, with a backbone that knows digits already: `shoal train examples/detection`."""

from collections import OrderedDict
from itertools import pairwise

import torch
from scenes import scenes
from torch import nn
from torch.nn import functional

import shoal

CELL = 8  # pixels: the backbone looks at a scene in cells of 8 x 8


def backbone():
    widths = (1, 32, 64, 96)
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class Digits(shoal.Task):
    """The first task: which digit it is. Its backbone is what the second begins with."""

    plan = shoal.Plan(batch_size=64, learning_rate=0.05, momentum=0.9, until=shoal.epochs(1))

    def model(self):
        head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * 96, 10))
        return nn.Sequential(OrderedDict(backbone=backbone(), digit=head))

    def examples(self, split):
        images, labels = shoal.data.mnist(split)
        return images[:12_800], labels[:12_800]  # enough for a backbone

    loss = staticmethod(functional.cross_entropy)


class Detector(shoal.Task):
    """In each cell: is the middle of a digit here, and where are its sides? Only this head is trained."""

    plan = shoal.Plan(
        **{"batch_size": 16, "lease_batches": 16, "inner": "adamw", "learning_rate": 3e-3},
        **{"outer_rate": 1.0, "momentum": 0.0, "until": (shoal.metric("precision") >= 0.97) | shoal.epochs(12)},
    )

    def __init__(self, scenes=1024):
        self._scenes = {"train": scenes, "test": 256}

    def model(self):
        head = nn.Sequential(nn.Conv2d(96, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 5, 3, padding=1))
        return nn.Sequential(OrderedDict(backbone=backbone().requires_grad_(False), boxes=head))

    def examples(self, split):
        images, boxes = scenes(split, self._scenes[split])
        return {"image": images, "boxes": boxes}

    def collate(self, rows, *, training):
        """Boxes are as many as they are. What the head shall say of each cell is one array."""
        images = rows["image"].float() / 255
        side = images.shape[-1] // CELL
        wanted = torch.zeros(len(images), 5, side, side)
        for number, boxes in enumerate(rows["boxes"]):
            middle = (boxes[:, :2] + boxes[:, 2:]) / 2
            column, row = (middle / CELL).long().clamp(max=side - 1).T
            at = torch.stack([column, row, column, row], 1) + 0.5
            wanted[number, 0, row, column] = 1
            wanted[number, 1:, row, column] = (boxes / CELL - at).T
        return {"image": images, "wanted": wanted, "boxes": rows["boxes"]}

    def step(self, model, batch, lease):
        return self._loss(model(batch["image"]), batch["wanted"])

    def metrics(self, model, batch):
        """A box that is found is right if it overlaps one that is there by half, which no other box did."""
        output = model(batch["image"])
        found = right = there = 0
        overlap = 0.0
        for cells, boxes in zip(output, batch["boxes"], strict=True):
            guesses = _found(cells)
            shares = _overlaps(guesses, boxes)
            found, there = found + len(guesses), there + len(boxes)
            overlap += shares.amax(0).sum() if len(guesses) else 0
            right += _matched(shares)
        return {
            "precision": shoal.ratio(right, found),
            "recall": shoal.ratio(right, there),
            "iou": shoal.ratio(overlap, there),
            "loss": shoal.mean(self._loss(output, batch["wanted"]) * len(output), len(output)),
        }

    @staticmethod
    def _loss(output, wanted):
        is_here = wanted[:, 0]
        seen = functional.binary_cross_entropy_with_logits(output[:, 0], is_here, pos_weight=torch.tensor(4.0))
        off = functional.smooth_l1_loss(output[:, 1:], wanted[:, 1:], reduction="none").sum(1)
        return seen + (off * is_here).sum() / is_here.sum().clamp(min=1)


def _found(cells):
    """The boxes that the head sees in one scene: cells that are surer than their neighbours, best first."""
    score = cells[0]
    peaks = (score > 0) & (score == functional.max_pool2d(score[None], 3, 1, 1)[0])
    row, column = peaks.nonzero().T
    order = score[row, column].argsort(descending=True)
    row, column = row[order], column[order]
    at = torch.stack([column, row, column, row], 1) + 0.5
    return (cells[1:, row, column].T + at) * CELL


def _overlaps(a, b):
    """Intersection over union of every box of a with every box of b."""
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp(min=0).prod(2)
    areas = [(each[:, 2:] - each[:, :2]).clamp(min=0).prod(1) for each in (a, b)]
    return both / (areas[0][:, None] + areas[1][None, :] - both).clamp(min=1e-6)


def _matched(shares):
    taken = set()
    for row in shares.tolist():
        free = [(share, number) for number, share in enumerate(row) if number not in taken]
        share, number = max(free, default=(0.0, -1))
        if share >= 0.5:
            taken.add(number)
    return len(taken)
