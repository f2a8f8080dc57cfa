"""Questions, rewards and clocks of the peers, without dagrpo.

As a program it prints the share of the held-out sums that a trained model answers rightly, greedily.
"""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NUMBER = re.compile(r"-?[0-9]+")


def tree_processor_seconds() -> float:
    """Sum user and system time of this process and of all below it that run."""
    this = psutil.Process()
    times = [each.cpu_times() for each in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def by_length(text: str, truth: str) -> float:
    """Reward an even number of characters, which differs within nearly every group."""
    return float(len(text) % 2 == 0)


def by_answer(text: str, truth: str) -> float:
    """Reward a text whose last number is the sum."""
    return float(NUMBER.findall(text)[-1:] == [truth])


def problem(terms: Sequence[int]) -> dict[str, Any]:
    """Ask for a sum in messages, with the sum."""
    question = "+".join(map(str, terms)) + "=?"
    return {"prompt": [{"role": "user", "content": question}], "truth": str(sum(terms))}


def rendered(tokenizer: Any, messages: Sequence[dict[str, str]]) -> str:
    """Render the text that the model continues."""
    return str(
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    )


def share_right(given: dict[str, Any]) -> float:
    """Return the share of the held-out sums that the model answers rightly, greedily."""
    tokenizer = AutoTokenizer.from_pretrained(given["model"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32)
    rows = [problem(terms) for terms in given["held_out"]]
    texts = [rendered(tokenizer, row["prompt"]) for row in rows]
    right = 0.0
    for first in range(0, len(rows), 64):
        inputs = tokenizer(texts[first : first + 64], return_tensors="pt", padding=True, add_special_tokens=False)
        written = model.generate(**inputs, max_new_tokens=given["tokens"], do_sample=False)
        answers = tokenizer.batch_decode(written[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        right += sum(by_answer(text, row["truth"]) for text, row in zip(answers, rows[first : first + 64], strict=True))
    return right / len(rows)


if __name__ == "__main__":
    print(share_right(json.loads(sys.argv[1])))
