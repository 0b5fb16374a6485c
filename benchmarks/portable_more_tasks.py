"""Models, losses, optimisers and augmentations that people train on devices, beside the families of ``portable_tasks``.
Examples are drawn, not read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.portable_tasks import _Drawn
from shoal import Task


class _Inverted(nn.Module):
    """An inverted residual (MobileNetV2), with squeeze and excitation in V3."""

    def __init__(self, inner: int, outer: int, *, stride: int, kernel: int = 3, has_gate: bool = False) -> None:
        super().__init__()
        wide = 4 * inner
        act = nn.Hardswish if has_gate else nn.ReLU6
        self.expand = nn.Sequential(nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), act())
        depthwise = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)
        self.depth = nn.Sequential(depthwise, nn.BatchNorm2d(wide), act())
        gate = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide // 4, 1), nn.ReLU(), nn.Conv2d(wide // 4, wide, 1))
        self.gate = nn.Sequential(*gate, nn.Hardsigmoid()) if has_gate else None
        self.narrow = nn.Sequential(nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.adds = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        inside = self.depth(self.expand(x))
        inside = self.narrow(inside * self.gate(inside) if self.gate is not None else inside)
        found: Tensor = x + inside if self.adds else inside
        return found


class MobileV2(_Drawn):
    _shape, _as_bytes = (3, 32, 32), True

    def model(self) -> nn.Module:
        sizes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2)]
        blocks = [_Inverted(inner, outer, stride=stride) for inner, outer, stride in sizes]
        stem = (nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10))
        return nn.Sequential(*stem, *blocks, *head)


class MobileV3(_Drawn):
    _shape, _as_bytes = (3, 32, 32), True

    def model(self) -> nn.Module:
        blocks = [_Inverted(16, 24, stride=2, has_gate=True), _Inverted(24, 24, stride=1, kernel=5, has_gate=True)]
        stem = (nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


class _Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 48))
        self.places = nn.Parameter(torch.randn(1, 17, 48) * 0.02)
        layer = nn.TransformerEncoderLayer(48, 4, 96, 0.1, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.patches(x).flatten(2).transpose(1, 2)
        seen = torch.cat([self.token.expand(len(x), -1, -1), seen], 1) + self.places
        out: Tensor = self.head(self.layers(seen)[:, 0])
        return out


class Vit(_Drawn):
    _shape = (3, 16, 16)

    def model(self) -> nn.Module:
        return _Vit()


class _ConvNext(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(self.depth(x).permute(0, 2, 3, 1))
        seen = self.scale * self.narrow(functional.gelu(self.wide(seen)))
        out: Tensor = x + seen.permute(0, 3, 1, 2)
        return out


class ConvNext(_Drawn):
    _shape = (3, 32, 32)

    def model(self) -> nn.Module:
        blocks = (_ConvNext(24), nn.Conv2d(24, 32, 2, 2), _ConvNext(32))
        return nn.Sequential(nn.Conv2d(3, 24, 4, 4), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Volume(_Drawn):
    """Convolutions in three dimensions, InstanceNorm."""

    _shape = (1, 8, 12, 12)

    def model(self) -> nn.Module:
        first = (nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8, affine=True), nn.ReLU())
        second = (nn.Conv3d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
        made = nn.Sequential(*first, *second)
        made(torch.zeros(1, *self._shape))
        return made


class _Rms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class RmsNorm(_Drawn):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 96), _Rms(96), nn.SiLU(), nn.Linear(96, 10))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(60, 32, padding_idx=0), nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.words(x)
        found, _ = self.heads(seen, seen, seen, key_padding_mask=x == 0, need_weights=False)
        out: Tensor = self.head(self.norm(seen + found).mean(1))
        return out


class _Words(_Drawn):
    """Rows of twelve words; the last of them may be missing."""

    def examples(self, split: str) -> Any:
        draw = torch.Generator().manual_seed(3)
        x = torch.randint(1, 60, (192, 12), generator=draw)
        lengths = torch.randint(4, 13, (192, 1), generator=draw)
        x = torch.where(torch.arange(12) < lengths, x, torch.zeros_like(x))
        return x.numpy(), torch.randint(0, self._classes, (192,), generator=draw).numpy()


class Masked(_Words):
    """Attention that does not look at padding."""

    def model(self) -> nn.Module:
        return _Attention()


class Bag(_Words):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(60, 32, mode="mean", padding_idx=0), nn.PReLU(), nn.Linear(32, 10))


class Tcn(_Drawn):
    """Dilated convolutions along time."""

    _shape, _classes = (9, 64), 6

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for inner, far in ((9, 1), (24, 2), (24, 4)):
            layers += [nn.Conv1d(inner, 24, 3, padding=far, dilation=far), nn.BatchNorm1d(24), nn.ReLU()]
            layers += [nn.Dropout1d(0.1)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 6))


class _BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(9, 24, bidirectional=True, batch_first=True), nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0].mean(1))
        return out


class BiLstm(_Drawn):
    _shape, _classes = (16, 9), 6

    def model(self) -> nn.Module:
        return _BothWays()


class _Upsampled(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        align = {"align_corners": False} if mode == "bilinear" else {}
        self.up, self.out = nn.Upsample(scale_factor=2, mode=mode, **align), nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        seen = functional.silu(self.down(x))
        low = functional.silu(self.inner(functional.avg_pool2d(seen, 2)))
        return torch.sigmoid(self.out(torch.cat([self.up(low), seen], 1)))


class _Segments(Task):
    mode = "nearest"

    def model(self) -> nn.Module:
        return _Upsampled(self.mode)

    def examples(self, split: str) -> Any:
        x = torch.rand((192, 1, 24, 24), generator=torch.Generator().manual_seed(5))
        return x.numpy(), (x > 0.5).float().numpy()

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        overlap = (output * y).sum() * 2 / (output.sum() + y.sum() + 1)
        return functional.binary_cross_entropy(output, y) + 1 - overlap


class UnetNearest(_Segments):
    pass


class UnetBilinear(_Segments):
    mode = "bilinear"


class _Metric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 24))
        self.centres = nn.Parameter(torch.randn(10, 24) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        near = functional.cosine_similarity(functional.normalize(self.inner(x)).unsqueeze(1), self.centres, dim=2)
        return 8 * near


class Metric(_Drawn):
    """Metric learning: normalised vectors and the cosine between them."""

    def model(self) -> nn.Module:
        return _Metric()


class _Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(64, 48))
        self.last = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)))
        return out


class WeightNorm(_Drawn):
    def model(self) -> nn.Module:
        return _Normalised()


class _Plain(_Drawn):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.LayerNorm(48), nn.Linear(48, 10))


class Groups(_Plain):
    """AdamW without decay for biases and norms."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        decayed = [each for each in model.parameters() if each.dim() > 1]
        others = [each for each in model.parameters() if each.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 3e-4}]
        return torch.optim.AdamW(groups, lr=1e-3)


