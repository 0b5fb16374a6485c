"""LoRA adapters of a small language model, built from a configuration, with a Hugging Face Trainer."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import shoal.huggingface

if __name__ == "__main__":
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
    )
    adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(LlamaForCausalLM(config), adapters)
    # Counting: each token follows from the one before.
    counted = (torch.arange(12)[None] + torch.arange(64)[:, None]) % 32
    rows = [{"input_ids": row, "labels": row} for row in counted]
    given = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 2e-2}
    # Not where the script is started: the machine that prepares the job runs it in the folder of its user.
    out = f"{tempfile.gettempdir()}/shoal-trainer-out"
    arguments = TrainingArguments(output_dir=out, per_device_train_batch_size=8, max_steps=8, **given)
    trainer = shoal.huggingface.patch(Trainer(model=model, args=arguments, train_dataset=rows), steps=8)
    trainer.train()
    print("done after", trainer.state.global_step, "steps")
