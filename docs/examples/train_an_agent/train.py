"""Train the agent: python train.py MODEL_FOLDER [SERVER] [STEPS]. TRL's asynchronous GRPO."""

import sys
import time
from pathlib import Path

import on_a_cpu
from datasets import Dataset
from sampling import ATTEMPTS, Sampler
from transformers import PrinterCallback, TrainerCallback
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from weights import Weights

ROWS = ATTEMPTS  # of an optimizer step


class Print(TrainerCallback):
    """Prints a line for each step."""

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        """Print the figures of a step: `ratio` is how much likelier the trainer finds a token than the engine did."""
        if "reward" in logs:
            names = ("reward", "ratio", "sample/staleness_max")
            print(f"step {state.global_step}", *(f"{name} {logs[name]:.3f}" for name in names), flush=True)


def main(model: str, server: str = "http://127.0.0.1:8000", steps: str = "24") -> None:
    """Train."""
    run = f"walk-{int(time.time())}"
    on_a_cpu.before_the_trainer()
    trainer = AsyncGRPOTrainer(
        model=model,
        args=AsyncGRPOConfig(
            output_dir=f"{model}/../trained",
            max_steps=int(steps),
            per_device_train_batch_size=ROWS,
            token_budget=0,  # so many rows a step, however long they are
            learning_rate=1e-3,  # at twice that, some runs end with a model that makes no calls any more
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["Go."]}),  # TRL wants one; the agent has its task itself
        rollout_worker=Sampler(server, run, ahead=ROWS),
        weight_transfer=Weights(server, Path(model, "../weights")),
    )
    on_a_cpu.behind_the_trainer()
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Print())
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
