"""A mixture of train tasks: what its jobs read, and what another ratio makes again."""

from contextlib import nullcontext
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.pipeline.changes.made_up import make_project

from dagrpo.config.overlay import changes, configuration_digest, flat, merged, with_overrides
from dagrpo.config.schema import Params, parse
from dagrpo.config.sweeps import Sweep
from dagrpo.core.errors import UserError
from dagrpo.core.experiment import as_params
from dagrpo.pipeline.changes.executions import is_current, named
from dagrpo.pipeline.dag import planned_jobs
from dagrpo.pipeline.declaration import rated_splits
from dagrpo.pipeline.dvc import recording
from dagrpo.pipeline.dvc.file import dvc_yaml
from dagrpo.pipeline.job_files import own_params, tasks_of
from dagrpo.pipeline.override_runs import cell_runs, override_run
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.validation import parse_with_tasks

BOTH = {"experiment": {"evaluate": ["arithmetic", "gsm8k"], "tasks": ["arithmetic", "gsm8k"]}}


def _params(train: object) -> Params:
    return parse(merged(Params().model_dump(), merged(BOTH, {"experiment": {"train": train}})))


def _read(params: Params) -> dict[tuple[str, ...], Any]:
    """What each stage's jobs read: parameters, and files by name."""
    files = {(job.stage, *job.wildcards.values()): job.inputs for job in planned_jobs(params, "e")}
    return {name: (own_params(params, all_stages()[name[0]]), inputs) for name, inputs in files.items()}


def test_another_ratio_is_another_job_of_sft_and_train_alone() -> None:
    one, other = (_read(_params({"gsm8k": share, "arithmetic": 0.5})) for share in (0.5, 0.25))
    assert {name[0] for name in one if one[name] != other[name]} == {"sft", "train"}


@pytest.mark.parametrize("train", ["gsm8k", ["gsm8k", "arithmetic"], {"gsm8k": 0.25, "arithmetic": 0.75}])
def test_what_the_stages_record_is_together_the_whole_of_the_parameters(train: object) -> None:
    params = _params(train)
    recorded = [own_params(params, stage) for stage in all_stages().values()]
    whole = parse(as_params(reduce(merged, recorded)))
    assert [own_params(whole, stage) for stage in all_stages().values()] == recorded
    assert whole.experiment.shares == params.experiment.shares
    given = {"experiment": {"train": params.experiment.train}}
    assert parse(merged(whole.model_dump(), given)) == params
    prepared = own_params(params, all_stages()["prepare"])
    assert parse(as_params(merged(BOTH, prepared))).experiment.train_tasks == params.experiment.train_tasks
    for tasks, read in ((list(params.experiment.train_tasks), dict), (["gsm8k", "larger"], as_params)):
        given = merged(params.model_dump(), {"experiment": {"train_tasks": tasks}})
        with pytest.raises(UserError, match=r"unknown key `experiment\.train_tasks`"):
            parse(read(given))


def test_what_is_prepared_and_rated_stays_current_with_another_ratio_and_is_recorded_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path, _params({"gsm8k": 1, "arithmetic": 1}))
    other = _params({"gsm8k": 1, "arithmetic": 3})
    jobs = {job.provenance: job for job in planned_jobs(other, other.experiment.name)}
    current = {job.stage for job in jobs.values() if is_current(job, other)}
    assert {"prepare", "difficulty"} <= current
    assert not {"sft", "train"} & current
    recorded = recording._with_the_same_dependencies([Path("results/arithmetic_tiny/runs/seed_0/policy/x")], other)
    assert [jobs[str(path)].stage for path in recorded] == ["prepare", "prepare"]


def test_a_sweep_over_ratios_keeps_to_the_tasks_of_params_yaml() -> None:
    file = _params({"gsm8k": 1, "arithmetic": 1})
    ratios = [{"arithmetic": 1, "gsm8k": 0}, {"gsm8k": 1, "arithmetic": 1}, {"gsm8k": 1, "arithmetic": 2}]
    cells = cell_runs(Sweep.model_validate({"grid": {"experiment.train": ratios}}), file)
    assert [cell.params.experiment.train for cell in cells] == ratios
    assert len({cell.run.folder for cell in cells}) == 3
    with pytest.raises(UserError, match=r"share 0, as in \{arithmetic: 1, gsm8k: 1\}"):
        cell_runs(Sweep.model_validate({"grid": {"experiment.train": ["gsm8k", "arithmetic"]}}), file)


