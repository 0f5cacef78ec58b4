import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
)
tokens = torch.randint(64, (32, 16), generator=torch.Generator().manual_seed(0))
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=4,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
)
trainer.train()
arguments.process_index, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