class RmsProp(_Plain):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)


class Adagrad(_Plain):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=1e-2)


class AmsGrad(_Plain):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)


class Speech(Task):
    """Connectionist temporal classification: labels without their times."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 6))

    def examples(self, split: str) -> Any:
        draw = torch.Generator().manual_seed(7)
        return {
            "x": torch.randn((192, 14, 8), generator=draw).numpy(),
            "y": torch.randint(1, 6, (192, 4), generator=draw).numpy(),
            "length": torch.randint(1, 5, (192,), generator=draw).numpy(),
        }

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        likely = model(batch["x"]).log_softmax(2).transpose(0, 1)
        steps = torch.full((likely.shape[1],), likely.shape[0], dtype=torch.int64)
        return functional.ctc_loss(likely, batch["y"], steps, batch["length"])


class Smoothed(_Plain):
    """Label smoothing, and classes of unequal weight."""

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(output, y, weight=torch.linspace(0.5, 1.5, 10), label_smoothing=0.1)


class Focal(_Plain):
    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        likely = output.log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
        return (-((1 - likely.exp()) ** 2) * likely).mean()


class Regression(_Drawn):
    """Huber's loss on one number."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 48), nn.Softplus(), nn.Linear(48, 1))

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return functional.huber_loss(output.squeeze(1), y.float() / 10)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        import shoal

        x, y = batch
        return {"loss": shoal.mean(self.loss(model(x), y) * y.numel(), torch.full((), float(y.numel())))}


class Contrast(_Drawn):
    """Two noisy views of an example find each other among the others of the batch (SimCLR)."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 16))

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        x, _ = batch
        one, two = (functional.normalize(model(x + 0.1 * torch.randn_like(x))) for _ in range(2))
        return functional.cross_entropy(one @ two.T / 0.5, torch.arange(len(x)))


class Mixup(_Plain):
    """Mixed pairs of examples, and labels that are shares of classes."""

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(output, y)

    def collate(self, rows: Any, *, training: bool) -> Any:
        x, y = rows
        wanted = functional.one_hot(y, 10).float()
        if not training:
            return x, wanted
        other = torch.randperm(len(x))
        return 0.7 * x + 0.3 * x[other], 0.7 * wanted + 0.3 * wanted[other]


class Flipped(_Drawn):
    """Flipped by chance, and cropped at a place drawn by chance."""

    _shape = (3, 16, 16)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 12, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10))

    def collate(self, rows: Any, *, training: bool) -> Any:
        x, y = rows
        if not training:
            return x[:, :, 2:14, 2:14], y
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
        at = torch.randint(0, 5, (1,)) + torch.arange(12)
        return x.index_select(2, at).index_select(3, at), y


MORE_TASKS: dict[str, type[Task]] = {
    "mobile_v2": MobileV2,
    "bilstm": BiLstm,
    "vit": Vit,
    "mobile_v3": MobileV3,
    "speech": Speech,
    "convnext": ConvNext,
    "masked": Masked,
    "tcn": Tcn,
    "volume": Volume,
    "unet_nearest": UnetNearest,
    "unet_bilinear": UnetBilinear,
    "bag": Bag,
    "metric": Metric,
    "rms_norm": RmsNorm,
    "weight_norm": WeightNorm,
    "groups": Groups,
    "rmsprop": RmsProp,
    "adagrad": Adagrad,
    "amsgrad": AmsGrad,
    "smoothed": Smoothed,
    "focal": Focal,
    "regression": Regression,
    "contrast": Contrast,
    "mixup": Mixup,
    "flipped": Flipped,
}