def test_a_mixture_with_the_share_0_reads_what_the_single_task_reads_and_the_files_of_the_other_task() -> None:
    alone, mixture = _params("arithmetic"), _params({"arithmetic": 1, "gsm8k": 0})
    for stage in ("sft", "train", "difficulty"):
        one, other = (own_params(params, all_stages()[stage]) for params in (alone, mixture))
        one.get("experiment", {}).pop("train", None)
        other.get("experiment", {}).pop("train", None)
        assert one == other
    read, of_both = _read(alone), _read(mixture)
    for name, (_, inputs) in read.items():
        assert all({*paths} <= {*of_both[name][1][key]} for key, paths in inputs.items())
    (train,) = (inputs for name, (_, inputs) in of_both.items() if name[0] == "train")
    assert train["train"] == tuple(f"results/e/difficulty/{task}/train.parquet" for task in ("arithmetic", "gsm8k"))
    assert rated_splits(mixture.experiment.train, Path("x")) == {
        "arithmetic": Path("x/difficulty/arithmetic/train.parquet")
    }


def test_a_task_of_a_mixture_is_rated_by_itself_and_all_by_one_job() -> None:
    rated = [job for job in planned_jobs(_params(["gsm8k", "arithmetic"]), "e") if job.stage == "difficulty"]
    assert [job.wildcards["train"] for job in rated] == ["arithmetic", "gsm8k"]
    assert [job.inputs["train"] for job in rated] == [(f"data/e/{t}/train.parquet",) for t in ("arithmetic", "gsm8k")]
    assert all_stages()["difficulty"].spreads == ("train",)
    assert [named(job.stage, None, job.provenance) for job in rated] == ["difficulty, arithmetic", "difficulty, gsm8k"]
    assert tasks_of(_params(["gsm8k", "arithmetic"]), all_stages()["train"]) == ["arithmetic", "gsm8k"]


def test_dvc_is_given_the_same_stages_for_every_ratio_and_a_template_for_a_single_task() -> None:
    ratios = [{"gsm8k": 1, "arithmetic": 0}, {"gsm8k": 0.5, "arithmetic": 0.25}, ["gsm8k", "arithmetic"]]
    (text,) = {dvc_yaml(_params(train)) for train in ratios}
    stages = yaml.safe_load(text)["stages"]
    name = "${experiment.name}"
    for task in ("arithmetic", "gsm8k"):
        assert f"data/{name}/{task}" in stages["sft"]["deps"]
        assert {f"results/{name}/difficulty/{task}", f"data/{name}/{task}"} <= {*stages["train"]["deps"]}
        assert {f"results/{name}/difficulty/{task}": {"persist": True}} in stages["difficulty"]["outs"]
    assert dvc_yaml(_params("gsm8k")).replace("gsm8k", "") == dvc_yaml(_params("arithmetic")).replace("gsm8k", "")


def test_an_override_of_a_mixture_replaces_it_whole_whatever_the_names_of_its_tasks() -> None:
    file = _params({"arithmetic": 1, "gsm8k": 1})
    given = with_overrides({**file.model_dump(), "experiment__train": "{gsm8k: 3, arithmetic: 1e-1}"})
    run = override_run(parse(given), file)
    assert run.overrides == {"experiment.train": {"gsm8k": 3.0, "arithmetic": 0.1}}
    assert merged({"experiment": {"train": {"a": 1, "b": 1}}}, {"experiment": {"train": {"c": 1}}}) == {
        "experiment": {"train": {"c": 1}}
    }
    assert flat({"experiment": {"train": {"my_lab.capitals": 0.5}}}) == {"experiment.train": {"my_lab.capitals": 0.5}}
    assert [str(each.key) for each in changes(file.model_dump(), parse(given))] == ["experiment.train"]


