"""What the report refuses: inputs that are missing, damaged, or not about the same thing."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import NOT_IN_THE_FOLDER, anything, refusal
from tests.report.synthetic import Files, make_experiment

from dagrpo.core.errors import UserError
from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.scoring import score
from dagrpo.report.curves import curves
from dagrpo.report.inputs import read_inputs
from dagrpo.report.rollouts import first_and_last
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.tables import read_parquet, write_parquet


def read_with(files: Files, **changed: list[Path]) -> None:
    names = ("scores", "summaries", "metrics", "rollouts", "provenance")
    read_inputs(files.experiment, **({name: getattr(files, name) for name in names} | changed))


def test_seeds_tasks_and_policies_are_read_from_the_paths(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, seeds=(10, 2), tasks=("b", "a")).read()
    assert inputs.seeds == (2, 10)
    assert inputs.tasks == ("b", "a")
    assert set(inputs.evaluations) == {(t, v, s) for t in "ab" for v in ("base", "trained") for s in (2, 10)}


def test_a_policy_without_scores_is_named(experiment: Files) -> None:
    with pytest.raises(ValueError, match=r"Seed 0 has no trained scores of arithmetic: run the stage score for it\."):
        read_with(experiment, scores=experiment.scores[:1])


def test_a_seed_without_training_is_named(experiment: Files) -> None:
    with pytest.raises(ValueError, match=r"Seed 0 has scores but no training metrics"):
        read_with(experiment, metrics=[])


def test_scores_without_their_summary_are_named(experiment: Files) -> None:
    with pytest.raises(ValueError, match=r"trained/scores\.parquet comes without its scores\.json"):
        read_with(experiment, summaries=experiment.summaries[:1])


def test_no_scores_at_all_is_a_sentence(experiment: Files) -> None:
    with pytest.raises(ValueError, match=r"given no scores: evaluate at least one task"):
        read_with(experiment, scores=[], summaries=[])


def test_a_path_outside_the_results_layout_is_named(experiment: Files, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"other\.parquet: not of the form seed_<seed>/eval"):
        read_with(experiment, scores=[tmp_path / "other.parquet"])


def test_policies_scored_differently_are_not_compared(experiment: Files) -> None:
    scores, summary = experiment.scores[1], experiment.summaries[1]
    table, found = score(scores.parent / "completions.parquet", Scoring(extractor="flexible", bootstrap_draws=200))
    write_parquet(scores, table)
    write_json(summary, found)
    with pytest.raises(ValueError, match=r"differ in extractor: run the stage score again"):
        experiment.read()


def test_policies_on_different_problems_are_not_compared(experiment: Files) -> None:
    table = read_parquet(experiment.scores[1])
    write_parquet(experiment.scores[1], table.slice(0, table.num_rows - 5))
    with pytest.raises(ValueError, match=r"are of different problems: run the stage sample again"):
        experiment.read()


def test_rollouts_that_are_not_those_of_the_manifest_are_named(experiment: Files) -> None:
    (experiment.rollouts[0].parent / "step_00012.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ValueError, match=r"step_00012\.parquet is truncated .*, but .* lists it: run the stage train again"
    ):
        first_and_last(experiment.read(), 3)


def test_a_manifest_without_steps_is_refused(experiment: Files) -> None:
    write_json(experiment.rollouts[0], {"files": {}})
    with pytest.raises(ValueError, match=r"lists no steps: run the stage train again"):
        first_and_last(experiment.read(), 3)


def test_a_metric_that_was_not_recorded_is_named(experiment: Files) -> None:
    table = read_parquet(experiment.metrics[0])
    write_parquet(experiment.metrics[0], table.drop_columns(["policy/entropy"]))
    with pytest.raises(ValueError, match=r"metrics\.parquet has no column `policy/entropy`: run the stage train again"):
        _ = curves(experiment.read())["policy/entropy"]


def test_seeds_of_different_length_are_refused(tmp_path: Path) -> None:
    files = make_experiment(tmp_path, seeds=(0, 1))
    write_parquet(files.metrics[1], read_parquet(files.metrics[1]).slice(0, 5))
    with pytest.raises(ValueError, match=r"seed_1/metrics\.parquet has other steps or columns than that of seed 0"):
        curves(files.read())


def test_a_damaged_provenance_file_is_named(experiment: Files) -> None:
    from dagrpo.utils.provenance import lineage_rows

    write_json(experiment.provenance[0], {k: v for k, v in read_json(experiment.provenance[0]).items() if k != "stage"})
    with pytest.raises(ValueError, match=r"prepare\.provenance\.json has no valid field stage"):
        lineage_rows(experiment.provenance)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_summary_with_anything_in_it_is_read_or_refused_in_a_sentence(experiment: Files, data: st.DataObject) -> None:
    path = experiment.summaries[0]
    before = path.read_text()
    content = json.loads(before)
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(anything)
    path.write_text(json.dumps(data.draw(st.sampled_from([content, content, content, [], None, 3]))))
    said = refusal(lambda: read_with(experiment))
    path.write_text(before)
    assert len(said.replace(str(path.parents[5]), "")) < 500


NAMES = [name for name in NOT_IN_THE_FOLDER if isinstance(name, str)]
MANIFESTS: list[object] = [
    *([], None, 3, {}, {"files": None}, {"files": []}, {"files": {"a.parquet": None}}),
    *({"files": {name: {"sha256": "0" * 64, "bytes": 1}}} for name in NAMES),
    {"files": {"a.parquet": {"sha256": 3}}},
]


def test_a_manifest_of_rollouts_that_is_none_is_a_sentence(experiment: Files) -> None:
    inputs = experiment.read()
    for content in MANIFESTS:
        experiment.rollouts[0].write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"manifest\.json (is not valid JSON|does not list its files)") as refused:
            first_and_last(inputs, 1)
        assert str(refused.value).isprintable()
