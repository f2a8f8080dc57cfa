"""Attempts of training step by step: which are shown, what of them, and that none can do anything but be read."""

import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pictures import picture
from tests.report.synthetic import Files, list_again, make_experiment, page_of
from tests.report.test_page import Checker
from tests.report.test_pictures import write_split
from tests.rollout import conversations

from dagrpo.report.config import Report
from dagrpo.report.over_steps import LONGEST_TEXT, MOST_ATTEMPTS, MOST_TOKENS, over_steps
from dagrpo.report.page import render
from dagrpo.report.samples import evenly, series_of_training
from dagrpo.report.splits import Kinds
from dagrpo.utils.tables import write_parquet

CHROMIUM = shutil.which("chromium")
HEADLESS = ("--headless=new", "--no-sandbox", "--disable-gpu")
Row = dict[str, Any]


def attempts(problem: int, texts: Sequence[str]) -> list[Row]:
    """A group of single turns; the first earns most."""
    return [
        conversations.attempt(problem, sample, [conversations.assistant(text)], task="arithmetic")
        | {"messages": "[]", "completion": text}
        for sample, text in enumerate(texts)
    ]


def trained_on(root: Path, steps: Sequence[Sequence[Row]]) -> Files:
    """The made-up experiment with these attempts for rollouts, one list per step."""
    files = make_experiment(root, steps=len(steps))
    manifest = files.rollouts[0]
    for number, rows in enumerate(steps, start=1):
        rewards = [1.0 / (1 + row["sample_index"]) for row in rows]
        write_parquet(
            manifest.with_name(f"step_{number:05d}.parquet"), conversations.training_table(rows, rewards, number)
        )
    list_again(manifest)
    return files


REPORT = Report(completions=1, prompts=2)


def test_prompts_that_came_again_are_shown_those_first_that_lie_furthest_apart(tmp_path: Path) -> None:
    steps = [[1, 2, 3], [2], [4], [3], [2, 1], [3]]
    inputs = trained_on(tmp_path, [[row for p in step for row in attempts(p, ["a"])] for step in steps]).read()
    series = series_of_training(inputs, 0, 3)
    assert [(each.problems[0][1], each.steps) for each in series] == [(3, (1, 4, 6)), (2, (1, 2, 5)), (1, (1, 5))]
    assert all(each.is_one_prompt for each in series)


def test_where_no_prompt_came_twice_problems_of_one_kind_stand_for_it(tmp_path: Path) -> None:
    steps = [[0, 1], [2, 3], [4, 5]]
    inputs = trained_on(tmp_path, [[row for p in step for row in attempts(p, ["a"])] for step in steps]).read()
    split = tmp_path / "difficulty/train.parquet"
    write_parquet(
        split, pa.table({"ability": ["easy", "hard", "hard", "hard", "easy", "hard"], "data_source": ["x"] * 6})
    )
    found = series_of_training(replace(inputs, kinds=Kinds([split])), 0, 4)
    assert [(each.kind, [row for _, row in each.problems], each.steps) for each in found] == [
        ("easy", [0, 4], (1, 3)),
        ("hard", [1, 2, 5], (1, 2, 3)),
        ("hard", [3], (2,)),
    ]
    assert [each.kind for each in series_of_training(inputs, 0, 1)] == [None]
    assert not any(each.is_one_prompt for each in found)


@given(st.lists(st.integers(), min_size=1, max_size=30, unique=True), st.integers(2, 6))
def test_what_is_spread_has_both_ends_and_nothing_twice(values: list[int], most: int) -> None:
    shown = evenly(values, most)
    assert (shown[0], shown[-1]) == (values[0], values[-1])
    assert len(shown) == len(set(shown)) == min(most, len(values))
    assert shown == [value for value in values if value in shown]


def test_a_moment_says_what_its_group_has_earned_and_shows_it_from_best_to_worst(tmp_path: Path) -> None:
    group = attempts(7, [f"answer {number}" for number in range(8)])
    files = trained_on(tmp_path, [group, group])
    files.splits.append(write_split(tmp_path / "own/train.parquet", {7: (picture(),)}))
    (series,) = over_steps(files.read(), 1)
    assert [len(moment.pictures) for moment in series.moments] == [1, 0], "of a prompt that came again once"
    first = series.moments[0]
    assert (series.is_one_prompt, [moment.step for moment in series.moments]) == (True, [1, 2])
    assert (first.problem_index, first.samples, len(first.attempts)) == (7, 8, MOST_ATTEMPTS)
    assert first.mean_reward == pytest.approx(sum(1 / n for n in range(1, 9)) / 8)
    assert [each.attempt.first_line for each in first.attempts] == ["answer 0", "answer 2", "answer 5", "answer 7"]


