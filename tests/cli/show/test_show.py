"""`dagrpo show`: what was asked for is found, readable, and harmless."""

import io
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tests.pictures import picture
from tests.rollout import conversations as made
from tests.rollout.problems import task_row
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from typer.testing import CliRunner, Result

from dagrpo.checkpoints.tokenizers import Decode
from dagrpo.cli.application import app
from dagrpo.cli.show import attempts, terminal
from dagrpo.cli.show.command import NO_TOKENIZER, single_file
from dagrpo.core.errors import UserError
from dagrpo.data.schema import to_table
from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.scoring import score
from dagrpo.utils.tables import write_parquet

ROWS = (made.with_tool(0), made.mended(1), made.alone(2), made.corrected(3), made.excluded(4))
REWARDS = (1.0, 0.9, -0.5, 0.1, 0.0)
RUN = Path("results/tiny/runs/seed_0")
Show = Callable[..., Result]


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Calls the command in a project with one run of two steps."""
    monkeypatch.chdir(tmp_path)
    Path("Snakefile").touch()
    for step in (1, 2):
        path = RUN / f"rollouts/step_{step:05d}.parquet"
        write_parquet(path, made.training_table(ROWS, REWARDS, step))
    evaluated = [row | {"sample_index": -1} for row in ROWS]
    folder = RUN / "eval/arithmetic_tool/trained"
    write_parquet(folder / "completions.parquet", made.table(evaluated))

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["show", *arguments])

    return call


def test_the_last_step_is_shown_best_first(show: Show) -> None:
    text = show("tiny", "--best", "2", "--worst", "1").stdout
    assert "step 2, mean reward 0.300" in text
    places = [text.index(title) for title in ("best 1 of 2: arithmetic_tool, problem 0", "best 2 of 2", "worst 1 of 1")]
    assert places == sorted(places)
    assert "worst 1 of 1: arithmetic_tool, problem 2" in text
    assert "reward 0.900, advantage +0.600  right" in text
    text = show("tiny").stdout
    assert "(thinking) Seven and five, so five." in text
    assert "user     That is not right. Try again." in text
    assert "fault: the search server refuses" in text


def test_the_attempts_of_a_mixture_have_the_mean_of_each_task(show: Show) -> None:
    rows = [row | {"task": "math" if place == 1 else row["task"]} for place, row in enumerate(ROWS)]
    write_parquet(RUN / "rollouts/step_00002.parquet", made.training_table(rows, REWARDS, 2))
    text = " ".join(show("tiny").stdout.split())
    assert "step 2, mean reward 0.300 (arithmetic_tool 0.150, math 0.900)" in text


def test_a_conversation_reads_from_the_problem_to_the_answer(show: Show) -> None:
    text = show("tiny", "--best", "2", "--worst", "0").stdout.split("best 2 of 2")[1]
    lines = [" ".join(line.split()) for line in text.splitlines()]
    start = lines.index("problem What is 13 * 7?")
    assert lines[start : start + 8] == [
        "problem What is 13 * 7?",
        'turn 1 \N{RIGHTWARDS ARROW} calculator {"expression": 12 * 7',
        "undecodable: Error: the call is not valid JSON.",
        "turn 2 Again:",
        '\N{RIGHTWARDS ARROW} calculator {"expression": "13 * 7"}',
        "ok: 91",
        "turn 3 It is #### 91",
        "answer 91 (truth 91)",
    ]


def test_a_piece_of_the_prompt_chooses_the_problem_in_any_case_of_letters(show: Show) -> None:
    text = show("tiny", "--prompt", "what is  13 *").stdout
    assert "1 attempt, step 2, mean reward 0.900" in text
    assert "best 1 of 1: arithmetic_tool, problem 1" in text
    assert "problem 0" not in text


def test_the_pictures_of_a_problem_are_named_with_their_file(show: Show) -> None:
    assert "pictures" not in show("tiny").stdout
    rows = [task_row(str(row), index=row, images=(picture(),) * (row == 1)) for row in range(5)]
    for split in ("results/tiny/difficulty/arithmetic_tool/train.parquet", "data/tiny/arithmetic_tool/test.parquet"):
        write_parquet(Path(split), to_table(rows))
    trained = " ".join(show("tiny", "--best", "9", "--worst", "0").stdout.split())
    assert (
        trained.count(
            "pictures 1, in column images of results/tiny/difficulty/arithmetic_tool/train.parquet, row 1 (from 0)"
        )
        == 1
    )
    assert trained.count("pictures") == 1
    evaluated = " ".join(show("tiny", "--task", "arithmetic_tool", "--best", "9", "--worst", "0").stdout.split())
    assert (
        evaluated.count("pictures 1, in column images of data/tiny/arithmetic_tool/test.parquet, row 1 (from 0)") == 1
    )


def test_an_evaluation_is_ordered_by_its_scores_where_there_are_some(show: Show) -> None:
    folder = RUN / "eval/arithmetic_tool/trained"
    arguments = ("tiny", "--task", "arithmetic_tool", "--best", "9", "--worst", "0")
    assert "attempt 1 of 5: arithmetic_tool, problem 1, greedy" in show(*arguments).stdout
    scores, _ = score(folder / "completions.parquet", Scoring(bootstrap_draws=100))
    write_parquet(folder / "scores.parquet", scores)
    text = show(*arguments).stdout
    assert "correct 0.400" in text
    assert text.index("problem 1, greedy") < text.index("problem 2, greedy")


EVALUATION = ("tiny", "--task", "arithmetic_tool")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tyni",), "There is no experiment `tyni` in results: the nearest one is `tiny`."),
        (("other",), "There is no run `other`, only override runs of it: give a name of other~1a2b3c4d."),
        (("tiny", "--step", "7"), "has no step 7: it has the steps 1 to 2"),
        (("tiny", "--seed", "3"), "has no seed 3: it has 0"),
        ((*EVALUATION, "--which", "base"), "it has arithmetic_tool/trained"),
        ((*EVALUATION, "--step", "1"), "give one of the two"),
        (("nothing.parquet",), "There is no file nothing.parquet"),
        (("other.parquet",), "other.parquet is no table of attempts: no column `problem_index`"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(arguments: tuple[str, ...], sentence: str, show: Show) -> None:
    Path("results/other~1a2b3c4d/runs/seed_0").mkdir(parents=True)
    write_parquet(Path("other.parquet"), made.table(ROWS).select(["task", "turns"]))
    mistake = show(*arguments).exception
    assert isinstance(mistake, UserError)
    assert sentence in str(mistake)


def test_tokens_are_shown_as_they_are_trained_on(show: Show) -> None:
    arguments = ("tiny", "--tokens", "--best", "1", "--worst", "0")
    assert NO_TOKENIZER in " ".join(show(*arguments).stdout.split())
    words = {f"w{token}": token for token in range(20)}
    (RUN / "exported").mkdir()
    Tokenizer(WordLevel(words, "w0")).save(str(RUN / "exported/tokenizer.json"))
    lines = [" ".join(line.split()) for line in show(*arguments).stdout.splitlines()]
    start = lines.index("tokens 1 12 tokens, 6 of them trained on")
    assert lines[start + 1 : start + 5] == [
        "given w1 w2 w3 w4",
        "wrote w10 w10 w10",
        "given w5 w6",
        "wrote w11 w11 w11",
    ]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("decode", [None, lambda tokens: made.HOSTILE])
def test_no_byte_that_a_policy_writes_controls_the_terminal(tmp_path: Path, full: bool, decode: Decode | None) -> None:
    path = tmp_path / "step_00001.parquet"
    write_parquet(path, made.training_table([made.hostile(0)], [1.0]))
    chosen = attempts.choose(single_file(path), 1, 0, full=full)
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, color_system=None, width=80, highlight=False, markup=False, emoji=False
    )
    console.print(terminal.render(*chosen.titled[0], full=full, decode=decode))
    text = out.getvalue()
    controls = {character for character in text if unicodedata.category(character) in {"Cc", "Cf", "Cs"}}
    assert controls <= {"\n"}
    assert "[bold" in text  # rich's markup is text
    assert ":smile:" in text
    assert max(map(len, text.splitlines())) <= 80
