"""What the page says of turns and calls: there where there are some, folded, and harmless."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.synthetic import Files, make_experiment, page_of
from tests.report.test_page import Checker
from tests.rollout.conversations import HOSTILE

from dagrpo.report.conversations import conversations
from dagrpo.report.page import render
from dagrpo.utils.files import read_json


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_experiment(
        tmp_path_factory.mktemp("talks"), tasks=("arithmetic_tool", "arithmetic_alone"), problems=12, steps=4
    )


def test_tasks_with_and_without_tools_stand_below_each_other(files: Files) -> None:
    found = conversations(files.read(), 2)
    assert found is not None
    assert list(found.rows) == ["arithmetic_tool", "arithmetic_alone"]
    trained = found.rows["arithmetic_tool"][1]
    summary = read_json(files.summaries[1])["conversations"]
    # Of problems 0 to 11, 0, 4 and 8 make one call, 1, 5 and 9 two, 2, 6 and 10 one, 3 and 7 one, 11 none.
    assert summary["calls"]["greedy"] == (3 * 1 + 3 * 2 + 3 * 1 + 2) / 12
    assert trained[2:] == ("2.17", "1.17", "91.7%", "71.4%", "8.3%")
    alone = found.rows["arithmetic_alone"][0]
    assert alone[2:] == ("1.00", "0.00", "0.0%", "\N{EN DASH}", "0.0%")


def test_there_is_a_section_where_one_policy_has_conversations_or_training_alone(files: Files) -> None:
    inputs = files.read()
    summaries = {key: dict(each.summary) for key, each in inputs.evaluations.items()}
    inputs = replace(
        inputs, evaluations={key: replace(each, summary=summaries[key]) for key, each in inputs.evaluations.items()}
    )
    for policy, kept in (("base", ["arithmetic_tool"]), ("trained", [])):
        del summaries["arithmetic_tool", policy, 0]["conversations"]
        found = conversations(inputs, 2)
        assert found is not None
        assert [each.task for each in found.shares] == kept
        assert [each.title for each in found.attempts][:1] == ["In training, step 4"]


def test_the_best_and_the_worst_of_training_and_of_the_evaluation(files: Files) -> None:
    found = conversations(files.read(), 2)
    assert found is not None
    training, evaluation = found.attempts
    assert training.title == "In training, step 4"
    assert [each.read.reward for each in (*training.best, *training.worst)] == [1.0, 1.0, 0.0, 0.0]
    assert [each.read.problem_index for each in training.best] == [0, 1]
    assert evaluation.title == "Greedy on arithmetic_tool, trained policy"
    assert [each.verdict for each in evaluation.best] == ["right", "right"]
    assert [each.read.turns for each in evaluation.best] == [3, 3]  # among equals those of more turns
    assert all(each.verdict != "right" and each.read.is_greedy for each in evaluation.worst)


def test_the_page_is_whole_and_what_was_written_is_not_obeyed(files: Files) -> None:
    text = render(page_of(files))
    checked = Checker(text)
    checked.require_whole()
    assert "img" not in checked.tags
    assert text.count("<script") == 1
    assert not set(HOSTILE) & {"\x1b", "\u202e", "\u2066"} & set(text)
    assert "\\u001b]8;;https://evil.example" in checked.text


def test_single_turns_without_calls_have_no_such_section(tmp_path: Path) -> None:
    assert conversations(make_experiment(tmp_path, problems=4, steps=2).read(), 2) is None