def test_tokens_stand_with_their_logprobs_and_long_texts_are_cut(tmp_path: Path) -> None:
    long = [dict(row) for row in attempts(1, ["x" * 100_000])]
    long[0] |= {"completion_ids": list(range(5000)), "rollout_logprobs": [-0.01, -0.5, -2.0, -9.0, 0.0] * 1000}
    (series,) = over_steps(trained_on(tmp_path, [long, long]).read(), 1)
    attempt = series.moments[0].attempts[0]
    assert len(attempt.attempt.read.utterances[0].text) < LONGEST_TEXT + 50
    assert (len(attempt.tokens), attempt.tokens_left_out) == (MOST_TOKENS, 5000 - MOST_TOKENS)
    assert [(token.text, token.logprob, token.doubt) for token in attempt.tokens[:4]] == [
        ("0", "-0.01", 0),
        ("1", "-0.50", 1),
        ("2", "-2.00", 2),
        ("3", "-9.00", 3),
    ]


@pytest.mark.nightly
def test_a_page_of_long_attempts_stays_below_a_megabyte(tmp_path: Path) -> None:
    group = [dict(row) for row in attempts(1, ["<&>\u202e" * 400] * 8)]
    for row in group:
        row |= {"completion_ids": list(range(300)), "rollout_logprobs": [-0.5] * 300}
    other = [row | {"problem_index": number} for number in range(2, 30) for row in group]
    files = trained_on(tmp_path, [[*group, *other]] * 4)
    html = render(page_of(files, Report(completions=5, prompts=30)))
    assert len(html.encode()) < 1_000_000


def test_hostile_attempts_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    hostile = attempts(1, [conversations.HOSTILE, "</details></script><script>alert(3)</script>" + "long" * 9000])
    html = render(page_of(trained_on(tmp_path, [hostile, hostile]), REPORT))
    checked = Checker(html)
    checked.require_whole()
    assert html.count("<script") == 1
    assert "\u202e" not in html
    assert "<script>alert(3)</script>" in checked.text


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page's script is not run")
def test_the_filter_hides_what_does_not_fit(tmp_path: Path) -> None:
    groups = [[*attempts(1, ["alpha", "beta"]), *attempts(2, ["gamma", "delta"])]] * 3
    html = render(page_of(trained_on(tmp_path, groups), REPORT))
    bar = 'document.querySelector(".filter[data-of=over-steps]")'
    typed = f'{bar}.querySelector("[data-by=text]").value = "GAMMA"; {bar}.dispatchEvent(new Event("input"));'
    chosen = f'{bar}.querySelector("[data-by=step]").value = "2"; {bar}.dispatchEvent(new Event("input"));'
    assert len(_shown_by_chromium(html, "", tmp_path)) == 12
    assert _shown_by_chromium(html, typed, tmp_path) == ["gamma"] * 3
    assert _shown_by_chromium(html, typed + chosen, tmp_path) == ["gamma"]


def _shown_by_chromium(html: str, more: str, folder: Path) -> list[str]:
    """The attempts that are not hidden once the page's script, and `more` after it, has run under the page's own policy."""
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    old, new = (b64encode(sha256(text.encode()).digest()).decode() for text in (script, script + more))
    path = folder / "page.html"
    path.write_text(html.replace(old, new).replace(script, script + more))
    assert CHROMIUM is not None
    dom = subprocess.run(
        [CHROMIUM, *HEADLESS, f"--user-data-dir={folder}/chromium", "--dump-dom", f"file://{path}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert '<div class="filter" data-of="over-steps">' in dom, "the script ran and showed the bar"
    items = re.findall(r'<details class="attempt"([^>]*)>\s*<summary>.*?<code>(.*?)</code>', dom, re.DOTALL)
    return [text for attributes, text in items if 'hidden=""' not in attributes]
