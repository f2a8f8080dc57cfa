"""The real DAG, with the real SGLang server, on a tiny model: both engines, exactness, interruption."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyarrow.parquet import read_table
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import NAME, RUN, STEPS

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.pipeline.dvc.private import entries_of
from dagrpo.utils.files import read_json

pytestmark = pytest.mark.dag


def _is_up_to_date(folder: Path) -> None:
    assert "Nothing to be done" in clones.run(folder, "snakemake", "-n", "target")
    assert "up to date" in clones.run(folder, "dvc", "status")


@pytest.fixture(scope="module")
def changeable(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the clone that Snakemake ran in."""
    return clones.copied(run_by_snakemake, tmp_path_factory.mktemp("changeable") / "clone")


def test_dvc_takes_what_snakemake_has_done_for_done_and_every_digest_is_as_recorded(changeable: Path) -> None:
    _is_up_to_date(changeable)
    (found,) = json.loads(clones.run(changeable, "dagrpo", "status", "--json"))
    assert (found["experiment"], found["state"], found["stale"]) == (NAME, "done", [])
    assert found["made"] == found["expected"]
    verified = json.loads(clones.run(changeable, "dagrpo", "verify", NAME, "--json"))
    assert {each["state"] for each in verified} == {"whole"}
    assert f"{RUN}/rollouts/digests.parquet" in {each["path"] for each in verified}


@pytest.mark.nightly
def test_snakemake_in_one_clone_and_dvc_stopped_twice_in_another_give_the_same_bytes(
    finished: tuple[Path, Path],
) -> None:
    """SIGKILL of the trainer or its server, then of Snakemake or Ctrl-C, each at a random step."""
    by_snakemake, by_dvc = (clones.outputs(folder) for folder in finished)
    assert by_snakemake == by_dvc
    assert len(by_snakemake) > 40


@pytest.mark.nightly
def test_whichever_engine_ran_everything_the_other_has_nothing_to_do(finished: tuple[Path, Path]) -> None:
    for folder in finished:
        _is_up_to_date(folder)


def test_kept_policies_are_scored_as_the_trained_one_is_and_another_step_is_that_step_alone(
    run_by_snakemake: Path, tmp_path: Path
) -> None:
    folder = clones.copied(run_by_snakemake, tmp_path / "clone")
    before, params = clones.outputs(folder), folder / "params.yaml"
    whole, default = params.read_text(), "policies: [base, trained]"
    assert default in whole
    params.write_text(whole.replace(default, "policies: [base, step_4, step_6, trained]"))
    clones.run(folder, "snakemake", "--cores", "2", "target")
    completions = [folder / RUN / f"eval/arithmetic/step_{step}/completions.parquet" for step in (4, 6)]
    assert not read_table(completions[0]).equals(read_table(completions[1])), "one engine has answered for both"
    after = clones.outputs(folder)
    changed = {path for path, digest in before.items() if after[path] != digest}
    assert {path.split("/")[2] for path in changed} == {"report"}
    _is_up_to_date(folder)
    assert {each["state"] for each in json.loads(clones.run(folder, "dagrpo", "verify", NAME, "--json"))} == {"whole"}
    traced = clones.run(folder, "dagrpo", "lineage", f"{RUN}/eval/arithmetic/step_4/scores.json")
    assert all(f"{path} " in traced for path in (f"{RUN}/kept/manifest.json", f"data/{NAME}/arithmetic/train.parquet"))
    params.write_text(whole.replace(default, "policies: {every: 2}"))
    plan = clones.run(folder, "snakemake", "-n", "target")
    counts = dict(re.findall(r"^(\w+) +(\d+)$", plan, re.MULTILINE))
    # Step 2 is new; the scores of the others are planned after the job that could change them, and keep what they have.
    assert counts == {"sample_kept": "1", "score": "3", "report": "1", "target": "1", "total": "6"}


