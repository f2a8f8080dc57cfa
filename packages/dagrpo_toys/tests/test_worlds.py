"""Made-up worlds: every answer stands in one passage, a search leads to it, and the held-out world is another one."""

import itertools
import json
import re
from collections import Counter

import pytest

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.task import TaskRows
from dagrpo.tools.retrieval.index import Index
from dagrpo.tools.search import written
from dagrpo_answers.verifiers.exact_match import VERIFIER
from dagrpo_toys.worlds import Config, load, names

NAME = re.compile(r"\b(?:[BDFGKLMNPRSTVZ][a-z]{4,5})\b")


def _load(**wanted: object) -> TaskRows:
    return load(Data(worlds=Config.model_validate({"train_people": 60, "test_people": 20, **wanted})))


@pytest.fixture(scope="module")
def problems() -> TaskRows:
    return _load()


@pytest.fixture(scope="module")
def index(problems: TaskRows) -> Index:
    return Index(problems.passages)


def _every(problems: TaskRows) -> list[Row]:
    return [*problems.splits["train"], *problems.splits["test"]]


def _answer(task_row: Row) -> str:
    (answer,) = json.loads(task_row.ground_truth)
    return str(answer)


def test_questions_and_passages_are_as_many_as_the_people_and_an_answer_stands_in_one_passage(
    problems: TaskRows,
) -> None:
    for split, people in (("train", 60), ("test", 20)):
        hops = Counter(task_row.ability for task_row in problems.splits[split])
        assert hops == {"1_hop": 3 * people, "2_hops": 2 * people, "3_hops": people}
    assert problems.levels == ["1_hop", "2_hops", "3_hops"]
    assert len(problems.passages) == len({passage.title for passage in problems.passages}) == 3 * (60 + 20)
    assert max(len(passage.text) for passage in problems.passages) < 60
    for task_row in _every(problems):
        (passage,) = [each for each in problems.passages if _answer(task_row) in each.text]
        assert _answer(task_row) != passage.title
        assert len(set(NAME.findall(passage.text)) - {passage.title, _answer(task_row)}) == 1, "beside another name"
    found = {
        split: {name for e in rows for name in NAME.findall(f"{e.question} {_answer(e)}")}
        for split, rows in problems.splits.items()
    }
    assert not found["train"] & found["test"]
    assert len(found["test"]) == 6 * 20


def _led_to(index: Index, task_row: Row) -> list[str]:
    """The best result for the name in the question, and so on for each name in a result that has a passage."""
    titles = {passage.title for passage in index.passages}
    (name,) = NAME.findall(task_row.question.removeprefix("Where "))
    found = []
    for _ in range(int(task_row.ability[0])):
        ((row, _score),) = index.search(name, 1)
        found.append(index.passages[row].text)
        others = [other for other in NAME.findall(found[-1]) if other in titles - {name}]
        name = others[0] if others else ""
    return found


def test_a_search_for_one_name_after_the_other_leads_to_the_answer(problems: TaskRows, index: Index) -> None:
    for task_row in problems.splits["test"]:
        found = _led_to(index, task_row)
        assert len(found) == int(task_row.ability[0])
        assert [_answer(task_row) in text for text in found] == [False] * (len(found) - 1) + [True]
        assert VERIFIER.extract(task_row.answer, "exact") == _answer(task_row)
        assert VERIFIER.equal(_answer(task_row).lower(), task_row.ground_truth) is True
        assert VERIFIER.equal(_answer(task_row)[:-1], task_row.ground_truth) is False


def test_a_demonstration_shows_what_the_search_finds(problems: TaskRows, index: Index) -> None:
    searching = [task_row for task_row in problems.splits["train"] if task_row.demonstration]
    assert len(searching) == len(problems.splits["train"]) // 2
    assert not any(task_row.demonstration for task_row in problems.splits["test"])
    for task_row in searching:
        *turns, answer = task_row.demonstration
        assert len(turns) == 2 * int(task_row.ability[0])
        assert answer == {"role": "assistant", "content": f"<answer>{_answer(task_row)}</answer>"}
        for call, result in zip(turns[::2], turns[1::2], strict=True):
            (made,) = call["tool_calls"]
            assert made["function"]["name"] == "search"
            ((row, _score),) = index.search(made["function"]["arguments"]["query"], 1)
            assert result == {"role": "tool", "content": written([index.passages[row].contents], "plain")}


def test_hops_choose_the_questions_and_leave_the_worlds_as_they_are(problems: TaskRows) -> None:
    one = _load(hops=[1])
    assert one.passages == problems.passages
    assert {e.question for e in _every(one)} == {e.question for e in _every(problems) if e.ability == "1_hop"}
    assert one.levels == ["1_hop"]
    assert _load() == problems, "the same seed"
    other = {passage.title for passage in _load(seed=1).passages}
    assert len(other & {passage.title for passage in problems.passages}) < 10


def test_names_have_five_or_six_letters_and_repeat_never() -> None:
    first = [*itertools.islice(names("x"), 5000)]
    assert len(set(first)) == 5000
    assert {len(name) for name in first} == {5, 6}
