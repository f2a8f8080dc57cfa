"""The peer of benchmarks/peers.py: steps of TRL's GRPOTrainer, a line of JSON for each. Imports nothing of dagrpo."""

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

NUMBER = re.compile(r"-?[0-9]+")


def tree_processor_seconds() -> float:
    """User and system time of this process and of all below it that run."""
    this = psutil.Process()
    times = [each.cpu_times() for each in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


class Timed(GRPOTrainer):  # type: ignore[misc]  # TRL has no types here
    """Notes the seconds of generation, of a whole training step, and what was written."""

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


class Told(TrainerCallback):  # type: ignore[misc]
    """Prints each step. TRL's update is what is left beside generation and scoring: forward, backward, optimizer."""

    trainer: Timed
    scoring = 0.0

    def on_step_begin(self, *given: Any, **options: Any) -> None:
        self.start, self.processor = time.perf_counter(), tree_processor_seconds()
        self.trainer.generation, self.trainer.tokens, self.trainer.sequences = 0.0, 0, 0
        self.scoring = 0.0

    def on_step_end(self, *given: Any, **options: Any) -> None:
        wall = time.perf_counter() - self.start
        rest = self.scoring - self.trainer.generation
        told = {
            "wall": wall,
            "processor": tree_processor_seconds() - self.processor,
            "generation": self.trainer.generation,
            "update": wall - self.scoring,
            "hand_over": 0.0,
            "rest": rest,
            "tokens": self.trainer.tokens / max(self.trainer.sequences, 1),
        }
        print(json.dumps(told), flush=True)


def by_length(completions: list[Any], **columns: Any) -> list[float]:
    """Rewards that differ within nearly every group: whether the text has an even number of characters."""
    return [float(len(each[0]["content"]) % 2 == 0) for each in completions]


def by_answer(completions: list[Any], **columns: Any) -> list[float]:
    """1 for a text whose last number is the sum."""
    return [
        float(NUMBER.findall(each[0]["content"])[-1:] == [truth])
        for each, truth in zip(completions, columns["truth"], strict=True)
    ]


def problem(terms: list[int]) -> dict[str, Any]:
    question = "+".join(map(str, terms)) + "=?"
    return {"prompt": [{"role": "user", "content": question}], "truth": str(sum(terms))}


def share_right(given: dict[str, Any]) -> float:
    """The share of the held-out sums that the model answers rightly, greedily."""
    tokenizer = AutoTokenizer.from_pretrained(given["model"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32)
    rows = [problem(terms) for terms in given["held_out"]]
    texts = [
        tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True, enable_thinking=False)
        for row in rows
    ]
    right = 0.0
    for first in range(0, len(rows), 64):
        inputs = tokenizer(texts[first : first + 64], return_tensors="pt", padding=True, add_special_tokens=False)
        written = model.generate(**inputs, max_new_tokens=given["tokens"], do_sample=False)[
            :, inputs.input_ids.shape[1] :
        ]
        answers = [[{"content": text}] for text in tokenizer.batch_decode(written, skip_special_tokens=True)]
        right += sum(by_answer(answers, truth=[row["truth"] for row in rows[first : first + 64]]))
    return right / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--test", action="store_true", help="print the share of held-out sums that are right")
    arguments = parser.parse_args()
    given: dict[str, Any] = arguments.settings
    if arguments.test:
        print(share_right(given))
        return
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
    told = Told()
    trainer = Timed(
        model=given["model"],
        args=config,
        reward_funcs=by_answer if given["learn"] else by_length,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(Path(given["model"]), padding_side="left"),
        callbacks=[told],
    )
    told.trainer = trainer
    score = trainer._generate_and_score_completions

    def scored(*inputs: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = score(*inputs, **options)
        told.scoring += time.perf_counter() - start
        return result

    trainer._generate_and_score_completions = scored
    trainer.train()
    if given["learn"]:
        trainer.save_model(str(Path(given["folder"], "theirs", "trained")))


if __name__ == "__main__":
    main()
