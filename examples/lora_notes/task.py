"""Adapters of a language model, from notes that stay on the devices: `shoal train examples/lora_notes`."""

import torch
from notes import AUTHORS, written
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import shoal

LETTERS = 256  # a token is a byte
LONGEST = 96
SKIPPED = -100  # a label that no loss counts


class Notes(shoal.Task):
    plan = shoal.Plan(
        **{"data": "local", "batch_size": 8, "lease_batches": 16, "epoch_leases": 4},
        **{"inner": "adamw", "learning_rate": 2e-3, "clip_gradient": 1.0},
        **{"outer": "nesterov", "outer_rate": 0.7, "momentum": 0.6, "schedule": "warmup 3 cosine 60"},
        until=shoal.plateau("loss", patience=3, min_change=0.01) | shoal.epochs(30),
    )

    def model(self):
        """A small Llama in bfloat16 that is frozen, and adapters that are trained. Put `from_pretrained` here."""
        shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
        base = LlamaForCausalLM(LlamaConfig(vocab_size=LETTERS, max_position_embeddings=LONGEST, **shape))
        adapters = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
        return get_peft_model(base.to(torch.bfloat16), adapters)

    def examples(self, split):
        if split == "test":  # on the machine that starts the job: it has no one's notes, but knows how notes look
            return {"text": [text for author in AUTHORS for text in written(author, 48, seed=-1)]}
        return shoal.data.jsonl(shoal.data.local_folder() / "notes.jsonl")

    def collate(self, rows, *, training):
        texts = [torch.tensor(list(text.encode()[:LONGEST])) for text in rows["text"]]
        padded = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=SKIPPED)
        return {"input_ids": padded.clamp(min=0), "labels": padded, "attention_mask": (padded >= 0).long()}

    def step(self, model, batch, lease):
        return model(**batch).loss

    def metrics(self, model, batch):
        """The loss of a byte: notes differ in length, so bytes are counted and not notes."""
        count = (batch["labels"][:, 1:] != SKIPPED).sum()
        return {"loss": shoal.mean(model(**batch).loss * count, count)}