@pytest.mark.nightly
def test_a_policy_is_chosen_by_validation_rows_and_then_nothing_is_left_to_do(tmp_path: Path) -> None:
    folder = clones.clone(tmp_path / "clone")
    choosing = merged(clones.TINY, {"data": {"held_out_validation": 10}, "evaluation": {"choose": "best"}})
    (folder / "params.yaml").write_text(params_yaml(parse(choosing)))
    clones.run(folder, "snakemake", "--cores", "2", "target")
    run = folder / RUN
    assert sorted(path.name for path in (run / "validation/arithmetic").iterdir()) == [
        *(f"step_{step}" for step in range(2, STEPS, 2)),
        "trained",
    ]
    assert sorted(path.name for path in (run / "eval/arithmetic").iterdir()) == ["base", "chosen", "trained"]
    policy = read_json(run / "chosen/choice.json")["policy"]
    kept = read_json(run / "kept/manifest.json")["policies"].get(policy.removeprefix("step_"))
    assert policy == "trained" or read_json(run / "chosen/manifest.json")["tensors"]["digest"] == kept["digest"]
    assert "chosen - base" in (folder / f"results/{NAME}/report/summary.md").read_text()
    _is_up_to_date(folder)


def test_a_run_leaves_nothing_that_git_does_not_know(run_by_snakemake: Path) -> None:
    assert clones.run(run_by_snakemake, "git", "status", "--porcelain") == " M dvc.lock\n"


def test_an_entry_of_dvc_lock_has_no_more_than_files_and_parameters(run_by_snakemake: Path) -> None:
    entries = entries_of((run_by_snakemake / "dvc.lock").read_text())
    assert entries is not None
    code = re.compile(r"    - path: ((?:src|packages)/.+)\n(?:      .+\n)+")
    packages = {path for text in entries.values() for path in code.findall(text)}
    assert {re.sub(r"^packages/(\w+)/src/\1$|^src/dagrpo$", "a package", path) for path in packages} == {"a package"}
    sizes = sorted(len(code.sub("", text)) for text in entries.values())
    assert sum(sizes) / len(sizes) < 1500
    assert sizes[-1] < 5500, "train's: two thirds of it are parameters"


@pytest.mark.nightly
def test_an_unknown_section_is_refused_by_dvc_too_though_all_is_up_to_date(finished: tuple[Path, Path]) -> None:
    folder = finished[0]
    params = folder / "params.yaml"
    whole = params.read_text()
    params.write_text(f"{whole}\ntrainning: {{steps: 3}}\n")
    process = clones.start(folder, "dvc", "repro")
    assert process.wait(timeout=60) != 0
    said = (folder / "output.txt").read_text()
    assert "params.yaml: unknown key `trainning`: the nearest known key is `training`." in said
    (folder / "output.txt").unlink()
    params.write_text(whole)
    _is_up_to_date(folder)


def test_what_changes_only_speed_memory_or_place_runs_nothing_again(changeable: Path) -> None:
    params = changeable / "params.yaml"
    whole = params.read_text()
    faster = whole.replace("micro_batch_size: 256", "micro_batch_size: 3")
    params.write_text(faster.replace("request_timeout: 600", "request_timeout: 9"))
    assert params.read_text() not in (whole, faster)
    assert "Nothing to be done" in clones.run(changeable, "snakemake", "-n", "target")
    status = clones.run(changeable, "dvc", "status", "--json")
    assert list(json.loads(status[status.index("{") :])) == [f"check@{NAME}"], "which reads the file, and makes nothing"
    params.write_text(whole)


@pytest.mark.nightly
def test_after_a_change_of_a_parameter_and_of_code_both_engines_and_status_know_the_stages_that_run_again(
    changeable: Path,
) -> None:
    completions, code = RUN / "eval/arithmetic/base/completions.parquet", "src/dagrpo/pipeline/stages/export.py"
    before, params = (changeable / completions).stat().st_mtime_ns, changeable / "params.yaml"
    params.write_text(params.read_text().replace("bootstrap_draws: 100", "bootstrap_draws: 101"))
    with (changeable / code).open("a") as file:
        file.write("MORE = 1\n")
    (found,) = json.loads(clones.run(changeable, "dagrpo", "status", "--json"))
    assert {each["what"].partition(",")[0] for each in found["stale"]} == {"export", "score"}
    plan = clones.run(changeable, "snakemake", "-n", "target")
    assert all(f"\n{rule} " in plan for rule in ("export", "score", "report"))
    assert not any(f"\n{rule} " in plan for rule in ("prepare", "sft", "train"))
    scores = f"{RUN}/eval/arithmetic/base/scores.json"
    said = clones.run(changeable, "dagrpo", "status", "--why", scores)
    assert "evaluation.scoring.bootstrap_draws was 100 and is 101" in said
    assert "+ MORE = 1" in clones.run(changeable, "dagrpo", "status", "--why", f"{RUN}/exported")
    clones.run(changeable, "dvc", "repro")
    assert (changeable / completions).stat().st_mtime_ns == before
    _is_up_to_date(changeable)


