"""The page: complete, offline, safe to open whatever the policy wrote, and the same bytes each time."""

import hashlib
import os
import re
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from tests.report.synthetic import HOSTILE, REPORT, list_again, make_experiment, page_of

from dagrpo.config.schema import Params
from dagrpo.core.escape import visible
from dagrpo.report.build import FIGURE_FILES, write
from dagrpo.report.comparison import compare_scorers
from dagrpo.report.page import Page, render
from dagrpo.report.parameters import recorded
from dagrpo.report.results import summary_markdown
from dagrpo.rollout.table import ALL, REWARDS
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.tables import read_parquet, write_parquet

VOID = {"meta", "wbr", "br", "img", "link", "input"}
MADE_HERE = "../../../logs/tiny/times.html"


class Checker(HTMLParser):
    """Notes what a browser would: tags that do not match, ids, links, scripts, what is loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.mistakes: list[str] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.loaded: list[str] = []
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.ids += [value or ""] if name == "id" else []
            self.handlers += [name] if name.startswith("on") else []
            if name in {"src", "href", "xlink:href"}:
                (self.anchors if (value or "").startswith("#") else self.loaded).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mistakes.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.text += data

    def require_whole(self) -> None:
        """Raise AssertionError unless tags match, ids are unique, anchors lead to one, and nothing is loaded or run."""
        assert (self.mistakes, self.open, self.handlers) == ([], [], [])
        elsewhere = {each for each in self.loaded if not each.startswith("data:image/png;base64,")}
        assert elsewhere <= {MADE_HERE}, "a link, which loads nothing by itself"
        assert len(self.ids) == len(set(self.ids))
        assert {anchor.removeprefix("#") for anchor in self.anchors} <= set(self.ids)
        assert not {"iframe", "object", "embed", "link", "form"} & self.tags


def write_all(page: Page, folder: Path) -> None:
    write(
        page,
        REPORT.smoothing,
        html=folder / "report.html",
        metrics=folder / "metrics.json",
        scores=folder / "scores.csv",
        table=folder / "curves.csv",
        summary=folder / "summary.md",
        figures=folder / "figures",
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Two seeds, two tasks, computed once for all tests that only look."""
    return page_of(make_experiment(tmp_path_factory.mktemp("experiment"), seeds=(0, 1), tasks=("arithmetic", "aime")))


@pytest.fixture(scope="module")
def built(page: Page) -> Path:
    """The folder of that page, beside the experiment it is about."""
    folder = page.inputs.rollouts[0].parents[4] / "report"
    write_all(page, folder)
    return folder


def test_the_page_is_whole_and_nothing_runs_but_the_script_that_it_names(built: Path) -> None:
    text = (built / "report.html").read_text()
    Checker(text).require_whole()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert not re.search(r"url\((?!#)|@import|<img|Held-out", text)
    assert "default-src 'none'" in text


def test_hostile_output_is_shown_and_not_obeyed(built: Path) -> None:
    text = (built / "report.html").read_text()
    shown = Checker(text).text
    assert text.count("<script") == 1
    assert "&lt;/pre&gt;&lt;script src=" in text
    assert HOSTILE.split("\u202e")[0] in shown
    assert "\u202e" not in text
    assert "\\u202e" in shown
    assert "\\u0007" in shown


def test_figures_speak_to_those_who_do_not_see_them(built: Path) -> None:
    text = (built / "report.html").read_text()
    for svg in re.findall(r"<svg .*?</svg>", text, re.DOTALL):
        element = ElementTree.fromstring(svg)
        assert element.get("role") == "img"
        title, description = element[0], element[1]
        assert element.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert title.text
        assert description.text
        assert "DejaVu" not in svg
        assert "#1c1c1e" not in svg


def test_every_digest_from_raw_data_to_score_is_there(built: Path) -> None:
    shown = Checker((built / "report.html").read_text()).text
    for provenance in built.parent.rglob("*.provenance.json"):
        assert all(digest in shown for digest in read_json(provenance)["outputs"].values())


def test_all_figures_are_written_and_have_the_same_bytes_when_they_are_drawn_again(page: Page, built: Path) -> None:
    """The page and the files show the same ones, in whatever order they are written."""
    assert sorted(os.listdir(built / "figures")) == sorted(FIGURE_FILES)
    for figure, name in zip(page.figures, FIGURE_FILES, strict=True):
        assert figure.svg() == figure.svg() == (built / "figures" / name).read_text()


@pytest.mark.nightly
def test_the_same_inputs_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = page_of(make_experiment(tmp_path, seeds=(0, 1), tasks=("arithmetic", "aime")))
    write_all(again, tmp_path / "report")
    for file in (path for path in built.rglob("*") if path.is_file()):
        assert file.read_bytes() == (tmp_path / "report" / file.relative_to(built)).read_bytes(), file.name


def with_params(page: Page, stage: str, seeds: tuple[int, ...], **sections: object) -> str:
    """The page's text had that stage recorded other parameters for some seeds."""
    records = {path: read_json(path) for path in page.inputs.provenance}
    own = {path: each for path, each in records.items() if each["stage"] == stage and each["seed"] in seeds}
    for path, record in own.items():
        write_json(path, record | {"params": record["params"] | sections})
    changed = recorded(page.inputs.provenance, {}, Params().model_dump())
    for path, record in own.items():
        write_json(path, record)
    return render(replace(page, parameters=changed))


