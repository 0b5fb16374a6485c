"""LoRA on the shapes of Qwen2.5-0.5B, random and in bfloat16: ``benchmarks.models --real-size``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shoal


class RealSize(shoal.Task):
    plan = shoal.Plan(batch_size=1, learning_rate=0.1, lease_batches=1, codec="bf16")

    def model(self) -> nn.Module:
        from peft import LoraConfig, get_peft_model
        from transformers import Qwen2Config, Qwen2ForCausalLM

        config = Qwen2Config(
            vocab_size=151_936,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            base: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call, unused-ignore]
        finally:
            torch.set_default_dtype(before)
        adapted: nn.Module = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
        return adapted

    def examples(self, split: shoal.task.Split) -> Any:
        chance = np.random.default_rng(0)
        return {"tokens": chance.integers(0, 151_936, (6 if split == "train" else 2, 16))}

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        loss: Tensor = model(input_ids=batch["tokens"], labels=batch["tokens"]).loss
        return loss
