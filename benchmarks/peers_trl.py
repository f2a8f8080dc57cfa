"""Steps of TRL's GRPOTrainer for benchmarks/peers.py, as lines of JSON, without dagrpo."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.peers_sums import by_answer, by_length, problem, tree_processor_seconds
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Timed(GRPOTrainer):  # type: ignore[misc]  # TRL has no types here
    """Trainer that notes the seconds of generation, and the tokens and sequences sampled."""

    generation = 0.0
    tokens = 0
    sequences = 0

    def _generate(self, *inputs: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = super()._generate(*inputs, **options)
        self.generation += time.perf_counter() - start
        self.tokens += sum(map(len, result[1]))
        self.sequences += len(result[1])
        return result


class Printer(TrainerCallback):  # type: ignore[misc]
    """Callback that prints each step. The update is what is left beside generation and scoring: forward, backward, optimizer."""

    trainer: Timed
    scoring = 0.0

    def on_step_begin(self, *given: Any, **options: Any) -> None:
        self.start, self.processor = time.perf_counter(), tree_processor_seconds()
        self.trainer.generation, self.trainer.tokens, self.trainer.sequences = 0.0, 0, 0
        self.scoring = 0.0

    def on_step_end(self, *given: Any, **options: Any) -> None:
        wall = time.perf_counter() - self.start
        rest = self.scoring - self.trainer.generation
        figures = {
            "wall": wall,
            "processor": tree_processor_seconds() - self.processor,
            "generation": self.trainer.generation,
            "update": wall - self.scoring,
            "weight_sync": 0.0,
            "rest": rest,
            "tokens": self.trainer.tokens / max(self.trainer.sequences, 1),
        }
        print(json.dumps(figures), flush=True)


def main() -> None:
    """Train with the settings, which are JSON."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    reward = by_answer if given["learn"] else by_length

    def rewards(completions: list[Any], **columns: Any) -> list[float]:
        return [reward(each[0]["content"], truth) for each, truth in zip(completions, columns["truth"], strict=True)]

    rows = [problem(terms) for terms in given["sums"]]
    bfloat16 = given["dtype"] == "bfloat16"
    config = GRPOConfig(
        output_dir=given["folder"],
        per_device_train_batch_size=given["prompts"] * given["samples"],
        num_generations=given["samples"],
        max_completion_length=given["tokens"],
        max_steps=given["steps"],
        learning_rate=given["learning_rate"],
        lr_scheduler_type="constant",
        seed=given["seed"],
        temperature=1.0,
        beta=0.0,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": torch.bfloat16 if bfloat16 else torch.float32},
    )
    printer = Printer()
    trainer = Timed(
        model=given["model"],
        args=config,
        reward_funcs=rewards,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(Path(given["model"]), padding_side="left"),
        callbacks=[printer],
    )
    printer.trainer = trainer
    score = trainer._generate_and_score_completions

    def scored(*inputs: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = score(*inputs, **options)
        printer.scoring += time.perf_counter() - start
        return result

    trainer._generate_and_score_completions = scored
    trainer.train()
    if given["learn"]:
        trainer.save_model(str(Path(given["folder"], "theirs", "trained")))


if __name__ == "__main__":
    main()
