"""Scoring four small problems by hand, and what it says of bad input."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.pipeline.running import run_stage
from tests.rollout.problems import SINGLE_TURN

from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import BLIND
from dagrpo.evaluation.config import Evaluation, Scoring
from dagrpo.evaluation.outcomes import outcomes, pass_counts, values_per_problem
from dagrpo.evaluation.scoring import metrics_to_log, score
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.report.inputs import read_evaluation
from dagrpo.rollout.table import ROLLOUTS, read_table
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import write_parquet
from dagrpo_answers.instructions.checks import loosened
from dagrpo_answers.verifiers import ifeval

SCORING = Scoring(bootstrap_draws=100)

# Ground truth is 8. Greedy first, then four samples.
PROBLEMS = (
    ("#### 8", "#### 8", "#### 8", "#### 8", "#### 8"),
    ("#### 8", "#### 8", "#### 7", "#### 7", "no idea"),
    ("#### 7", "it is 8", "it is 8", "it is 8", "#### 9"),
    ("#### 7", "#### 7", "#### 7", "#### 8", "#### 8.0"),
)


def row(problem: int, sample: int, text: str) -> dict[str, Any]:
    return {
        "task": "t",
        "problem_index": problem,
        "sample_index": sample,
        "prompt": "p",
        "completion": text,
        "completion_ids": list(range(len(text))),
        "prompt_ids": [1],
        "rollout_logprobs": [0.0] * len(text),
        "weight_version": "v",
        "finish_reason": "length" if "idea" in text else "stop",
        "ground_truth": "8",
        "verifier": "gsm8k",
        "question": "q",
        "sampling_seed": 1,
        **SINGLE_TURN,
    }


def write(folder: Path, problems: Sequence[Sequence[str]] = PROBLEMS, **changed: Any) -> Path:
    rows = [
        row(number, sample - 1, text) | changed
        for number, texts in enumerate(problems)
        for sample, text in enumerate(texts)
    ]
    write_parquet(folder / "completions.parquet", pa.Table.from_pylist(rows, schema=ROLLOUTS))
    return folder / "completions.parquet"


def test_every_metric_by_hand_and_the_same_bytes_again(tmp_path: Path) -> None:
    completions = write(tmp_path)
    scores, summary = score(completions, SCORING)
    # Right among 4 samples: 4, 1, 0 (strict reads no answer from three of them), 2.
    assert summary["greedy"]["value"] == 2 / 4
    assert (summary["greedy"]["low"], summary["greedy"]["high"]) == pytest.approx((0.150039, 0.849961), abs=1e-6)
    assert summary["mean_at_k"] == {"k": 4, **summary["pass_at_k"]["1"]}
    assert summary["mean_at_k"]["value"] == pytest.approx((1 + 1 / 4 + 0 + 2 / 4) / 4)
    # 1 - C(4-c, 2)/6: 1, 1 - 3/6, 0, 1 - 1/6
    assert summary["pass_at_k"]["2"]["value"] == pytest.approx((1 + 1 / 2 + 0 + 5 / 6) / 4)
    assert summary["pass_at_k"]["4"]["value"] == pytest.approx(3 / 4)
    # Majorities: 8; 7 (two votes of three); 9 (the only vote); 7 and 8 tie.
    assert summary["maj_at_k"]["value"] == pytest.approx((1 + 0 + 0 + 1 / 2) / 4)
    assert summary["truncation_rate"] == {"greedy": 0.0, "sampled": 1 / 16}
    assert summary["missing_answer_rate"] == {"greedy": 0.0, "sampled": 4 / 16}
    assert summary["mean_completion_tokens"]["greedy"] == 6.0
    assert summary["accuracy_by_extractor"]["strict"]["sampled"] == 7 / 16
    assert summary["accuracy_by_extractor"]["flexible"]["sampled"] == 10 / 16
    assert (summary["problems"], summary["samples_per_problem"], summary["extractor"]) == (4, 4, "strict")
    again, summary_again = score(completions, SCORING)
    assert summary_again == summary
    for name, table in (("first", scores), ("second", again)):
        write_parquet(tmp_path / name, table)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_without_samples_only_what_is_greedy_is_summarised(tmp_path: Path) -> None:
    _, summary = score(write(tmp_path, [texts[:1] for texts in PROBLEMS]), SCORING)
    assert summary["samples_per_problem"] == 0
    assert [pass_counts(samples) for samples in (0, 1, 4, 6)] == [[], [1], [1, 2, 4], [1, 2, 4, 6]]
    assert not {"mean_at_k", "pass_at_k", "maj_at_k"} & set(summary)
    assert summary["truncation_rate"] == {"greedy": 0.0}
    assert set(metrics_to_log(summary)) == {
        *("greedy", "greedy_low", "greedy_high"),
        *("truncation_rate_greedy", "missing_answer_rate_greedy", "mean_completion_tokens_greedy"),
        "unverifiable_rate_greedy",
    }


def test_a_ground_truth_that_is_no_number_names_file_and_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"completions.parquet, row 0: 'eight' is not a plain number"):
        score(write(tmp_path, ground_truth="eight"), SCORING)


@pytest.mark.nightly
def test_an_answer_that_cannot_be_verified_in_time_is_counted_by_itself_and_not_as_missing(tmp_path: Path) -> None:
    endless = "\\boxed{9^{9^{9}}}"
    path = write(tmp_path, [(endless, "\\boxed{8}", endless, "none", "\\boxed{7}")], verifier="math")
    scores, summary = score(path, Scoring(bootstrap_draws=100, verify_seconds=0.5))
    assert scores["verdict"].to_pylist() == ["unverifiable", "right", "unverifiable", "missing", "wrong"]
    assert summary["unverifiable_rate"] == {"greedy": 1.0, "sampled": 1 / 4}
    assert summary["missing_answer_rate"] == {"greedy": 0.0, "sampled": 1 / 4}
    assert summary["mean_at_k"]["value"] == 1 / 4


def without_pictures(folder: Path, texts: Sequence[str]) -> Path:
    """The four problems, and what was said to the first of them without their pictures."""
    path = write(folder)
    blind = [row(number, BLIND, text) for number, text in enumerate(texts)]
    with_blind = pa.concat_tables([read_table(path, ROLLOUTS), pa.Table.from_pylist(blind, schema=ROLLOUTS)])
    write_parquet(path, with_blind)
    return path


def test_what_the_text_alone_gives_is_a_score_beside_the_others_which_stay_as_they_are(tmp_path: Path) -> None:
    scores, summary = score(without_pictures(tmp_path, ["#### 7", "#### 8", "#### 8", "#### 8"]), SCORING)
    (tmp_path / "plain").mkdir()
    plain_scores, plain = score(write(tmp_path / "plain"), SCORING)
    assert summary["greedy_without_pictures"]["value"] == 3 / 4
    assert {name: value for name, value in summary.items() if name != "greedy_without_pictures"} == plain
    assert scores.num_rows == plain_scores.num_rows
    assert scores["correct_without_pictures"].to_pylist()[::5] == [False, True, True, True]
    assert scores["correct_without_pictures"].null_count == 16
    values = values_per_problem(outcomes(scores))
    assert values["greedy_without_pictures"].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert metrics_to_log(summary)["greedy_without_pictures"] == 3 / 4


INSTRUCTIONS = json.dumps([["punctuation:no_comma", {}], ["startend:quotation", {}]])


def test_instructions_are_counted_one_by_one_and_all_together_and_answers_have_no_vote(tmp_path: Path) -> None:
    """That two texts follow the same instructions does not make them one answer."""
    texts = [('"a"', "a, b"), ("a", '*"a"*')]  # greedy and one sample of each prompt
    scores, summary = score(write(tmp_path, texts, ground_truth=INSTRUCTIONS, verifier="ifeval"), SCORING)
    assert summary["greedy"]["value"] == 1 / 2
    assert summary["accuracy_by_extractor"]["flexible"]["sampled"] == 1 / 2
    assert summary["parts_by_extractor"]["strict"] == {"greedy": 3 / 4, "sampled": 1 / 4}
    assert summary["parts_by_extractor"]["flexible"] == {"greedy": 3 / 4, "sampled": 2 / 4}
    assert scores["extracted"].to_pylist()[2] == "punctuation:no_comma"
    logged = metrics_to_log(summary)
    assert (logged["parts_strict_sampled"], logged["parts_flexible_sampled"]) == (1 / 4, 2 / 4)
    assert (summary["mean_at_k"]["k"], "maj_at_k" in summary) == (1, False)
    assert scores["vote"].null_count == scores.num_rows
    write_parquet(tmp_path / "scores.parquet", scores)
    (tmp_path / "scores.json").write_text(json.dumps(summary))
    evaluation = read_evaluation(tmp_path / "scores.parquet", tmp_path / "scores.json")
    assert set(values_per_problem(evaluation.outcomes)) == {"greedy", "mean_at_1", "pass_at_1"}


def test_instructions_are_graded_once_by_each_extractor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(text: str, name: str, parameters: Mapping[str, Any]) -> bool:
        asked.extend([text] if text else [])
        return False

    monkeypatch.setattr(ifeval, "follows", counted)
    score(write(tmp_path, [("a", "b")], ground_truth=INSTRUCTIONS, verifier="ifeval"), SCORING)
    strict, exact, flexible = 1, 1, len([text for text in loosened("a") if text])
    assert len(asked) == 2 * 2 * (strict + exact + flexible)


def test_published_scorers_have_a_column_each_and_their_accuracies_beside_the_main_ones(tmp_path: Path) -> None:
    """By verl a last `8.0` is not 8; by the harness a text without `####` may be right: by hand, completion by completion."""
    also = ["verl_gsm8k", "lm_eval_gsm8k_flexible"]
    scores, summary = score(write(tmp_path), Scoring(bootstrap_draws=100, also=also))
    plain_scores, plain = score(write(tmp_path), SCORING)
    assert scores.drop_columns([f"correct_by_{name}" for name in also]) == plain_scores
    assert {name: value for name, value in summary.items() if name != "scorers"} == plain
    verl, harness = (summary["scorers"][name] for name in also)
    assert scores["correct_by_verl_gsm8k"].to_pylist()[15:] == [False, False, False, True, False]
    assert verl["greedy"] == plain["greedy"]
    assert verl["mean_at_k"]["value"] == pytest.approx((1 + 1 / 4 + 0 + 1 / 4) / 4)
    assert (verl["differing"], verl["undecided"], verl["completions"]) == (1, 0, 20)
    assert harness["mean_at_k"]["value"] == pytest.approx((1 + 1 / 4 + 3 / 4 + 1 / 4) / 4)
    assert harness["pass_at_k"]["4"]["value"] == 1
    assert harness["differing"] == 4
    assert "maj_at_k" not in harness
    assert verl["source"].startswith("verl 0.9.1")


def test_an_excluded_attempt_and_one_that_the_library_leaves_are_undecided_and_not_right(tmp_path: Path) -> None:
    path = write(tmp_path, [("\\boxed{9^{9^{9}}}", "\\boxed{8}", "\\boxed{8}")], verifier="math")
    table = read_table(path, ROLLOUTS)
    reasons = pa.array(["answered", "answered", "excluded"])
    write_parquet(path, table.set_column(table.column_names.index("stop_reason"), "stop_reason", reasons))
    scores, summary = score(path, Scoring(bootstrap_draws=100, verify_seconds=0.5, also=["math_verify", "verl_gsm8k"]))
    assert scores["correct_by_math_verify"].to_pylist() == [None, True, None]
    assert list(summary["scorers"]) == ["math_verify"]  # the other one is for another verifier's tasks
    assert summary["scorers"]["math_verify"]["mean_at_k"]["value"] == 1 / 2
    assert summary["scorers"]["math_verify"]["undecided"] == 2


def test_a_scorer_that_no_evaluated_task_is_for_is_refused_and_an_unknown_one_gets_the_nearest_name() -> None:
    tasks = {"train": "countdown", "evaluate": ["countdown"], "tasks": ["countdown"]}
    with pytest.raises(
        UserError, match=r"also names verl_gsm8k, .* of the verifiers gsm8k, but .* have countdown: dele"
    ):
        parse_with_tasks({"evaluation": {"scoring": {"also": ["verl_gsm8k"]}}, "experiment": tasks})
    for also, words in (
        (["verl_gsm8"], r"`verl_gsm8` is not a scorer: the nearest known one is `verl_gsm8k`"),
        (["verl_gsm8k", "verl_gsm8k"], r"evaluation\.scoring\.also names verl_gsm8k more than once"),
        ([None], r"evaluation\.scoring\.also has null in place of the name of a scorer"),
    ):
        with pytest.raises(UserError, match=words):
            parse({"evaluation": {"scoring": {"also": also}}})


PARAMS = {"evaluation": Evaluation().model_dump()}
OUTPUTS = ("scores=s/scores.parquet", "summary=s/scores.json", "provenance=s/provenance.json")


@pytest.mark.parametrize(("task", "oracle"), [("gsm8k", False), ("gsm8k_feedback", True)])
def test_a_score_says_whether_an_oracle_helped(
    task: str, oracle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    completions = write(tmp_path, task=task)
    run_stage("score", PARAMS, [f"completions={completions}"], OUTPUTS)
    assert read_json(Path("s/scores.json"))["oracle"] is oracle
    assert (f"{task} (oracle)" in capsys.readouterr().err) == oracle
