"""A reproduction says what is equal, what lies within its interval, and where and why a difference begins."""

from pathlib import Path
from typing import Any

import pytest

from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.utils.files import sha256_of, write_json
from dagrpo_publish.crate.reading import Crate, Recorded
from dagrpo_publish.reproduce.command import explanations
from dagrpo_publish.reproduce.comparison import Reproduction, Verdict, _code, compare

RUN, SCORES = "results/{}/runs/seed_0", "results/{}/runs/seed_0/eval/gsm8k/trained/scores.json"
CHAIN = (
    ("model", "models/{}/m/manifest.json", ()),
    ("sft", f"{RUN}/sft/manifest.json", ("models/{}/m/manifest.json",)),
    ("train", f"{RUN}/metrics.parquet", (f"{RUN}/sft/manifest.json",)),
    ("score", SCORES, (f"{RUN}/metrics.parquet",)),
)


def _run(experiment: str, digits: dict[str, str], **train: Any) -> list[dict[str, Any]]:
    """Return the fields of each record; `digits` has the digest of a stage's output, as one hex digit."""
    digests = {path.format(experiment): digits.get(stage, "0") * 64 for stage, path, _ in CHAIN}
    records = []
    for stage, path, inputs in CHAIN:
        fields = {"params": {}, "environment": {"torch": "2"}, "code": "a" * 64, "runtime": {}} | (
            train if stage == "train" else {}
        )
        read = {each.format(experiment): digests[each.format(experiment)] for each in inputs}
        made = {path.format(experiment): digests[path.format(experiment)]}
        seed = None if stage == "model" else 0
        records.append(
            {"stage": stage, "experiment": experiment, "seed": seed, "inputs": read, "outputs": made, **fields}
        )
    return records


def _compared(here: dict[str, str], value: float = 0.5, **train: Any) -> Reproduction:
    again = {"2": {"value": 0.7, "low": 0.6, "high": 0.8}}
    scores = {SCORES.format("theirs"): {"greedy": {"value": 0.5, "low": 0.4, "high": 0.6}, "pass_at_k": again}}
    crate = Crate(
        experiment="theirs",
        records=tuple(Recorded(**each) for each in _run("theirs", {})),
        code={"train": {"src/dagrpo/trainer/loop.py": "0" * 64}},
        scores=scores,
        facts={"hardware.processor": "A"},
    )
    own = Path(SCORES.format("theirs~reproduced"))
    write_json(own, {"greedy": {"value": value, "low": 0.0, "high": 1.0}, "pass_at_k": again})
    extra: dict[str, Any] = {"job": None, "overrides": {}, "provenance": Path("p")}
    records = [ExecutionRecord(**each, **extra) for each in _run("theirs~reproduced", here, **train)]
    return compare(crate, records, "theirs~reproduced", {"hardware.processor": "B"})


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_equal_bytes_are_equal_under_another_name() -> None:
    result = _compared({})
    assert all(each.is_equal for each in result.stages)
    assert explanations(result)[0].startswith("Everything is equal to the byte")


def test_a_difference_begins_where_equal_inputs_gave_other_bytes() -> None:
    result = _compared({"train": "1", "score": "2"})
    assert [(each.what, each.begins) for each in result.stages if not each.is_equal] == [
        ("train, seed 0", True),
        ("score, seed 0, gsm8k, trained", False),
    ]


def test_the_reason_is_what_differs_of_that_execution() -> None:
    changed: dict[str, Any] = {
        "environment": {"torch": "3"},
        "code": "b" * 64,
        "params": {"training": {"steps": 2}},
        "runtime": {"threads": 2},
    }
    lines = explanations(_compared({"train": "1"}, **changed))
    assert lines[0] == (
        "train, seed 0: torch: 2 there, 3 here; code: src/dagrpo/trainer/loop.py; training.steps: nothing there, 2 here; "
        "runtime.threads: nothing there, 2 here."
    )
    assert lines[1] == "Machine: hardware.processor: A there, B here."


@pytest.mark.parametrize(("value", "verdict"), [(0.5, Verdict.EQUAL), (0.41, Verdict.WITHIN), (0.61, Verdict.OUTSIDE)])
def test_a_score_lies_within_the_recorded_interval_or_not(value: float, verdict: Verdict) -> None:
    greedy, pass_at_2 = _compared({"score": "1"}, value=value).scores
    assert (greedy.name, greedy.verdict) == ("gsm8k, trained, seed_0: greedy", verdict)
    assert (pass_at_2.name, pass_at_2.verdict) == ("gsm8k, trained, seed_0: pass@2", Verdict.EQUAL)


def test_a_crate_has_no_file_outside_of_this_folder_read(tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}.py"
    outside.write_text("SECRET = 1\n")
    name = f"../{outside.name}"
    assert _code({name: sha256_of(outside)}) == f"code: {name}", "it would be equal, were it read"
