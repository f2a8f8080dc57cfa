"""The prepare stage's work on hand-made data: what is written, what is dropped and where that is said."""

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.filters.problems import character_model, problems, task_row, task_rows
from tests.data.preparing import FILES, dapo_mirror, gsm8k_mirror, limited, mirror_of, read_dropped, read_split

from dagrpo.core.errors import UserError
from dagrpo.data import prepare as prepare_module
from dagrpo.data.config import Data
from dagrpo.data.datasets import arithmetic
from dagrpo.data.filters import sieve as gates
from dagrpo.data.prepare import passages_table, prepare, require_tools_of_task, sift
from dagrpo.data.task import TaskRows, get_task
from dagrpo.tools.retrieval import Passage
from dagrpo.utils.files import read_json, sha256_of
from dagrpo.utils.tables import read_parquet, write_parquet

SMALL = Data(arithmetic={"train": 40, "test": 10})
SPLITS_OF_PROGRAMS = ("train", "validation", "test")
LONG = "a run of words so long and so odd that no two problems share it"  # 14 words


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return character_model(tmp_path_factory.mktemp("model") / "tiny")


# What is written


def test_the_folder_holds_the_files_and_the_card_counts_the_rows(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "arithmetic"
    card = prepare("arithmetic", folder, SMALL, model=model, evaluate=["arithmetic"])
    assert sorted(path.name for path in folder.iterdir()) == list(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["arithmetic"]
    assert json.loads((folder / "card.json").read_text())["counts"] == {"train": 40, "test": 10}
    assert sum(count["train"] for count in card.levels.values()) == len(read_split(folder, "train")) == 40
    assert read_parquet(folder / "dropped.parquet").schema.equals(gates.SCHEMA)
    assert read_dropped(folder) == []


def test_the_same_input_gives_the_same_bytes_wherever_the_mirror_stands(model: Path, tmp_path: Path) -> None:
    mirror = gsm8k_mirror(
        dapo_mirror(tmp_path / "mirror", [(f"{LONG} {i % 40}", str(i // 80)) for i in range(90)]), [LONG, "b"]
    )
    (tmp_path / "elsewhere").symlink_to(mirror)
    for name, place in (("one", mirror), ("two", tmp_path / "elsewhere")):
        prepare("dapo", tmp_path / name, limited(place, held_out=5), model=model, evaluate=["gsm8k", "dapo"])
    assert [sha256_of(tmp_path / "one" / f) for f in FILES] == [sha256_of(tmp_path / "two" / f) for f in FILES]
    assert read_dropped(tmp_path / "one")


def test_row_groups_of_prepared_tables_have_a_size_of_their_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 128
    params = limited(gsm8k_mirror(tmp_path / "mirror", [f"What is {n}?" for n in range(rows)]))
    prepare("gsm8k", tmp_path / "whole", params, model=model, evaluate=["gsm8k"])
    table = read_parquet(tmp_path / "whole/train.parquet")
    monkeypatch.setattr(prepare_module, "GROUP_BYTES", table.nbytes // (rows // 32))
    prepare("gsm8k", tmp_path / "cut", params, model=model, evaluate=["gsm8k"])
    footer = pq.read_metadata(tmp_path / "cut/train.parquet")
    *full, last = (footer.row_group(number).num_rows for number in range(footer.num_row_groups))
    assert {*full} in ({31}, {32})
    assert last <= 32
    assert read_parquet(tmp_path / "cut/train.parquet") == table
    assert pq.read_metadata(tmp_path / "whole/train.parquet").num_row_groups == 1


def test_limits_keep_the_first_rows_and_count_the_others_without_listing_them(model: Path) -> None:
    splits = {"train": task_rows(["a", "u", "c", "d", "e"]), "test": task_rows(["t", "u", "v"], "test")}
    loaded = problems(splits | {"validation": task_rows(["validation"], "validation")})
    card, sieve = sift("sums", loaded, Data(max_train=3, max_test=1), model=model, tests={})
    assert {split: [e.question for e in rows] for split, rows in sieve.splits.items()} == {
        "train": ["a", "c", "d"],
        "test": ["t"],
        "validation": ["validation"],
    }
    assert card.counts == {"train": 3, "test": 1, "validation": 1}
    assert (card.dropped["train: beyond data.max_train"], card.dropped["test: beyond data.max_test"]) == (1, 2)
    assert card.dropped["train: question also in test"] == 1, "a problem of the whole test split"
    assert card.limits == {"max_train": 3, "max_test": 1}
    assert [item.row.question for item in sieve.dropped] == ["u"]


# The gates together


def test_each_gate_sees_what_the_one_before_it_left(model: Path) -> None:
    train = [
        task_row("unreadable", "x y", index=0),
        task_row("conflict", "1", index=1),
        task_row("Conflict?", "2", index=2),
        task_row("twice", index=3),
        task_row("twice", index=4),
        task_row("in test", index=5),
        task_row(f"train: {LONG}", index=6),
        task_row("q" * 200, index=7),
        task_row("easy", index=8, pass_rate=1.0),
        task_row("kept", index=9, pass_rate=0.5),
        task_row("beyond", index=10),
    ]
    loaded = problems({"train": train, "test": task_rows(["in test", f"test: {LONG}"], "test")}, copies={"train": 4})
    params = Data(
        unreadable_answers="drop", contamination="drop", max_prompt_tokens=100, max_pass_rate=0.9, max_train=2
    )
    card, sieve = sift("sums", loaded, params, model=model, tests={})
    assert [e.index for e in sieve.splits["train"]] == [3, 9]
    assert [(item.row.index, item.reason) for item in sieve.dropped] == [
        (0, "unreadable answer"),
        (1, "conflicting answers"),
        (2, "conflicting answers"),
        (4, "repeated question"),
        (5, "question also in test"),
        (6, "shares words with a test problem"),
        (7, "prompt too long"),
        (8, "pass rate above data.max_pass_rate"),
    ]
    assert card.dropped["train: beyond data.max_train"] == 1
    assert (card.read, card.exact_copies) == ({"train": 15, "test": 2}, {"train": 4, "test": 0})
    assert card.conflicting_questions == {"train": 1, "test": 0}
    assert (card.contamination.by_task, card.contamination.left_by_task) == ({"sums": 1}, {"sums": 0})
    metrics = card.metrics()
    assert metrics["dropped_conflicting_answers"] == 2
    assert metrics["contaminated_train_problems"] == metrics["dropped_unreadable_answer"] == 1
    assert metrics["contaminated_train_problems_left"] == 0
    assert (metrics["dropped_rows"], metrics["exact_copies"], metrics["train_rows"]) == (9, 4, 2)
    shown = dict(card.summary())
    assert shown["train: conflicting answers"] == "2"
    assert "train: pass rate below data.min_pass_rate" not in shown


_ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "A", "b ?", "b", "c", "d", "x" * 60]), st.sampled_from("12?")), max_size=12
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    train=_ROWS,
    test=_ROWS,
    copies=st.integers(0, 5),
    longest=st.sampled_from([None, 20]),
    max_train=st.sampled_from([None, 2]),
    contamination=st.sampled_from(["report", "drop"]),
    held_out=st.booleans(),
)
def test_nothing_is_lost(
    model: Path,
    train: list[tuple[str, str]],
    test: list[tuple[str, str]],
    copies: int,
    longest: int | None,
    max_train: int | None,
    contamination: str,
    held_out: bool,
) -> None:
    """Rows read = rows kept + rows dropped + exact copies + rows beyond the limits."""
    start = [(f"solid {letter}", "1") for letter in "pqr"]  # enough to hold one out
    splits = {"train": task_rows(start + train), "test": [] if held_out else task_rows(test, "test")}
    params = Data.model_validate(
        {
            "unreadable_answers": "drop",
            "max_prompt_tokens": longest,
            "max_train": max_train,
            "contamination": contamination,
            "held_out": 1,
        }
    )
    loaded = problems(splits, copies={"train": copies}, held_out=held_out)
    card, sieve = sift("sums", loaded, params, model=model, tests={"exam": task_rows(["d"], "test")})
    accounted = sum(card.counts.values()) + sum(card.dropped.values()) + sum(card.exact_copies.values())
    assert sum(card.read.values()) == accounted
    assert card.counts == {split: len(found) for split, found in sieve.splits.items()}
    beyond = sum(count for reason, count in card.dropped.items() if "beyond" in reason)
    listed = Counter(f"{item.row.split}: {item.reason}" for item in sieve.dropped)
    assert listed == Counter({reason: n for reason, n in card.dropped.items() if n and "beyond" not in reason})
    assert len({(e.split, e.index) for e in sieve.rows()}) == sum(card.counts.values())
    assert sum(map(len, splits.values())) == sum(card.counts.values()) + len(sieve.dropped) + beyond
    if not held_out:
        for split in ("train", "test"):
            gone = sum(count for reason, count in card.dropped.items() if reason.startswith(f"{split}:"))
            assert card.read[split] == card.counts[split] + gone + card.exact_copies[split]


def test_validation_rows_are_held_out_of_train_where_the_source_has_none(model: Path, tmp_path: Path) -> None:
    whole, held = tmp_path / "whole", tmp_path / "held"
    prepare("arithmetic", whole, SMALL, model=model, evaluate=["arithmetic"])
    prepare("arithmetic", held, _holding_out(6), model=model, evaluate=["arithmetic"])
    train, validation = (read_split(held, split) for split in ("train", "validation"))
    assert (len(train), len(validation), {row.split for row in validation}) == (34, 6, {"validation"})
    assert {row.question for row in train + validation} == {row.question for row in read_split(whole, "train")}
    assert read_split(held, "test") == read_split(whole, "test")
    with pytest.raises(UserError, match=r"^data\.held_out_validation is 40, but only 40 problems"):
        prepare("arithmetic", held, _holding_out(40), model=model, evaluate=["arithmetic"])


def _long(number: int) -> str:
    return " ".join(f"word{number}x{place}" for place in range(14))


@pytest.mark.parametrize("mode", ["report", "drop"])
def test_validation_rows_are_in_no_train_split_nor_near_test_rows_and_of_evaluated_tasks_alone(
    mode: str, model: Path, tmp_path: Path
) -> None:
    questions = [_long(number) for number in range(12)]
    copies = [(f"{question} retold", "4") for question in questions]
    mirror = dapo_mirror(tmp_path / "mirror", [*copies, *((_long(number), "4") for number in range(20, 30))])
    gsm8k_mirror(
        mirror,
        [*questions, *(f"{question} again" for question in questions[6:9]), "5 + 5"],
        [f"once more {question}" for question in questions[:6]],
    )
    params = limited(mirror, held_out=2, held_out_validation=4, contamination=mode)
    for task in ("gsm8k", "dapo"):
        prepare(task, tmp_path / task, params, model=model, evaluate=["gsm8k"], train=("gsm8k", "dapo"))
    validation = {row.question for row in read_split(tmp_path / "gsm8k", "validation")}
    trained = {row.question for task in ("gsm8k", "dapo") for row in read_split(tmp_path / task, "train")}
    assert len(validation) == 4
    assert not validation & set(questions[:6])
    assert not [own for own in trained if any(question in own for question in validation)]
    assert (set(questions[:6]) <= trained) == (mode == "report")
    assert read_split(tmp_path / "dapo", "validation") == []
    assert "shares words with a validation problem" in {row["reason"] for row in read_dropped(tmp_path / "dapo")}


def test_what_another_task_s_own_validation_split_asks_is_not_trained_on(model: Path, tmp_path: Path) -> None:
    program = {"code": "def f(): return 1", "test_list": ["assert f() == 1"], "test_setup_code": "", "task_id": 1}
    files = {f"mbpp/{split}.jsonl": [{"text": _long(n), **program}] for n, split in enumerate(SPLITS_OF_PROGRAMS)}
    mirror_of(tmp_path / "mirror", files)
    gsm8k_mirror(tmp_path / "mirror", [_long(0), _long(1), _long(2), "5 + 5"])
    params = limited(tmp_path / "mirror")
    prepare("gsm8k", tmp_path / "gsm8k", params, model=model, evaluate=["gsm8k", "mbpp"], train=("gsm8k",))
    (row,) = read_dropped(tmp_path / "gsm8k")
    assert (row["reason"], row["question"]) == ("shares words with a validation problem", _long(1))


def _holding_out(count: int) -> Data:
    return SMALL.model_copy(update={"held_out_validation": count})


# Other tasks' test splits


@pytest.mark.parametrize("mode", ["report", "drop"])
def test_a_contaminated_row_is_found_and_dropped_when_asked(mode: str, model: Path, tmp_path: Path) -> None:
    mirror = dapo_mirror(
        gsm8k_mirror(tmp_path / "mirror", ["a"], [f"Tom asks: {LONG}?"]),
        [("b", "1"), (f"So, {LONG}.", "2"), ("c", "3")],
    )
    params = limited(mirror, held_out=1, contamination=mode)
    card = prepare("dapo", tmp_path / "dapo", params, model=model, evaluate=["gsm8k"])
    assert card.contamination.by_task == {"dapo": 0, "gsm8k": 1}
    (shared,) = card.contamination.examples["gsm8k"]
    assert (shared.train_index, shared.test_index, shared.words) == (1, 0, " ".join(LONG.split()[:13]))
    questions = [e.question for e in read_split(tmp_path / "dapo", "train")]
    assert (f"So, {LONG}." in questions) == (mode == "report")
    assert len(read_dropped(tmp_path / "dapo")) == (1 if mode == "drop" else 0)


def test_the_held_out_problems_of_another_task_are_its_test_split(model: Path, tmp_path: Path) -> None:
    questions = [f"What is {number} plus 7?" for number in range(8)]
    rows = [*((question, "1") for question in questions), ("x", "1"), ("x", "2")]
    mirror = gsm8k_mirror(dapo_mirror(tmp_path / "mirror", rows), questions)
    params = limited(mirror, held_out=3)
    prepare("dapo", tmp_path / "dapo", params, model=model, evaluate=["dapo"])
    held_out = {e.question for e in read_split(tmp_path / "dapo", "test")}
    card = prepare("gsm8k", tmp_path / "gsm8k", params, model=model, evaluate=["dapo"])
    assert {questions[found.train_index] for found in card.contamination.examples["dapo"]} == held_out
    assert card.contamination.by_task["dapo"] == len(held_out) == 3


# Pass rates


def test_pass_rates_are_joined_and_those_of_other_problems_are_an_error_where_the_task_is_trained_on(
    model: Path, tmp_path: Path
) -> None:
    path, rates = tmp_path / "difficulty.parquet", {"easy": 1.0, "hard": 0.125}
    digests = [hashlib.sha256(question.encode()).hexdigest() for question in rates]
    write_parquet(path, pa.table({"question_sha256": digests, "pass_rate": list(rates.values())}))
    params = {"pass_rates": str(path), "max_pass_rate": 0.9}
    mirror = gsm8k_mirror(tmp_path / "mirror", ["easy", "hard", "unknown"])
    card = prepare("gsm8k", tmp_path / "gsm8k", limited(mirror, **params), model=model, evaluate=["gsm8k"])
    assert [(e.question, e.pass_rate) for e in read_split(tmp_path / "gsm8k", "train")] == [
        ("hard", 0.125),
        ("unknown", None),
    ]
    assert card.pass_rates is not None
    assert (card.pass_rates.sha256, card.pass_rates.known["train"]) == (sha256_of(path), 2)
    mirror = gsm8k_mirror(tmp_path / "mirror", ["a"])
    for train in ((), ("gsm8k",), ("dapo", "gsm8k")):
        with pytest.raises(ValueError, match="none of the 2 questions it rates"):
            prepare("gsm8k", tmp_path / "x", limited(mirror, **params), model=model, evaluate=["gsm8k"], train=train)
    card = prepare("gsm8k", tmp_path / "x", limited(mirror, **params), model=model, evaluate=["gsm8k"], train=["dapo"])
    assert card.counts["train"] == 1


# Faults


def test_a_failure_leaves_what_was_there_before(model: Path, tmp_path: Path) -> None:
    mirror, folder = gsm8k_mirror(tmp_path / "mirror", ["1 + 1"]), tmp_path / "gsm8k"
    prepare("gsm8k", folder, limited(mirror), model=model, evaluate=["gsm8k"])
    before = [sha256_of(folder / f) for f in FILES]
    (mirror / "gsm8k/test.jsonl").unlink()
    with pytest.raises(ValueError, match=r"gsm8k/test\.jsonl is missing"):
        prepare("gsm8k", folder, limited(mirror), model=model, evaluate=["gsm8k"])
    assert [sha256_of(folder / f) for f in FILES] == before


@pytest.mark.parametrize(
    ("train", "params", "words"),
    [
        (["2 + 2"], {}, "no train problem is left (1 question also in test)"),
        (["a", "a"], {"max_prompt_tokens": 1}, "no train problem is left (1 repeated question, 1 prompt too long)"),
    ],
)
def test_a_split_of_which_nothing_is_left_is_refused(
    model: Path, tmp_path: Path, train: list[str], params: dict[str, int], words: str
) -> None:
    mirror = gsm8k_mirror(tmp_path / "mirror", train)
    with pytest.raises(ValueError, match=re.escape(f"task gsm8k: {words}")):
        prepare("gsm8k", tmp_path / "gsm8k", limited(mirror, **params), model=model, evaluate=["gsm8k"])
    assert not (tmp_path / "gsm8k").exists()


ROLES = ("assistant tool", "tool assistant", "assistant assistant", "user", "assistant system assistant")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"interaction": "gsm8k_feedback"}, r"`interaction` is 'gsm8k_feedback', and the Task has ''"),
        ({"tools": ("calculator",)}, r"`tools` is \['calculator'\], and the Task has \[\]"),
        *(({"demonstration": [{"role": r, "content": "x"} for r in turns.split()]}, "`demonstration` has") for turns in ROLES),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_its_task_or_is_demonstrated_in_other_turns_is_refused(
    changed: dict[str, Any], fault: str
) -> None:
    task = get_task("arithmetic")
    rows = task.load(Data())
    require_tools_of_task(task, rows)
    first, *others = rows.splits["train"]
    splits = {**rows.splits, "train": [replace(first, **changed), *others]}
    with pytest.raises(UserError, match=f"train row 0, field {fault}"):
        require_tools_of_task(task, replace(rows, splits=splits))


FEW = Data(arithmetic={"train": 8, "test": 2})
PASSAGES = (Passage(title="Lima", text="Capital of Peru."), Passage(title="Łódź", text="A city of Poland."))


def test_passages_are_written_in_their_order_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(params: Data) -> TaskRows:
        return replace(arithmetic.load(params), passages=PASSAGES)

    monkeypatch.setattr(arithmetic, "TASKS", (replace(arithmetic.TASKS[0], load=load),))
    card = prepare("arithmetic", tmp_path / "out", FEW, model=character_model(tmp_path / "model"), evaluate=[])
    assert read_parquet(tmp_path / "out/passages.parquet").equals(passages_table(PASSAGES))
    assert read_json(tmp_path / "out/card.json")["passages"] == 2
    assert ("passages", "2") in card.summary()
