"""The verdicts of verl, lm-evaluation-harness and math-verify themselves: test_scorers.py runs this where they are installed.

Reads from stdin {"cases": [{"scorer", "completion", "ground_truth"}]}, and writes to stdout one record per case: {"right"}, or
{"unavailable": why} where a library cannot be imported. Nothing of dagrpo is imported.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def verl_gsm8k(method: str) -> Callable[[str, str], bool]:
    from verl.utils.reward_score.gsm8k import compute_score

    return lambda completion, truth: compute_score(completion, truth, method=method) == 1.0


def verl_math_dapo() -> Callable[[str, str], bool]:
    """The rule of verl up to 0.8: 0.9.1 still has its function."""
    from verl.utils.reward_score.math_dapo import is_correct_minerva

    return lambda completion, truth: bool(is_correct_minerva(completion[-300:], truth)[0])


def verl_math_dapo_or_box() -> Callable[[str, str], bool]:
    from verl.utils.reward_score.math_dapo import compute_score

    return lambda completion, truth: bool(compute_score(completion, truth)["acc"])


def verl_search_r1() -> Callable[[str, str], bool]:
    from verl.utils.reward_score.search_r1_like_qa_em import compute_score

    return lambda completion, truth: compute_score(completion, {"target": json.loads(truth)}) == 1.0


def ifeval(how: str) -> Callable[[str, str], bool]:
    """Whether a text follows one instruction. Without NLTK's data, sentences and words in capitals cannot be counted."""
    import langdetect
    from lm_eval.tasks.ifeval import utils

    langdetect.DetectorFactory.seed = 0
    judge = getattr(utils, f"test_instruction_following_{how}")

    def right(completion: str, truth: str) -> bool:
        ((name, parameters),) = json.loads(truth)
        asked = utils.InputExample(key=0, instruction_id_list=[name], prompt="", kwargs=[parameters])
        try:
            return bool(judge(asked, completion).follow_all_instructions)
        except LookupError as error:
            raise ImportError(f"NLTK's data: {str(error).split()[:6]}") from None

    return right


def hendrycks_math() -> Callable[[str, str], bool]:
    from verl.utils.reward_score.math_reward import compute_score

    return lambda completion, truth: compute_score(completion, truth) == 1.0


def lm_eval_exact_match(file: str, name: str, target: str) -> Callable[[str, str], bool]:
    """Everything comes from the task's own file, but its target with the ground truth in it."""
    import lm_eval
    import yaml
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    text = (Path(lm_eval.__file__).parent / "tasks" / file).read_text().replace("!function", "")
    task = yaml.safe_load(text)
    (metric,) = task["metric_list"]
    (steps,) = (each["filter"] for each in task["filter_list"] if each["name"] == name)
    keys = [key for key in ("regexes_to_ignore", "ignore_case", "ignore_punctuation") if key in metric]
    first = RegexFilter(**{key: value for key, value in steps[0].items() if key != "function"})

    def right(completion: str, truth: str) -> bool:
        (answers,) = first.apply([[completion]], [{}])
        score = exact_match_hf_evaluate(
            predictions=answers[:1], references=[target.format(truth)], **{key: metric[key] for key in keys}
        )
        return bool(score["exact_match"])

    return right


def math_verify() -> Callable[[str, str], bool]:
    """With its own limits of time, in a main thread."""
    from math_verify import parse, verify

    return lambda completion, truth: bool(verify(parse(f"\\boxed{{{truth}}}"), parse(completion)))


GSM8K, GSM8K_TARGET = "gsm8k/gsm8k.yaml", "So it is.\n#### {}"
SCORERS: dict[str, Callable[[], Callable[[str, str], bool]]] = {
    "verl_gsm8k": lambda: verl_gsm8k("strict"),
    "verl_gsm8k_flexible": lambda: verl_gsm8k("flexible"),
    "verl_math_dapo": verl_math_dapo,
    "verl_math_dapo_or_box": verl_math_dapo_or_box,
    "hendrycks_math": hendrycks_math,
    "lm_eval_gsm8k_strict": lambda: lm_eval_exact_match(GSM8K, "strict-match", GSM8K_TARGET),
    "lm_eval_gsm8k_flexible": lambda: lm_eval_exact_match(GSM8K, "flexible-extract", GSM8K_TARGET),
    "lm_eval_mmlu_pro": lambda: lm_eval_exact_match("mmlu_pro/_default_template_yaml", "custom-extract", "{}"),
    "lm_eval_gpqa_strict": lambda: lm_eval_exact_match(
        "gpqa/cot_zeroshot/_gpqa_cot_zeroshot_yaml", "strict-match", "({})"
    ),
    "verl_search_r1": verl_search_r1,
    "ifeval_strict": lambda: ifeval("strict"),
    "ifeval_loose": lambda: ifeval("loose"),
    "math_verify": math_verify,
}


@cache
def scorer(name: str) -> Callable[[str, str], bool]:
    return SCORERS[name]()


def judged(case: dict[str, Any]) -> dict[str, Any]:
    """The record of one case."""
    try:
        return {"right": scorer(case["scorer"])(case["completion"], case["ground_truth"])}
    except ImportError as error:
        return {"unavailable": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print("\n" + json.dumps([judged(case) for case in json.load(sys.stdin)["cases"]]))
