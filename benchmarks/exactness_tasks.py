"""Tasks of ``benchmarks.exactness``: a small GPT with a tied head, and a line whose gradients float32 has exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shoal

TOKENS, LENGTH, WIDTH, HEADS, LAYERS = 256, 32, 32, 4, 2


class Block(nn.Module):
    """Attention and a network of two layers, each behind a norm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.network_norm = nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        found: Tensor = x + self.network(self.network_norm(x))
        return found


class Gpt(nn.Module):
    """35,000 parameters; the table of tokens is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1])))))
        return found


class Language(shoal.Task):
    """Bytes of which some follow each other more often than others."""

    def __init__(self, count: int = 32) -> None:
        self.count = count

    def model(self) -> nn.Module:
        return Gpt()

    def examples(self, split: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        chance = np.random.default_rng(1 if split == "train" else 2)
        steps = chance.choice((1, 3, 7, 40), size=(self.count, LENGTH + 1), p=(0.5, 0.3, 0.15, 0.05))
        rows = steps.cumsum(1) % TOKENS
        return rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), y.flatten())

    def metrics(self, model: Any, batch: Any) -> dict[str, Any]:
        x, y = batch
        return {"loss": shoal.mean(self.loss(model(x), y) * len(y), len(y))}


class Line(shoal.Task):
    """A gradient that does not depend on the weight: the mean of eighths, which float32 rounds nowhere."""

    def model(self) -> nn.Module:
        line = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(line.weight)
        return line

    def examples(self, split: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        eighths = np.random.default_rng(3).integers(1, 9, (48, 1)) / 8
        return np.ones((48, 1), np.float32), eighths.astype(np.float32)

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return (output * y).mean()

    def metrics(self, model: Any, batch: Any) -> dict[str, Any]:
        x, y = batch
        return {"loss": shoal.mean(self.loss(model(x), y) * len(y), len(y))}
