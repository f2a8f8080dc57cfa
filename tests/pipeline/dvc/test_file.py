"""dvc.yaml is what the rules, the stage declarations and params.yaml say; its lists of code follow what is selected."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from tests.pipeline.snakemake import planning

from dagrpo.config.overlay import merged
from dagrpo.config.places import ROOT
from dagrpo.config.schema import Params, parse, read_params
from dagrpo.core.errors import UserError
from dagrpo.core.metrics import definition_of
from dagrpo.pipeline import runner
from dagrpo.pipeline.dag import PlannedJob, by_job, planned_jobs, stage_of
from dagrpo.pipeline.dvc import file as dvc_file
from dagrpo.pipeline.dvc.code import code_of_stage
from dagrpo.pipeline.job_files import NOT_DATA
from dagrpo.pipeline.override_runs import override_run
from dagrpo.pipeline.record import inputs_of, outputs_of, parts_of
from dagrpo.pipeline.stages import all_stages
from dagrpo.report.results import SCORE_COLUMNS


@pytest.fixture(scope="module")
def jobs() -> list[PlannedJob]:
    params = read_params(ROOT / "params.yaml")
    return planned_jobs(params, params.experiment.name)


def test_the_committed_file_is_the_generated_one() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert (ROOT / "dvc.yaml").read_text() == dvc_file.dvc_yaml(read_params(ROOT / "params.yaml"))


SEVERAL = {
    "experiment": {
        "name": "several",
        "seeds": [1, 2],
        "train": "gsm8k",
        "evaluate": ["aime_2024", "arithmetic"],
        "tasks": ["gsm8k", "aime_2024", "arithmetic"],
    },
    "training": {"evaluate_every": 2, "keep_policies": [20, 40, 60]},
    "evaluation": {"policies": ["base", "step_40", "step_20", "trained"]},
}
MIXTURE = merged(SEVERAL, {"experiment": {"train": {"gsm8k": 0.75, "arithmetic": 0.25}}})


# One of the four candidates is chosen by the one evaluated task that has validation rows.
CHOOSING = merged(MIXTURE, {"data": {"held_out_validation": 8}, "evaluation": {"choose": "best"}})


@pytest.mark.parametrize(
    ("values", "counts", "policies"),
    [(SEVERAL, (37, 37, 47), 4), (CHOOSING, (47, 47, 66), 5)],
    ids=["a task", "a mixture and a choice"],
)
def test_the_jobs_that_the_declarations_plan_are_those_that_snakemake_plans(
    values: Mapping[str, Any], counts: tuple[int, int, int], policies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    file = read_params(ROOT / "params.yaml")
    params = parse(merged(file.model_dump(), values))
    by_snakemake = {job.provenance: job for job in planning.planned_jobs(ROOT, values)}
    planned = planned_jobs(params, override_run(params, file).folder)
    jobs = by_job(planned)
    assert (len(by_snakemake), len(jobs), len(planned)) == counts
    for of_job in jobs:
        job, other = of_job[0], by_snakemake[of_job[0].provenance]
        own = {name: value for name, value in job.wildcards.items() if name not in all_stages()[job.stage].spreads}
        assert (job.stage, own) == (other.stage, other.wildcards)
        assert _of_all(part.outputs for part in of_job) == other.outputs
        data = {name: paths for name, paths in other.inputs.items() if name not in NOT_DATA}
        assert _of_all(part.inputs for part in of_job) == data
    report = planned[-1]
    assert sorted(report.inputs["lineage"]) == sorted(job.provenance for job in planned[:-1])
    assert len(report.inputs["scores"]) == 2 * 2 * policies, "every seed, evaluated task and policy"


def test_candidates_meet_the_validation_rows_and_the_chosen_one_alone_the_test_rows() -> None:
    planned = planned_jobs(parse(merged(read_params(ROOT / "params.yaml").model_dump(), CHOOSING)), "e")
    of_seed = [job for job in planned if job.wildcards.get("seed") == "1"]
    validated = [job for job in of_seed if job.stage == "validate"]
    assert [job.inputs["test"] for job in validated] == [("data/e/arithmetic/validation.parquet",)] * 4
    (choose,) = [job for job in of_seed if job.stage == "choose"]
    assert choose.inputs["completions"] == tuple(
        f"results/e/runs/seed_1/validation/arithmetic/{name}/completions.parquet"
        for name in ("step_20", "step_40", "step_60", "trained")
    )
    chosen = [job.inputs["model"] for job in of_seed if job.stage == "sample" and job.wildcards["policy"] == "chosen"]
    assert chosen == [("results/e/runs/seed_1/chosen/manifest.json",)] * 2
    assert not [path for job in of_seed for path in job.files if "/eval/" in path and "step_60" in path]


def _of_all(files: Iterable[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """Paths by name, of all parts of a job, each once."""
    joined: dict[str, dict[str, None]] = {}
    for named in files:
        for name, paths in named.items():
            joined.setdefault(name, {}).update(dict.fromkeys(paths))
    return {name: tuple(paths) for name, paths in joined.items()}


def test_the_command_line_of_a_job_that_spreads_has_each_part_with_its_own_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    file = read_params(ROOT / "params.yaml")
    params = parse(merged(file.model_dump(), SEVERAL))
    planned = {part.provenance: part for part in planned_jobs(params, override_run(params, file).folder)}
    with planning.opened(ROOT, SEVERAL) as workflow:
        lines = [job.params.arguments for job in workflow.dag.jobs if job.rule.name in ("sample", "sample_kept")]
    given = ["--job", "job.json", "--log", "x.log"]
    parts = [part for line in lines for part in parts_of(runner.parse([*given, *line.split()]))]
    assert (len(lines), len(parts)) == (2 * 3, 2 * 2 * 4), "every seed, evaluated task and policy; kept ones in one job"
    for part in parts:
        outputs = outputs_of(part)
        job = planned[str(outputs["provenance"])]
        assert outputs == {name: Path(path) for name, (path,) in job.outputs.items()}
        assert inputs_of(part) == {name: [Path(path) for path in paths] for name, paths in job.inputs.items() if paths}
        assert part.seed == int(job.wildcards["seed"])


def test_each_file_that_is_expected_of_an_experiment_is_known_by_its_stage(jobs: list[PlannedJob]) -> None:
    for job in jobs:
        assert {stage_of(path) for path in job.files} == {job.stage}
    folders = {"results/e/runs/seed_0/policy/": "train", "data/e/gsm8k/": "prepare", "results/e/report/": "report"}
    assert {path: stage_of(path) for path in folders} == folders
    assert stage_of("results/e/runs/seed_0/policy/shard-00001.safetensors") == "train"
    assert stage_of("models/e/teacher/manifest.json") == "teacher"
    assert stage_of("logs/e/train.log") is None


def test_every_job_is_one_stage_of_dvc_with_the_same_files(jobs: list[PlannedJob]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        with Repo(".") as repo:
            stages = {
                stage.addressing: (
                    {str(dep.def_path) for dep in stage.deps} - {"params.yaml"},
                    {str(out.def_path) for out in stage.outs},
                )
                for stage in repo.index.stages
            }
    assert [name for name in stages if name.startswith("check@")] == ["check@arithmetic_tiny"]
    assert len(stages) == len(jobs) + 1
    for job in jobs:
        outputs = {path for paths in job.outputs.values() for path in paths}
        owners = [name for name, (_, outs) in stages.items() if all(_covered(path, outs) for path in outputs)]
        assert len(owners) == 1, job.stage
        assert owners[0].split("@")[0].split(":")[-1] == job.stage
        deps, outs = stages[owners[0]]
        inputs = {path for paths in job.inputs.values() for path in paths}
        inputs |= set(code_of_stage(Params(), all_stages()[job.stage]))
        assert [path for path in sorted(inputs) if not _covered(path, deps)] == [], job.stage
        assert {dep for dep in deps if not _holds_one(dep, inputs)} == set(), job.stage
        assert {out for out in outs if not _holds_one(out, outputs)} == set(), job.stage


def test_each_plot_names_columns_that_the_report_writes() -> None:
    """DVC says nothing of a field that is not there: the plot is empty."""
    templates = {path.stem: json.loads(path.read_text()) for path in (ROOT / ".dvc/plots").glob("*.json")}
    written = {dvc_file.SCORES: {*SCORE_COLUMNS, "rev"}, dvc_file.CURVES: {"seed", "step", "rev"}}
    for plot in dvc_file.plots():
        ((title, said),) = plot.items()
        ((file, column),) = said["y"].items()
        assert said["title"] == title
        assert {"x_label", "y_label"} <= said.keys()
        assert {said["x"], *_fields(templates[said["template"]])} <= written[file]
        assert column in written[file] or definition_of(column) is not None


def _fields(template: object) -> set[str]:
    """The fields of a Vega-Lite template, but for those that DVC fills in."""
    if isinstance(template, list):
        return set().union(*map(_fields, template))
    if not isinstance(template, dict):
        return set()
    own = {template["field"]} if isinstance(template.get("field"), str) else set()
    return set().union({name for name in own if not name.startswith("<")}, *map(_fields, template.values()))


def _covered(path: str, by: set[str]) -> bool:
    return any(str(candidate) in by for candidate in (Path(path), *Path(path).parents))


def _holds_one(folder: str, files: set[str]) -> bool:
    return any(file == folder or file.startswith(f"{folder}/") for file in files)


def test_of_runtime_portable_arithmetic_alone_is_compared_and_only_by_stages_that_compute_with_a_model() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert "outs" not in stages.pop("check")
    keys = {key for entry in stages.values() for key in entry["params"]}
    assert [key for key in keys if key.startswith("runtime")] == ["runtime.portable_arithmetic"]
    compared = {stage.name for stage in all_stages().values() if any(k.startswith("runtime") for k in stage.reads)}
    assert compared == {"difficulty", "sample", "sample_kept", "sft", "train", "validate"}


def test_a_run_brings_dvc_yaml_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    dvc_file.keep_current(Params(), overridden=False)
    assert not list(tmp_path.iterdir()), "a project without DVC"
    whole = dvc_file.dvc_yaml(Params())
    stale = whole.replace("    - algorithm\n", "")
    assert stale != whole
    dvc_file.PATH.write_text(stale)
    dvc_file.keep_current(Params(), overridden=True)
    assert dvc_file.PATH.read_text() == stale, "what --config says is not what params.yaml says"
    dvc_file.keep_current(Params(), overridden=False)
    assert dvc_file.PATH.read_text() == whole


def test_dvc_itself_is_told_in_a_sentence_that_what_it_has_read_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "train")
    dvc_file.PATH.write_text(dvc_file.dvc_yaml(Params()))
    dvc_file.require_current(Params())  # also without links, as in a new clone
    dvc_file.PATH.write_text(dvc_file.dvc_yaml(Params()).replace("    - algorithm\n", ""))
    with pytest.raises(UserError, match=r"dvc\.yaml has other code .*`dagrpo generate`"):
        dvc_file.require_current(Params())


def test_the_checkpoint_that_a_teacher_is_taken_from_is_a_dependency_as_long_as_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    whole = dvc_file.dvc_yaml(Params())
    dvc_file.PATH.write_text(whole)
    teacher = {"source": "folder", "folder": "results/other/runs/seed_0/exported"}
    with_teacher = {"loss": {"name": "on_policy_distillation"}, "teacher": teacher}
    Path(teacher["folder"]).mkdir(parents=True)
    Path(teacher["folder"], "manifest.json").touch()
    dvc_file.keep_current(parse({"algorithm": with_teacher}), overridden=False)
    deps = yaml.safe_load(dvc_file.PATH.read_text())["stages"]["teacher"]["deps"]
    assert deps[:2] == [
        "models/${experiment.name}/${model.name}",
        "workflow/raw/results+other+runs+seed_0+exported/manifest.json",
    ]
    dvc_file.keep_current(Params(), overridden=False)
    assert dvc_file.PATH.read_text() == whole


def test_a_stage_that_spreads_has_the_files_of_each_task_and_dvc_leaves_what_it_keeps() -> None:
    stage = yaml.safe_load(dvc_file.dvc_yaml(parse(SEVERAL)))["stages"]["sample"]
    assert list(stage["matrix"]) == ["experiment", "seed", "policy"]
    names = [next(iter(out)) for out in stage["outs"]]
    assert all(out == {name: {"persist": True}} for name, out in zip(names, stage["outs"], strict=True))
    assert [name.split("/")[5] for name in names] == ["aime_2024", "arithmetic"] * 2
    data = {f"data/${{experiment.name}}/{task}" for task in ("aime_2024", "arithmetic")}
    assert {dep for dep in stage["deps"] if dep.startswith("data/")} == data


def test_kept_policies_are_one_stage_of_dvc_for_a_seed_where_there_are_any() -> None:
    stages = yaml.safe_load(dvc_file.dvc_yaml(parse(SEVERAL)))["stages"]
    kept = stages["sample_kept"]
    assert list(kept["matrix"]) == ["experiment", "seed"]
    places = [next(iter(out)).split("/")[5:7] for out in kept["outs"]]
    assert places[:4] == [[task, step] for step in ("step_20", "step_40") for task in ("aime_2024", "arithmetic")]
    assert "results/${experiment.name}/runs/seed_${item.seed}/kept" in kept["deps"]
    assert stages["score"]["matrix"]["policy"] == ["base", "step_20", "step_40", "trained"]
    assert [each["name"] for each in stages["sample"]["matrix"]["policy"]] == ["base", "trained"]
    assert "sample_kept" not in yaml.safe_load(dvc_file.dvc_yaml(Params()))["stages"]


def test_dvc_leaves_the_outputs_of_a_stage_that_reads_raw_files_until_it_replaces_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = parse({"model": {"source": "gguf", "gguf": "tiny.gguf"}})
    out = "models/${experiment.name}/${model.name}"
    assert yaml.safe_load(dvc_file.dvc_yaml(params))["stages"]["model"]["outs"] == [out]
    Path("tiny.gguf").touch()
    model = yaml.safe_load(dvc_file.dvc_yaml(params))["stages"]["model"]
    assert model["outs"] == [{out: {"persist": True}}]
    assert "workflow/raw/+/tiny.gguf" in model["deps"]