@pytest.mark.nightly
def test_parameters_that_differ_between_stages_are_marked(page: Page) -> None:
    text = with_params(page, "train", (0,), training={"steps": 99})
    assert "differs between stages:" in text
    assert "12, 99" in text
    assert "This is a control." not in text
    assert "This is a control." in with_params(page, "train", (0, 1), reward={"permuted": True})


def test_what_differs_from_the_defaults_stands_before_the_rest_and_is_marked_there(built: Path) -> None:
    text = (built / "report.html").read_text()
    first, _, rest = text.partition('<section id="parameters">')[2].partition("<details>")
    assert '<th scope="row">training.steps</th>' in first
    assert "clip_low" not in first, "0.2 is the default"
    assert '<tr class="changed"><th scope="row">steps</th>' in rest
    assert '<tr><th scope="row">loss.clip_low</th>' in rest


@pytest.mark.nightly
def test_a_page_of_one_problem_counts_texts_that_were_not_kept_and_calls_nothing_unverifiable_wrong(
    tmp_path: Path,
) -> None:
    files = make_experiment(tmp_path, steps=2, problems=1, samples=0, trained_accuracy=0.5)
    text = render(page_of(files))
    assert "No difference shown" in text
    assert "mean@" not in text.split("Glossary</h2>")[0]
    assert not re.search("runtime.keep_rollouts has left|mark open", text)
    for step, kept in ((1, ALL), (2, REWARDS)):
        path = files.rollouts[0].with_name(f"step_{step:05d}.parquet")
        table = read_parquet(path)
        write_parquet(path, table.append_column("kept", pa.array([kept] * table.num_rows)))
    list_again(files.rollouts[0])
    trained = next(path for path in files.scores if path.parent.name == "trained")
    table = read_parquet(trained)
    place = table.schema.get_field_index("verdict")
    write_parquet(trained, table.set_column(place, table.schema.field(place), pa.array(["unverifiable"], pa.string())))
    text = render(page_of(files))
    assert "runtime.keep_rollouts has left texts and tokens out of 1 of 2 steps." in text
    assert '<span class="mark open">unverifiable</span>' in text


def test_nothing_on_the_page_hides_or_reorders_not_even_its_title(page: Page) -> None:
    name = "tiny\u202egnp\0\u200b\ud800"
    doubts = ("Seed 0: <b>odd</b>.",)
    html = render(replace(page, inputs=replace(page.inputs, experiment=name), overrides={name: name}, doubts=doubts))
    assert "<b>Doubtful.</b> Seed 0: &lt;b&gt;odd&lt;/b&gt;." in html
    assert "**Doubtful.** Seed 0" in summary_markdown("tiny", page.comparisons, {}, doubts)
    assert visible(html) == html
    html.encode()
    assert "tiny\\u202egnp\\u0000\\u200b\\ud800" in html


def test_published_scorers_stand_beside_the_main_one_on_their_own_tasks(tmp_path: Path) -> None:
    page = page_of(make_experiment(tmp_path, seeds=(0, 1), also=["verl_gsm8k", "lm_eval_gsm8k_strict"]))
    main, verl, _ = compare_scorers(page.inputs, "arithmetic")
    assert (main.name, main.differing) == ("strict (main)", None)
    assert main.metrics == tuple(each for each in page.comparisons[0].metrics if each.name in ("greedy", "mean_at_4"))
    scores = [page.inputs.evaluations["arithmetic", "base", seed].summary["scorers"]["verl_gsm8k"] for seed in (0, 1)]
    assert verl.metrics[0].first.value == pytest.approx(sum(each["greedy"]["value"] for each in scores) / 2)
    assert verl.differing is not None
    assert verl.differing[0] == sum(each["differing"] for each in scores)
    rows = page.inputs.evaluations["arithmetic", "base", 0].scores.num_rows
    assert verl.completions == (2 * rows, 2 * rows)
    text = render(page)
    assert "Table 4.</b> The same completions by other projects" in text
    assert text.count('<th scope="row">verl_gsm8k, mean@4</th>') == 1
    first = page.inputs.evaluations["arithmetic", "base", 0]  # of a base policy that the seeds share copies count once
    shared = replace(page.inputs, evaluations={**page.inputs.evaluations, ("arithmetic", "base", 1): first})
    _, verl, _ = compare_scorers(shared, "arithmetic")
    assert verl.completions == (rows, 2 * rows)
    assert verl.differing is not None
    assert verl.differing[0] == scores[0]["differing"]


def test_a_trainer_that_leaves_no_rollouts_and_few_metrics_gets_a_report(tmp_path: Path) -> None:
    files = make_experiment(tmp_path)
    (metrics,), (rollouts,) = files.metrics, files.rollouts
    table = read_parquet(metrics).select(["step", "reward/mean", "rollout/length_mean"])
    # A step whose line was lost in a crash.
    gaps = pa.array([None, *table["reward/mean"].to_pylist()[1:]], pa.float64())
    write_parquet(metrics, table.set_column(1, "reward/mean", gaps))
    write_json(rollouts, {"files": {}})
    page = page_of(files)
    assert [each.name for each in page.figures] == [Path(name).stem for name in FIGURE_FILES]
    assert "This trainer leaves no table of rollouts." in render(page)
    assert "nan" not in Checker(render(page)).text
    write_all(page, tmp_path)
    assert read_json(tmp_path / "metrics.json")["mean reward"] > 0.5
