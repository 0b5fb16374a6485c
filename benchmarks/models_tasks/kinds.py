"""Small tasks, one for each kind of work that people bring; ``benchmarks.models`` trains each on real agents."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import shoal

CLASSES = 4
#: Examples to train on, and held-out ones.
COUNTS = {"train": 256, "test": 128}


def _images(split: str, *, size: int = 12) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Grey images of a bright patch in one of four corners."""
    chance = np.random.default_rng(1 if split == "train" else 2)
    count = COUNTS[split]
    y = chance.integers(0, CLASSES, count)
    x = chance.integers(0, 90, (count, 1, size, size), dtype=np.uint8)
    half = size // 2
    for image, label in zip(x, y, strict=True):
        row, column = divmod(int(label), 2)
        image[0, row * half : (row + 1) * half, column * half : (column + 1) * half] += 120
    return x, y


def _points(split: str, *, width: int = 8) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points around four centres."""
    chance = np.random.default_rng(3 if split == "train" else 4)
    centres = np.random.default_rng(0).normal(scale=2.0, size=(CLASSES, width))
    y = chance.integers(0, CLASSES, COUNTS[split])
    return (centres[y] + chance.normal(size=(len(y), width))).astype(np.float32), y


def _mlp(width: int = 8, out: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, out))


def _cnn(*, norm: bool) -> nn.Sequential:
    middle: list[nn.Module] = [nn.BatchNorm2d(8)] if norm else []
    head = [nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, CLASSES)]
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *middle, nn.ReLU(), *head)


class Classifier(shoal.Task):
    """The plain case, as in the first tutorial."""

    def model(self) -> nn.Module:
        return _mlp()

    def examples(self, split: shoal.task.Split) -> Any:
        return _points(split)


class CnnBatchNorm(shoal.Task):
    def model(self) -> nn.Module:
        return _cnn(norm=True)

    def examples(self, split: shoal.task.Split) -> Any:
        return _images(split)


class FrozenBackbone(CnnBatchNorm):
    """A backbone that stands still, its running means too, and a head that learns."""

    def model(self) -> nn.Module:
        body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(3))
        return nn.Sequential(body.requires_grad_(False), nn.Flatten(), nn.Linear(144, CLASSES))


class Lora(shoal.Task):
    """Adapters on a Llama of 14.8 million values, by peft where it is installed; only the adapters are trained."""

    def __init__(self, base: str = "float32", hidden: int = 256, layers: int = 8) -> None:
        self._type = getattr(torch, base)
        self._hidden = hidden
        self._layers = layers

    def model(self) -> nn.Module:
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=2048,
            hidden_size=self._hidden,
            intermediate_size=4 * self._hidden,
            num_hidden_layers=self._layers,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=64,
        )
        base: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call, unused-ignore]
        adapted: nn.Module = get_peft_model(base.to(self._type), LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
        return adapted

    def examples(self, split: shoal.task.Split) -> Any:
        chance = np.random.default_rng(5 if split == "train" else 6)
        start = chance.integers(0, 2000, (32 if split == "train" else 8, 1))
        return {"tokens": (start + np.arange(16)).astype(np.int64)}

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        loss: Tensor = model(input_ids=batch["tokens"], labels=batch["tokens"]).loss
        return loss


class TokenClassification(shoal.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, CLASSES), _ClassesSecond())

    def examples(self, split: shoal.task.Split) -> Any:
        tokens = np.random.default_rng(7 if split == "train" else 8).integers(0, 20, (COUNTS[split], 10))
        return tokens, tokens % CLASSES


class _ClassesSecond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Segmentation(shoal.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def examples(self, split: shoal.task.Split) -> Any:
        x, _ = _images(split)
        return x, (x[:, 0] > 110).astype(np.int64)


class Regression(shoal.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_mlp(out=1), nn.Flatten(0))

    def examples(self, split: shoal.task.Split) -> Any:
        x, _ = _points(split)
        return x, (x @ np.linspace(-1, 1, 8)).astype(np.float32)

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().mean()

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        output = model(x)
        return {
            "loss": shoal.mean((output - y).square().sum(), len(y)),
            "mae": shoal.mean((output - y).abs().sum(), len(y)),
        }


class Faults(shoal.Task):
    """Rare positives: F1 and the area under the ROC curve tell what accuracy hides."""

    def model(self) -> nn.Module:
        return nn.Sequential(_mlp(out=1), nn.Flatten(0))

    def examples(self, split: shoal.task.Split) -> Any:
        x, y = _points(split)
        return x, (y == 0).astype(np.float32)

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(output, y, pos_weight=torch.tensor(3.0))

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        score = model(x)
        guess, truth = score > 0, y > 0.5
        return {
            "loss": shoal.mean(self.loss(score, y) * len(y), len(y)),
            "f1": shoal.f1((guess & truth).sum(), (guess & ~truth).sum(), (~guess & truth).sum()),
            "auc": shoal.auc(score, truth),
        }


class Autoencoder(shoal.Task):
    """No labels at all."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 8))

    def examples(self, split: shoal.task.Split) -> Any:
        return {"x": _points(split)[0]}

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        error: Tensor = model(batch["x"]) - batch["x"]
        return error.square().mean()


