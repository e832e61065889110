"""A Llama of transformers that trains in milliseconds, and a Trainer for it; as a script, one that may be killed."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

transformers.utils.logging.disable_progress_bar()
NUM_STEPS = 8


def make_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, **{**shape, **changes}))


def make_data() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 8, (32, 12), generator=generator)  # 8 of 32 tokens: there is something to learn
    return [{"input_ids": row, "labels": row} for row in rows]


def make_arguments(folder: Path | str, **changes: Any) -> TrainingArguments:
    options = {
        "per_device_train_batch_size": 4, "max_steps": NUM_STEPS, "learning_rate": 1e-2, "max_grad_norm": 0.5,
        "logging_steps": 1, "save_steps": 4, "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return TrainingArguments(str(folder), **{**options, **changes})


def make_trainer(folder: Path | str, model: Any = None, **changes: Any) -> Trainer:
    model = make_model() if model is None else model
    data = make_data()
    return Trainer(model, make_arguments(folder, **changes), train_dataset=data, eval_dataset=data[:8])


class Kill(TrainerCallback):
    """The machine's plug is pulled after this step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from fullstride.integrations.transformers import prepare_trainer

    folder, precision, last_step, batch_size = sys.argv[1:]
    trainer = make_trainer(folder, per_device_train_batch_size=int(batch_size))
    trainer = prepare_trainer(trainer, precision=precision, threads=1)
    trainer.add_callback(Kill(int(last_step)))
    trainer.train()
    if torch.distributed.is_initialized():  # a process that ends with its group aborts now and then (pytorch 190489)
        torch.distributed.destroy_process_group()