@pytest.mark.nightly
def test_a_try_has_folders_of_its_own_and_leaves_the_experiment_as_it_was(finished: tuple[Path, Path]) -> None:
    folder = finished[1]
    lock, before = (folder / "dvc.lock").read_text(), clones.outputs(folder)
    output = clones.run(folder, "snakemake", "--cores", "all", "target", "--config", "report__completions=1")
    assert "An override run, with report.completions: 1" in output
    (results,) = (folder / "results").glob(f"{NAME}~*")
    page = (results / "report/report.html").read_text()
    assert "This is an override run, not the experiment of params.yaml: report.completions = 1." in page
    policy = f"{RUN.relative_to('results', NAME)}/policy"
    weights = [next((folder / "results" / name / policy).glob("shard-*")) for name in (NAME, results.name)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert {name: digest for name, digest in clones.outputs(folder).items() if "~" not in name} == before
    assert (folder / "dvc.lock").read_text() == lock
    _is_up_to_date(folder)


@pytest.mark.nightly
def test_what_a_try_has_made_is_versioned_when_its_values_are_written_into_the_file(
    finished: tuple[Path, Path],
) -> None:
    """The values of the try before this test, which is there still."""
    folder = finished[1]
    params = folder / "params.yaml"
    whole, page = params.read_text(), f"results/{NAME}/report/report.html"
    params.write_text(re.sub(r"completions: \d+", "completions: 1", whole))
    assert params.read_text() != whole
    before, lock = (folder / page).read_text(), (folder / "dvc.lock").read_text()
    clones.run(folder, "snakemake", "--cores", "all", "target")
    assert (folder / page).read_text() != before
    assert (folder / "dvc.lock").read_text() != lock
    made = clones.outputs(folder)
    (results,) = (folder / "results").glob(f"{NAME}~*")
    assert f"results/{results.name}" in clones.run(folder, "dagrpo", "clean", "--override-runs")
    assert clones.outputs(folder) == {name: digest for name, digest in made.items() if "~" not in name}
    _is_up_to_date(folder)


@pytest.mark.nightly
def test_dvc_runs_an_experiment_of_its_own_with_its_own_code_and_it_is_in_the_history(
    finished: tuple[Path, Path],
) -> None:
    folder = finished[1]
    template = folder / "src/dagrpo/report/template.html.j2"
    whole = template.read_text()
    template.write_text(whole.replace("<h2>Lineage</h2>", "<h2>Edited</h2>"))
    for command in (["add", "-A"], ["commit", "-q", "-m", "results"]):
        clones.run(folder, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", *command)
    before = clones.outputs(folder)
    experiment = ("dvc", "exp", "run", "--temp", "-n", "edited-page", "-S", "report.completions=2")
    clones.run(folder, "env", "DAGRPO_TRACKING=on", *experiment)
    assert clones.outputs(folder) == before
    clones.run(folder, "dvc", "exp", "apply", "edited-page")
    assert "<h2>Edited</h2>" in (folder / f"results/{NAME}/report/report.html").read_text()
    _is_up_to_date(folder)
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        names = {name for (name,) in database.execute("select value from tags where key = 'variation'")}
    assert "edited-page" in names
    clones.run(folder, "git", "checkout", "-q", "params.yaml", "dvc.lock")
    template.write_text(whole)


def _ready_to_train(finished: Path, destination: Path) -> Path:
    """A clone with everything but the policy."""
    folder = clones.clone(destination)
    for top in ("data", "models"):
        shutil.copytree(finished / top, folder / top, dirs_exist_ok=True)
    for name in (RUN / "sft", RUN / "initial", Path("results", NAME, "difficulty")):
        shutil.copytree(finished / name, folder / name)
    return folder


@pytest.mark.nightly
def test_two_processes_train_what_one_trains_also_when_one_of_them_is_killed(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    folder = _ready_to_train(finished[0], tmp_path / "two")
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("  processes: 1\n", "  processes: 2\n"))
    process = clones.start(folder, "snakemake", "--cores", "all", f"{RUN}/policy/manifest.json")
    clones.wait_for_step(folder, 3)
    second = [p for p in clones.processes(folder, "/train-") if p.environ().get("RANK") == "1"]
    assert len(second) == 1
    second[0].kill()
    assert process.wait(timeout=300) == 0, (folder / "output.txt").read_text()[-4000:]
    assert len(list((folder / RUN / "policy").glob("shard-*.safetensors"))) == 2
    assert (folder / f"logs/{NAME}/seed_3/train.rank_1.log").is_file()
    rows = [pq.read_table(clone / RUN / "metrics.parquet").to_pylist() for clone in (finished[0], folder)]
    assert [row["step"] for row in rows[1]] == list(range(1, STEPS + 1))
    for one, two in zip(*rows, strict=True):
        assert two == pytest.approx(one, rel=1e-2, abs=1e-4)


def test_the_policy_learned_from_its_own_rollouts_with_agreeing_logprobs(run_by_snakemake: Path) -> None:
    import pyarrow.parquet as pq

    metrics = pq.read_table(run_by_snakemake / RUN / "metrics.parquet").to_pylist()
    assert any(0 < row["reward/accuracy"] < 1 for row in metrics), "rewards that are all equal teach nothing"
    weights = [
        read_json(run_by_snakemake / RUN / name / "manifest.json")["tensors"]["digest"]
        for name in ("initial", "policy")
    ]
    assert weights[0] != weights[1]
    assert [row["step"] for row in metrics] == list(range(1, STEPS + 1))
    assert max(row["policy/logprob_difference_max"] for row in metrics) < 1e-4
    rollouts = read_json(run_by_snakemake / RUN / "rollouts/manifest.json")["files"]
    assert sorted(rollouts) == ["digests.parquet", *(f"step_{step:05d}.parquet" for step in range(1, STEPS + 1))]


def test_the_last_held_out_answers_are_those_of_the_evaluation_and_the_first_those_of_the_base_policy(
    run_by_snakemake: Path,
) -> None:
    import pyarrow.parquet as pq

    rows = pq.read_table(run_by_snakemake / RUN / "held_out.parquet").to_pylist()
    assert [row["step"] for row in rows] == [step for step in (0, 3, 6, STEPS) for _ in range(5)]
    assert {(row["task"], row["split"]) for row in rows} == {("arithmetic", "test")}
    for step, policy in ((0, "base"), (STEPS, "trained")):
        scores = pq.read_table(run_by_snakemake / RUN / f"eval/arithmetic/{policy}/scores.parquet").to_pylist()
        greedy = {row["problem_index"]: row for row in scores if row["sample_index"] == -1}
        for row in (row for row in rows if row["step"] == step):
            same = ("extracted", "verdict", "correct", "truncated", "completion_tokens")
            assert {name: row[name] for name in same} == {name: greedy[row["problem_index"]][name] for name in same}
    page = (run_by_snakemake / f"results/{NAME}/report/report.html").read_text()
    assert "Held-out problems during training" in page


@pytest.mark.nightly
def test_what_dvc_pulls_into_a_new_clone_is_done_for_snakemake(finished: tuple[Path, Path], tmp_path: Path) -> None:
    clones.run(finished[0], "dvc", "remote", "add", "-f", "-d", "store", str(tmp_path / "store"))
    clones.run(finished[0], "dvc", "push")
    folder = clones.clone(tmp_path / "pulled")
    shutil.copy(finished[0] / "dvc.lock", folder)
    shutil.copy(finished[0] / ".dvc/config", folder / ".dvc/config")
    clones.run(folder, "dvc", "pull")
    assert clones.outputs(folder) == clones.outputs(finished[0])
    _is_up_to_date(folder)
    assert clones.outputs(folder) == clones.outputs(finished[0])