class Detection(shoal.Task):
    """Images with one to three boxes each: ragged targets."""

    def model(self) -> nn.Module:
        body = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        return nn.Sequential(*body, nn.Linear(128, 4))

    def examples(self, split: shoal.task.Split) -> Any:
        chance = np.random.default_rng(9 if split == "train" else 10)
        images, boxes = [], []
        for _ in range(COUNTS[split] // 2):
            image = chance.integers(0, 60, (1, 16, 16), dtype=np.uint8)
            found = chance.uniform(0.1, 0.6, (int(chance.integers(1, 4)), 2))
            for left, top in found:
                image[0, int(16 * top) : int(16 * top) + 4, int(16 * left) : int(16 * left) + 4] = 220
            images.append(image)
            boxes.append(np.concatenate([found, found + 0.25], 1).astype(np.float32))
        return {"image": np.stack(images), "boxes": boxes}

    def collate(self, rows: Any, *, training: bool) -> Any:
        return rows["image"].float() / 255, rows["boxes"]

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        images, boxes = batch
        guess = model(images)
        nearest = [(each - own).abs().sum(1).min() for each, own in zip(guess, boxes, strict=True)]
        return torch.stack(nearest).mean()


class Streamed(Classifier):
    """Examples that come one by one, without a length."""

    def examples(self, split: shoal.task.Split) -> Any:
        return _Stream(split)


class _Stream(IterableDataset[Any]):
    def __init__(self, split: str) -> None:
        self._split = split

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*_points(self._split), strict=True)


class Columns(shoal.Task):
    """Rows of named values of several types, as Hugging Face's data sets have them."""

    def model(self) -> nn.Module:
        return nn.ModuleDict({"text": nn.EmbeddingBag(256, 16), "head": nn.Linear(24, CLASSES)})

    def examples(self, split: shoal.task.Split) -> Any:
        return _Rows(split)

    def collate(self, rows: Any, *, training: bool) -> Any:
        letters = [torch.tensor(list(text.encode())) for text in rows["text"]]
        offsets = torch.tensor([0, *(len(each) for each in letters[:-1])]).cumsum(0)
        return {"letters": torch.cat(letters), "offsets": offsets, "x": rows["x"], "label": rows["label"]}

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        return nn.functional.cross_entropy(self._output(model, batch), batch["label"])

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        guess = self._output(model, batch).argmax(1)
        return {"f1": shoal.confusion(guess, batch["label"], CLASSES)}

    @staticmethod
    def _output(model: Any, batch: Any) -> Tensor:
        text = model["text"](batch["letters"], batch["offsets"])
        output: Tensor = model["head"](torch.cat([text, batch["x"]], 1))
        return output


class _Rows(Dataset[Any]):
    def __init__(self, split: str) -> None:
        self._x, self._y = _points(split)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        label = int(self._y[index])
        return {"x": self._x[index], "text": "abcd"[label] * (1 + index % 5), "label": label}


class Augmented(CnnBatchNorm):
    """Noise in training, none in evaluation; both replay."""

    def collate(self, rows: Any, *, training: bool) -> Any:
        x, y = self.batch(*rows)
        return (x + 0.2 * torch.randn_like(x) if training else x), y


class OwnOptimizer(Classifier):
    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=0.01)


class TwoOptimizers(Classifier):
    def train(self, model: nn.Module, batches: Iterator[Any], lease: Any) -> None:
        parts = list(model.children())
        rates = (lease.rate, 0.1)
        optimisers = [torch.optim.SGD(part.parameters(), lr=rate) for part, rate in zip(parts[::2], rates, strict=True)]
        for x, y in batches:
            loss = self.loss(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            for each in optimisers:
                each.step()
                each.zero_grad()
            lease.log("loss", loss.item() * len(y), len(y))

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        output = model(x)
        right = (output.argmax(1) == y).sum()
        return {"loss": shoal.mean(self.loss(output, y) * len(y), len(y)), "accuracy": shoal.mean(right, len(y))}


class WeightedClasses(Classifier):
    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, y, weight=torch.tensor([4.0, 1.0, 1.0, 1.0]))


class FedProx(Classifier):
    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        x, y = batch
        pull = torch.stack([(p - lease.anchor(name)).square().sum() for name, p in model.named_parameters()]).sum()
        lease.log("pull", pull.item())
        loss: Tensor = self.loss(model(x), y) + 0.05 * pull
        return loss


class Bytes(shoal.Task):
    """Compressed images as bytes, decoded in ``collate``."""

    def model(self) -> nn.Module:
        return _cnn(norm=False)

    def examples(self, split: shoal.task.Split) -> Any:
        x, y = _images(split)
        return {"image": [_packed(image) for image in x], "label": y}

    def collate(self, rows: Any, *, training: bool) -> Any:
        images = [np.load(io.BytesIO(raw))["image"] for raw in rows["image"]]
        return torch.from_numpy(np.stack(images)).float() / 255, rows["label"]


def _packed(image: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, image=image)
    return buffer.getvalue()


class OwnHead(Classifier):
    """A head of each device's own (FedPer), a body for all, examples that stay on the device."""

    def placement(self, name: str, tensor: Tensor) -> str | None:
        return "own" if name.startswith("2.") else None

    def examples(self, split: shoal.task.Split) -> Any:
        return _points(split)