def test_the_order_in_which_the_tasks_of_a_mixture_are_written_changes_nothing() -> None:
    one, other = (_params(train) for train in ({"gsm8k": 1, "arithmetic": 2}, {"arithmetic": 2, "gsm8k": 1}))
    assert configuration_digest(one) == configuration_digest(other)
    assert _read(one) == _read(other)


@pytest.mark.parametrize(
    ("recorded", "others"),
    [
        ("gsm8k", [["gsm8k"], {"gsm8k": 0.3}]),
        (["arithmetic", "gsm8k"], [["gsm8k", "arithmetic"]]),
        ({"arithmetic": 1, "gsm8k": 1}, [{"gsm8k": 0.5, "arithmetic": 0.5}, {"gsm8k": 1e-3, "arithmetic": 1e-3}]),
        ({"arithmetic": 1, "gsm8k": 2}, [{"gsm8k": 0.2, "arithmetic": 0.1}, {"gsm8k": 1e6, "arithmetic": 5e5}]),
        ({"arithmetic": 2, "gsm8k": 3}, [{"gsm8k": 0.6, "arithmetic": 0.4}]),
        ({"arithmetic": 1, "gsm8k": 0}, [{"gsm8k": 0, "arithmetic": 0.7}]),
        ({"arithmetic": 1, "gsm8k": 1 / 3}, [{"gsm8k": 1 / 3, "arithmetic": 1}]),
    ],
)
def test_mixtures_that_give_the_same_batches_are_recorded_alike(recorded: object, others: list[object]) -> None:
    known = {"experiment": BOTH["experiment"] | ({"evaluate": ["arithmetic"], "tasks": ["arithmetic", "gsm8k"]})}
    for train in (recorded, *others):
        params = parse(merged(Params().model_dump(), merged(known, {"experiment": {"train": train}})))
        for stage in ("sft", "train"):
            assert own_params(params, all_stages()[stage])["experiment"] == {"train": recorded}


@pytest.mark.parametrize(
    ("train", "reward", "mistake"),
    [
        (["arithmetic", "arithmetic_tool"], {"accuracy": {}, "tool_calls": {"weight": 0.1}}, ""),
        (["arithmetic", "arithmetic_tool"], {"tool_calls": {}}, "but arithmetic offers no tool to call"),
        (["arithmetic", "gsm8k"], {"accuracy": {}, "tool_calls": {}}, "but arithmetic offers no tool to call"),
        (
            ["arithmetic", "one_liners"],
            {"accuracy": {"weight": 0.0}, "passed_tests": {}},
            "the verifier gsm8k runs no tests",
        ),
        (["arithmetic", "one_liners"], {"accuracy": {}, "passed_tests": {}}, ""),
    ],
)
def test_a_component_may_be_for_some_tasks_of_a_mixture_unless_another_one_could_earn_nothing(
    train: list[str], reward: dict[str, Any], mistake: str
) -> None:
    experiment = {"train": train, "evaluate": ["arithmetic"], "tasks": [*{"arithmetic", *train}]}
    values = {
        "experiment": experiment,
        "reward": {"components": reward},
        "rollout": {"agent": {"name": "tool_agent", "max_turns": 3}},
    }
    with pytest.raises(UserError, match=mistake) if mistake else nullcontext():
        parse_with_tasks(values)


def test_every_task_of_a_mixture_is_checked() -> None:
    mixture = {"train": {"arithmetic": 1, "hh_rlhf": 0}, "evaluate": ["arithmetic"], "tasks": ["arithmetic", "hh_rlhf"]}
    with pytest.raises(UserError, match="accuracy, and hh_rlhf has no right answers"):
        parse_with_tasks({"experiment": mixture})


def test_an_unknown_task_of_a_mixture_is_named_with_the_nearest_one() -> None:
    for train in (["gsm9k", "arithmetic"], {"gsm9k": 0.5, "arithmetic": 0.5}):
        with pytest.raises(UserError, match="`gsm9k` is not a task: the nearest known one is `gsm8k`"):
            parse_with_tasks(merged(BOTH, {"experiment": {"train": train}}))
