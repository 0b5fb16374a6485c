"""Eleven small tasks, one for each family of layers that a captured step must have. Examples are drawn, not read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal import Task


class _Drawn(Task):
    """Seeded examples of one shape."""

    _shape: tuple[int, ...] = (64,)
    _classes = 10
    _as_bytes = False

    def examples(self, split: str) -> Any:
        draw = torch.Generator().manual_seed(7 if split == "train" else 8)
        if self._as_bytes:
            x = torch.randint(0, 256, (192, *self._shape), generator=draw, dtype=torch.uint8)
        else:
            x = torch.randn((192, *self._shape), generator=draw)
        return x.numpy(), torch.randint(0, self._classes, (192,), generator=draw).numpy()


class Mlp(_Drawn):
    _shape, _as_bytes = (1, 28, 28), True

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10)
        )


class LeNet(_Drawn):
    _shape, _as_bytes = (1, 28, 28), True

    def model(self) -> nn.Module:
        features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
        head = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
        return nn.Sequential(*features, nn.MaxPool2d(2), nn.Flatten(), *head)


class _Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Conv2d(inner, outer, 1, stride, bias=False) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm2(self.second(functional.relu(self.norm1(self.first(x)))))
        return functional.relu(inside + self.shortcut(x))


class ResNet(_Drawn):
    _shape, _as_bytes = (3, 32, 32), True

    def model(self) -> nn.Module:
        stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        blocks = [_Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2)]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Mobile(_Drawn):
    """Depthwise, grouped and dilated convolutions, average and overlapping maximum pools."""

    _shape, _as_bytes = (3, 32, 32), True

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()),
            *(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.ReLU6(), nn.Conv2d(16, 32, 1)),
            *(nn.Conv2d(32, 32, 3, 2, 2, dilation=2, groups=4), nn.SiLU()),
            *(nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(128, 10)),
        )


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.project, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.project(self.before(x)).chunk(3, dim=-1)
        query, key, value = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.back(seen.transpose(1, 2).reshape(rows, length, width))
        after: Tensor = x + self.narrow(functional.gelu(self.wide(self.between(x))))
        return after


class _Language(nn.Module):
    def __init__(self, words: int = 256, width: int = 64, length: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(_Block(width, 4), _Block(width, 4))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.norm(self.blocks(self.words(x) * 0.3 + self.places))
        return seen @ self.words.weight.T


class Transformer(Task):
    """Causal attention, and an embedding that is also the last layer."""

    def model(self) -> nn.Module:
        return _Language()

    def examples(self, split: str) -> Any:
        draw = torch.Generator().manual_seed(9)
        text = torch.randint(0, 256, (192, 33), generator=draw)
        return text[:, :-1].numpy(), text[:, 1:].numpy()

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), y.flatten())

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        import shoal

        x, y = batch
        output = model(x)
        return {"loss": shoal.mean(self.loss(output, y) * y.numel(), torch.full((), float(y.numel())))}


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(9, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.widen(x)).mean(1))
        return out


class Encoder(_Drawn):
    _shape, _classes = (24, 9), 6

    def model(self) -> nn.Module:
        return _Encoder()


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layer = kind(9, 32, batch_first=True)
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


class Lstm(_Drawn):
    _shape, _classes = (12, 9), 6

    def model(self) -> nn.Module:
        return _Recurrent(nn.LSTM)


class Gru(_Drawn):
    _shape, _classes = (12, 9), 6

    def model(self) -> nn.Module:
        return _Recurrent(nn.GRU)


class Waves(_Drawn):
    """Convolutions along time, with BatchNorm."""

    _shape, _classes = (9, 128), 6

    def model(self) -> nn.Module:
        first = [nn.Conv1d(9, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2)]
        second = [nn.Conv1d(32, 64, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
        return nn.Sequential(*first, *second, nn.Linear(64, 6))


class _Hourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 8, 3, 2, 1), nn.ConvTranspose2d(8, 8, 4, 2, 1)
        self.out = nn.Conv2d(9, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.up(functional.leaky_relu(self.down(x), 0.1))
        return torch.sigmoid(self.out(torch.cat([found, x], 1)))


class Unet(Task):
    """A transposed convolution, two losses, and labels that are images."""

    def model(self) -> nn.Module:
        return _Hourglass()

    def examples(self, split: str) -> Any:
        x = torch.rand((192, 1, 28, 28), generator=torch.Generator().manual_seed(5))
        return x.numpy(), (x > 0.5).float().numpy()

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return functional.binary_cross_entropy(output, y) + 0.1 * functional.smooth_l1_loss(output, y)


class _Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 64), nn.GroupNorm(4, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(functional.dropout(functional.elu(self.norm(self.first(x))), 0.3, self.training))
        return out


class Dropout(_Drawn):
    """GroupNorm, ELU, dropout, and examples that are shifted at random."""

    def model(self) -> nn.Module:
        return _Noisy()

    def collate(self, rows: Any, *, training: bool) -> Any:
        x, y = rows
        return (x + 0.1 * torch.randn_like(x) if training else x), y


TASKS: dict[str, type[Task]] = {
    "mlp": Mlp,
    "lenet": LeNet,
    "resnet": ResNet,
    "mobile": Mobile,
    "transformer": Transformer,
    "encoder": Encoder,
    "lstm": Lstm,
    "gru": Gru,
    "waves": Waves,
    "unet": Unet,
    "dropout": Dropout,
}
