"""The audit of a whole experiment finds nothing, and names whatever is forged in it, digests included.

The forger writes every digest again, so that no record contradicts another one.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from tests.pipeline.conftest import run_by_snakemake
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import NAME, RUN, STEPS
from tests.trainer import runs
from transformers import PreTrainedTokenizerBase
from typer.testing import CliRunner

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.kept import open_kept
from dagrpo.checkpoints.kept import steps as kept_steps
from dagrpo.checkpoints.kept import write as write_kept
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.data.schema import to_table
from dagrpo.evaluation.sampling import SplitAttempts, attempt_unseen
from dagrpo.evaluation.sampling import read_prompts as read_evaluation_prompts
from dagrpo.models.fresh import make_fresh
from dagrpo.pipeline.changes.executions import read_record
from dagrpo.pipeline.dag import planned_jobs
from dagrpo.pipeline.stages.sample import attempts_of
from dagrpo.rollout.build_table import rollout_table
from dagrpo.rollout.sampling import Sampling, sampling_seed
from dagrpo.tools import TOOLS, CallContext, StatelessTool
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun, files_in, step_file
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.setup import open_sampler, read_prompts
from dagrpo.trainer.state.digest_table import FILE
from dagrpo.utils.distributed import single_process
from dagrpo.utils.files import read_json, sha256_of, write_json
from dagrpo.utils.manifest import MANIFEST, entry_of
from dagrpo.utils.portable import VARIABLES
from dagrpo.utils.provenance import PROVENANCE, provenances_of
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_publish.cards import Publication, model_card
from dagrpo_publish.crate.finished import Finished, read_finished
from dagrpo_publish.crate.writing import metadata
from dagrpo_replay import command
from dagrpo_replay.audit.checks import Asked, Check, State, figures, naming_errors
from dagrpo_replay.audit.command import audit, check_run
from dagrpo_replay.audit.engine import deriving_engine, open_teacher_engine
from dagrpo_replay.audit.run import Audited, audited, check_chain, check_steps, write_results
from dagrpo_replay.audit.stages import check_evaluations, check_files, check_records, check_stages, jobs_again
from dagrpo_replay.command import restart_portably
from dagrpo_replay.half_steps import rows_with_advantages
from dagrpo_replay.recomputation import Recomputation
from dagrpo_replay.recorded_run import read_run, unfinished

__all__ = ["run_by_snakemake"]
pytestmark = pytest.mark.dag
SEED = 3
Rows = list[dict[str, Any]]
EVALUATION = RUN / "eval/arithmetic/trained"


@pytest.fixture
def experiment(run_by_snakemake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The shared run's data, models and results, by hard links: a forger replaces files."""
    for name in ("data", "models", "results"):
        shutil.copytree(run_by_snakemake / name, tmp_path / name, copy_function=os.link)
    shutil.copytree(run_by_snakemake / ".state/jobs", tmp_path / ".state/jobs", copy_function=os.link)
    (tmp_path / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    torch.use_deterministic_algorithms(False)


def _forge(path: Path, change: Callable[[Rows], Rows]) -> None:
    """Change the rows of a table, then write the digests of all records again."""
    table = read_parquet(path)
    path.unlink()
    write_parquet(path, pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema))
    _seal()


def _seal() -> None:
    rollouts = RUN / "rollouts"
    files = {path.name: entry_of(path) for path in sorted(rollouts.glob("*.parquet"))}
    _write(rollouts / MANIFEST, {"files": {n: {"bytes": e.bytes, "sha256": e.sha256} for n, e in files.items()}})
    for provenance in provenances_of(NAME):
        record = read_json(provenance)
        for part in ("inputs", "outputs"):
            record[part] |= {path: sha256_of(Path(path)) for path in record[part] if Path(path).is_file()}
        _write(provenance, record)


def _write(path: Path, content: Any) -> None:
    path.unlink()
    write_json(path, content)


def _asked(tmp_path: Path, *steps: int) -> Asked:
    return Asked(share=1.0, steps=steps, dice=random.Random(0), states=False, sft=False, scratch=tmp_path / "scratch")


def _trained(tmp_path: Path, *steps: int) -> dict[str, Check]:
    """The checks of the training by what they check; those of the newest step."""
    done = check_run(read_finished(NAME), SEED, _asked(tmp_path, *steps))
    return {check.what: check for check in naming_errors("train", done)}


def _differing(checks: Mapping[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.state is State.DIFFERS}


def test_nothing_differs_in_a_run_that_nobody_has_touched(experiment: Path) -> None:
    app = typer.Typer()
    app.command()(audit)
    done = CliRunner().invoke(
        app, [NAME, "--steps", f"2, {STEPS}", "--seed", str(SEED), "--draw", "a b", "--json"], catch_exceptions=False
    )
    assert not list(Path(".state/audits").glob("dagrpo-audit-*")), "what was made again"
    checks = [Check(**each) for each in json.loads(done.output)]
    assert [check for check in checks if check.state == "differs"] == []
    assert done.exit_code == 0
    tokens = [check for check in checks if check.what == "tokens"]
    assert {check.state for check in tokens} == {"equal"}
    assert len(tokens) == 4, "of two steps and two evaluations"
    made_again = {check.where for check in checks if (check.what, check.state) == ("made again", "equal")}
    assert {"prepare, arithmetic", f"convert, seed {SEED}", f"score, seed {SEED}, arithmetic, trained"} <= made_again
    assert "report" in {where.partition(",")[0] for where in made_again}
    by_name = {check.what: check.state for check in checks}
    kept = [f"kept policy of step {step}" for step in kept_steps(RUN / "kept")]
    own = ("problems and seeds", "gradients and weights", "trained policy", *kept)
    assert {by_name[name] for name in own} == {"equal"}
    record = read_json(Path(f".state/audits/{NAME}.json"))
    assert record["result"].startswith(f"dagrpo audit {NAME} --steps 2,{STEPS} --seed {SEED} --draw 'a b': ")
    assert f"train, seed {SEED}, held_out.parquet" in record["result"]
    finished = read_finished(NAME)
    published = Publication(
        finished=finished, seed=SEED, name="p", organisation=None, license=None, with_rollouts=False
    )
    assert f"Audited: `{record['result']}`" in model_card(published)
    assert record["result"] in str(metadata(finished, {}, {}))
    _forge(RUN / "rollouts" / step_file(1), lambda rows: rows[::-1])
    assert read_finished(NAME).audit == "", "it was of other records"


def test_an_audit_does_without_the_package_that_only_machines_without_a_gpu_have() -> None:
    program = "import sys; sys.modules['dagrpo_sglang_cpu'] = None; import dagrpo_replay.audit.stages"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("character", ["`", "\n", "\x1b"])
def test_a_draw_that_would_end_the_quoted_command_is_refused(character: str) -> None:
    with pytest.raises(UserError, match="--draw has a backtick"):
        audit(NAME, draw=f"a{character}b")


def test_a_portable_audit_starts_again_with_the_variables_that_numpy_reads_when_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = list[tuple[str, list[str], dict[str, str]]]()
    monkeypatch.setattr(os, "execve", lambda *started_with: started.append(started_with))
    monkeypatch.setattr(command, "has_avx2", lambda: True)
    restart_portably(True)  # of a program that is not dagrpo
    monkeypatch.setattr(sys, "argv", ["bin/dagrpo", "audit", NAME])
    restart_portably(False)
    assert not started
    restart_portably(True)
    ((program, arguments, environment),) = started
    assert (program, arguments) == (sys.executable, [sys.executable, "-P", "-m", "dagrpo", "audit", NAME])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert VARIABLES.items() <= os.environ.items()
    restart_portably(True)
    assert len(started) == 1


def _other_token(rows: Rows) -> Rows:
    ids = rows[5]["completion_ids"]
    ids[0] = ids[0] + 1 if ids[0] + 1 != ids[-1] else ids[0] + 2
    return rows


def _other_seed(rows: Rows) -> Rows:
    rows[5]["sampling_seed"] += 1
    return rows


def _best_of_the_group(rows: Rows) -> Rows:
    """The completion of another sample in the place of the sixth, as if it had been the best of several."""
    kept = ("sample_index", "sampling_seed")
    other = next(row for row in rows if row["completion_ids"] != rows[5]["completion_ids"])
    prompt = ("problem_index", "prompt", "prompt_ids", "question", "ground_truth")
    rows[5] = other | {name: rows[5][name] for name in (*kept, *prompt)}
    return rows


def _higher_reward(rows: Rows) -> Rows:
    rows[5]["reward"] = 1.0 - rows[5]["reward"]
    return rows


def _without_a_group(rows: Rows) -> Rows:
    return rows[:4] + rows[8:]


def _swapped_prompt(rows: Rows) -> Rows:
    names = ("problem_index", "prompt", "prompt_ids", "question", "ground_truth")
    return [*({**row, **{name: rows[-1][name] for name in names}} for row in rows[:4]), *rows[4:]]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_other_token, "tokens"),
        (_other_seed, "problems and seeds"),
        (_best_of_the_group, "tokens"),
        (_higher_reward, "rewards"),
        (_without_a_group, "problems and seeds"),
        (lambda rows: [], "files"),
        (_swapped_prompt, "problems and seeds"),
    ],
)
def test_a_forged_attempt_is_named(
    change: Callable[[Rows], Rows], found: str, experiment: Path, tmp_path: Path
) -> None:
    _forge(RUN / "rollouts" / step_file(1), change)
    checks = _trained(tmp_path, 1)
    assert found in _differing(checks)
    assert any("row 5 " in each or "step 1" in each or "IndexError" in each for each in checks[found].faults)


def _one(tmp_path: Path) -> Audited:
    recorded = replace(read_run(RUN), state=tmp_path / "none")
    return audited(recorded, read_record(RUN / "policy" / PROVENANCE), tmp_path / "scratch")


@pytest.mark.parametrize(("updates", "found"), [(0, {"tokens"}), (1, set()), (2, {"tokens"})])
def test_attempts_of_older_or_newer_weights_are_named(
    updates: int, found: set[str], experiment: Path, tmp_path: Path
) -> None:
    """Step 2, sampled again from the weights after so many updates: those after the first one give what the server gave."""
    one = _one(tmp_path)
    recomputation = Recomputation(one.recorded, single_process())
    assert not [each for each in recomputation.up_to(updates) if each.difference]
    before = read_parquet(one.recorded.table(2))
    with GatheredWeights(recomputation.policy.model, torch.float32, single_process()).reading() as tensors:
        engine = deriving_engine(one.run.initial, tensors, dtype="float32", head_dtype=None, version="step_1")
    drawn = PromptSampler(one.prompts, one.run.training, SEED, finished=1)
    others = (engine.as_engine, open_teacher_engine, drawn)
    with open_sampler(one.run, one.tokenizer, one.prompts, *others, first=1) as sampler:
        rollouts = sampler.sample(1, Clock())
    update = recomputation.policy.policy_update(one.recorded.digests[2].computed.budget)
    forged = rows_with_advantages(rollouts, update)
    assert (forged["completion_ids"] == before["completion_ids"]) == (not found)
    _forge(one.recorded.table(2), lambda rows: [{**row, "weight_version": "step_1"} for row in forged.to_pylist()])
    checks = _trained(tmp_path, 2)
    assert {"tokens"} & _differing(checks) == found


def test_a_step_that_was_left_out_is_named(experiment: Path, tmp_path: Path) -> None:
    """The fourth: tables, digests, metrics and the parameter say that there were seven."""

    def without(rows: Rows) -> Rows:
        return [{**row, "step": row["step"] - (row["step"] > 4)} for row in rows if row["step"] != 4]

    for name in ("metrics.parquet", f"rollouts/{FILE}"):
        _forge(RUN / name, without)
    for step in range(4, STEPS):
        path = RUN / "rollouts" / step_file(step)
        os.replace(path.with_name(step_file(step + 1)), path)
        _forge(path, lambda rows: [{**row, "step": row["step"] - 1} for row in rows])
    provenance = RUN / "policy" / PROVENANCE
    record = read_json(provenance)
    record["params"]["training"]["steps"] = STEPS - 1
    _write(provenance, record)
    faults = _trained(tmp_path, 1)["problems and seeds"].faults
    assert "step 4 has the seeds of step 5: a step was left out" in faults


@pytest.mark.parametrize(
    ("share", "arithmetic", "state"),
    [
        (1e-5, None, State.DIFFERS),
        (1e-5, "another processor", State.WITHIN),
        (1e-2, "another processor", State.DIFFERS),
    ],
)
def test_a_policy_is_within_rounding_only_if_the_run_names_another_processor(
    share: float, arithmetic: str | None, state: State, experiment: Path, tmp_path: Path
) -> None:
    """share: of the distance from the initial checkpoint."""
    (path,) = (RUN / "policy").glob("*.safetensors")
    tensors, initial = load_file(path), open_tensors(RUN / "initial")
    forged = {name: each + share * (each - initial.read(name)) for name, each in tensors.items()}
    path.unlink()
    save_file(forged, path)
    provenance = RUN / "policy" / PROVENANCE
    record = read_json(provenance)
    record["environment"] |= {} if arithmetic is None else {"arithmetic": arithmetic}
    _write(provenance, record)
    _seal()
    found = _trained(tmp_path, STEPS)
    assert found["trained policy"].state is state
    assert found["gradients and weights"].state is State.EQUAL


def _changed_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = read_json(path)
    change(content)
    _write(path, content)
    _seal()


@pytest.mark.parametrize(
    ("path", "change", "found"),
    [
        ("scores.json", lambda scores: scores["greedy"].update(value=1.0), "score"),
        ("scores.json", lambda scores: scores["mean_at_k"].update(low=0.9), "score"),
        ("scores.parquet", lambda rows: [{**row, "correct": True} for row in rows], "score"),
    ],
)
def test_a_changed_score_or_interval_is_named(
    path: str, change: Any, found: str, experiment: Path, tmp_path: Path
) -> None:
    (_changed_json if path.endswith("json") else _forge)(EVALUATION / path, change)
    assert f"{EVALUATION / path} is not what" in _made_again(tmp_path, found)


@pytest.mark.parametrize("split", ["test", "train"])
def test_a_changed_row_is_named(split: str, experiment: Path, tmp_path: Path) -> None:
    path = Path(f"data/{NAME}/arithmetic/{split}.parquet")
    other = {"reward_model": {"style": "rule", "ground_truth": "99"}}
    _forge(path, lambda rows: [rows[0] | other, *rows[1:]])
    assert f"{path} is not what prepare, arithmetic makes" in _made_again(tmp_path, "prepare")


def _made_again(tmp_path: Path, stage: str) -> str:
    """The faults of the stages that are run again; those of the other stages must have none."""
    checks = [*check_stages(read_finished(NAME), _asked(tmp_path))]
    faults = {check.where: check.faults for check in checks if check.faults}
    assert any(where.startswith(stage) for where in faults)
    return "".join(each for own in faults.values() for each in own)


def test_a_completion_of_an_evaluation_that_the_checkpoint_did_not_draw_is_named(
    experiment: Path, tmp_path: Path
) -> None:
    _forge(EVALUATION / "completions.parquet", _other_token)
    checks = check_evaluations(read_finished(NAME), (SEED,), _asked(tmp_path))
    tokens = [check for check in checks if check.what == "tokens"]
    assert [check.state for check in tokens] == [State.EQUAL, State.DIFFERS]
    assert "row 5 " in tokens[1].faults[0]


@pytest.fixture
def chosen(experiment: Path, tmp_path: Path) -> Finished:
    """The experiment as if it had chosen: completions of the policy after step 4 are drawn from it, and the trained one is chosen."""
    shutil.copytree(RUN / "exported", RUN / "chosen")
    shutil.copytree(EVALUATION, EVALUATION.with_name("chosen"))
    changes = {
        "data": {"held_out_validation": 8},
        "training": {"keep_policies": [4]},
        "evaluation": {"policies": ["base", "step_4", "trained"], "choose": "best"},
    }
    params = parse(merged(clones.TINY, changes))
    finished, sampled = read_finished(NAME), read_record(EVALUATION / "completions.provenance.json")
    records = {str(each.provenance): each for each in finished.records}
    for plan in planned_jobs(params, NAME):
        own = replace(sampled, provenance=Path(plan.provenance), stage=plan.stage)
        records.setdefault(plan.provenance, own)
    validation = Path(f"data/{NAME}/arithmetic/validation.parquet")
    validation.unlink()
    write_parquet(validation, read_parquet(validation.with_name("test.parquet"))[:4])
    finished = replace(finished, params=params, records=tuple(records.values()))
    for _, plan, job in jobs_again(finished, tmp_path / "chosen"):
        if plan.stage in ("sample_kept", "validate"):
            attempts = replace(attempts_of(job), seeds=(1000, SEED))
            is_kept = "step_4" in plan.provenance
            tensors = open_kept(RUN / "kept", RUN / "initial", 4) if is_kept else open_tensors(RUN / "exported")
            engine = deriving_engine(attempts.model, tensors, dtype="float32", head_dtype=None, version="x")
            tokenizer = load_tokenizer(attempts.model)
            path = Path(plan.outputs["completions"][0])
            path.parent.mkdir(parents=True, exist_ok=True)
            prompts = read_evaluation_prompts(attempts, tokenizer)
            write_parquet(
                path, rollout_table(attempt_unseen(prompts, attempts, engine.as_engine, tokenizer, what="kept"))
            )
    return finished


@pytest.mark.parametrize(
    ("forged", "found"),
    [
        (None, None),
        ("validation/arithmetic/step_4", "validate"),
        ("validation/arithmetic/trained", "validate"),
        ("eval/arithmetic/step_4", "sample_kept"),
    ],
)
def test_completions_of_kept_policies_are_derived(
    forged: str | None, found: str | None, chosen: Finished, tmp_path: Path
) -> None:
    if forged is not None:
        _forge(RUN / forged / "completions.parquet", _other_token)
    checks = [*naming_errors("evaluations", check_evaluations(chosen, (SEED,), _asked(tmp_path)))]
    tokens = {check.where: check.state for check in checks if check.what == "tokens"}
    assert len(tokens) == 6
    differing = {check.where for check in checks if check.state is State.DIFFERS}
    assert differing == (set() if found is None else {f"{found}, seed {SEED}, arithmetic, {Path(str(forged)).name}"})


def _forge_kept(step: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the weights of a kept policy, and keep the later ones."""
    kept, initial, again = RUN / "kept", RUN / "initial", Path("again")
    for each in kept_steps(kept):
        tensors = open_kept(kept, initial, each)
        forged = {name: change(tensors.read(name)) if each == step else tensors.read(name) for name in tensors.specs}
        write_kept(again, initial, each, StateTensors(forged))
    shutil.rmtree(kept)
    again.rename(kept)
    _seal()


@pytest.mark.parametrize("change", [torch.randn_like, lambda tensor: tensor * (1 + 2e-7), lambda tensor: tensor.half()])
def test_a_forged_kept_policy_is_named(
    change: Callable[[torch.Tensor], torch.Tensor], experiment: Path, tmp_path: Path
) -> None:
    _forge_kept(2, change)
    checks = _trained(tmp_path, 3)
    assert _differing(checks) == {"kept policy of step 2"}
    later = ", ".join(map(str, kept_steps(RUN / "kept")[1:]))
    assert checks[f"kept policies of steps {later}"].state is State.UNCHECKED


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(stage="train"),
        lambda record: record.update(seed=SEED + 1),
        lambda record: record.update(outputs={f"{path}.honest": d for path, d in record["outputs"].items()}),
        lambda record: record["inputs"].popitem(),
        lambda record: record["params"]["evaluation"]["sampling"].pop("temperature"),
    ],
)
def test_a_record_of_another_job_or_of_other_files_is_named(
    change: Callable[[dict[str, Any]], None], experiment: Path
) -> None:
    _changed_json(provenance := EVALUATION / "completions.provenance.json", change)
    assert str(provenance) in check_records(read_finished(NAME)).faults[0]


def test_the_completions_that_were_scored_are_audited(experiment: Path, tmp_path: Path) -> None:
    """And not those that their record names, nor those of which it says that no stage of sampling made them."""
    _forge(EVALUATION / "completions.parquet", _other_token)
    for change in ({"outputs": {f"{EVALUATION}/honest.parquet": ""}}, {"stage": "train"}):
        _changed_json(EVALUATION / "completions.provenance.json", lambda record: record.update(change))  # noqa: B023
    checks = check_evaluations(read_finished(NAME), (SEED,), _asked(tmp_path))
    assert [check.state for check in checks if check.what == "tokens"] == [State.EQUAL, State.DIFFERS]


def test_the_seeds_of_all_attempts_of_an_evaluation_are_derived(experiment: Path, tmp_path: Path) -> None:
    """Of problems that are not drawn, too."""
    _forge(EVALUATION / "completions.parquet", _other_seed)
    checks = check_evaluations(read_finished(NAME), (SEED,), replace(_asked(tmp_path), share=0.0))
    due = [check for check in checks if check.what == "problems and seeds"]
    assert [check.state for check in due] == [State.EQUAL, State.DIFFERS]
    assert "row 5 " in due[1].faults[0]


def test_another_chat_template_beside_the_trained_weights_is_named(experiment: Path, tmp_path: Path) -> None:
    template = RUN / "policy/chat_template.jinja"
    text = template.read_text()
    template.unlink()
    template.write_text("The answer is 42." + text)
    manifest = read_json(RUN / "policy" / MANIFEST)
    manifest["files"][template.name] = asdict(entry_of(template))
    _write(RUN / "policy" / MANIFEST, manifest)
    _seal()
    assert next(check_files(_one(tmp_path))).faults == (f"{template} is not the initial checkpoint's",)


def test_a_tokenizer_file_that_no_manifest_lists_is_named(experiment: Path, tmp_path: Path) -> None:
    (RUN / "exported/added_tokens.json").write_text("{}")
    checks = [*naming_errors("", check_evaluations(read_finished(NAME), (SEED,), _asked(tmp_path)))]
    assert "added_tokens.json is not in" in checks[-1].faults[0]


def test_a_group_that_was_discarded_without_dynamic_sampling_is_named(experiment: Path, tmp_path: Path) -> None:
    one = _one(tmp_path)
    sampler = PromptSampler(one.prompts, one.run.training, SEED, finished=STEPS - 1)
    prompt = sampler.draw({"arithmetic": 9}, STEPS - 1)[-1].prompt

    def with_a_group(rows: Rows) -> Rows:
        own = {"problem_index": prompt.index, "question": prompt.row.question, "ground_truth": prompt.row.ground_truth}
        seeds = [sampling_seed(SEED, "rollout", STEPS - 1, 8, sample) for sample in range(4)]
        more = [own | {"sampling_seed": seed, "discarded": True} for seed in seeds]
        return rows + [row | new for row, new in zip(rows[:4], more, strict=True)]

    _forge(one.recorded.table(STEPS), with_a_group)
    checks, _ = check_chain(_one(tmp_path))
    assert [check.faults for check in checks] == [
        (),
        (f"step {STEPS}: 32 of 36 attempts are learned from, and 8 groups of 4 are due",),
    ]


def test_a_second_row_of_a_step_in_the_metrics_is_named(experiment: Path, tmp_path: Path) -> None:
    """The report draws it, and the one that is compared is the last."""
    _forge(RUN / "metrics.parquet", lambda rows: [rows[0] | {"reward/mean": 1.0}, *rows])
    assert "metrics.parquet 1, 1, 2, ... (9)" in check_chain(_one(tmp_path))[0][0].faults[0]


def test_a_table_that_makes_a_library_fail_is_named(experiment: Path, tmp_path: Path) -> None:
    table = read_parquet(RUN / "metrics.parquet").drop_columns(["step"])
    (RUN / "metrics.parquet").unlink()
    write_parquet(RUN / "metrics.parquet", table)
    _seal()
    assert "KeyError" in _trained(tmp_path, 1)["files"].faults[0]


@pytest.mark.parametrize(
    "agent",
    [
        {"name": "program", "command": ["touch", "forged"]},
        {"name": "environment", "environment": "forged:Environment"},
    ],
)
def test_code_and_commands_of_the_author_are_refused(
    agent: dict[str, Any], experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(experiment)
    Path("forged.py").write_text("open('forged', 'w')\n")
    for provenance in provenances_of(NAME):
        record = read_json(provenance)
        if "agent" in record["params"].get("rollout", {}):
            record["params"]["rollout"]["agent"] = agent
            _write(provenance, record)
    app = typer.Typer()
    app.command()(audit)
    with pytest.raises(UserError, match="--trusted"):
        CliRunner().invoke(app, [NAME], catch_exceptions=False)
    assert not Path("forged").exists()


def test_no_number_is_near_an_infinite_one() -> None:
    assert figures("", "", {"loss": 1.0}, {"loss": float("inf")}).state is State.DIFFERS


def _audited_world(run: TrainingRun, tmp_path: Path) -> Audited:
    """A run of a scripted engine, whose tables the test may write again."""
    recorded = replace(unfinished(run.policy.parent, run.state), state=tmp_path / "none")
    tokenizer = load_tokenizer(run.initial)
    return Audited(
        recorded=recorded,
        run=replace(run, **files_in(tmp_path / "scratch")),
        tokenizer=tokenizer,
        prompts=read_prompts(run, tokenizer),
        metrics={row["step"]: row for row in read_parquet(run.metrics).to_pylist()},
    )


def test_problems_that_are_drawn_in_vain_are_those_due(tmp_path: Path) -> None:
    run = runs.training_run(runs.make_inputs(tmp_path), tmp_path / "state", tmp_path, steps=3, save_every=1)
    sizes = {"steps": 3, "prompts_per_step": 2, "samples_per_prompt": 2, "learning_rate": 1e-2, "retire_at": 0.9}
    more = {"dynamic_sampling": {"oversampling": 1.4, "max_rounds": 2}}
    run = replace(run, training=Training.model_validate(sizes | more))
    runs.execute(run)
    checks, states = check_chain(_audited_world(run, tmp_path))
    assert [check.state for check in checks] == [State.EQUAL, State.EQUAL]
    assert states[1]["position"] == 0 < states[2]["position"] < states[3]["position"]
    one = _audited_world(run, tmp_path)
    forged = replace(one, run=replace(one.run, training=Training.model_validate(sizes)))
    assert "groups of 2 are due" in check_chain(forged)[0][1].faults[0], "without dynamic sampling nothing is discarded"


@pytest.mark.parametrize("dynamic", [{}, {"oversampling": 1.4, "max_rounds": 2}], ids=["exact", "dynamic sampling"])
def test_the_draws_of_a_mixture_are_those_due(dynamic: dict[str, Any], tmp_path: Path) -> None:
    initial, split = runs.make_inputs(tmp_path)
    run = runs.training_run((initial, split), tmp_path / "state", tmp_path, steps=3, save_every=1)
    write_parquet(tmp_path / "b.parquet", to_table([replace(runs.task_row(n), task="b") for n in range(10, 16)]))
    sizes = {"steps": 3, "prompts_per_step": 4, "samples_per_prompt": 2, "dynamic_sampling": dynamic}
    run = replace(
        run,
        training=Training.model_validate(sizes),
        train_splits={"arithmetic": split, "b": tmp_path / "b.parquet"},
        shares={"arithmetic": 0.75, "b": 0.25},
    )
    runs.execute(run)
    one = _audited_world(run, tmp_path)
    checks, states = check_chain(one)
    assert [check.state for check in checks] == [State.EQUAL, State.EQUAL]
    assert states[3]["tasks"]["b"]["position"] >= 2
    halves = replace(one, run=replace(one.run, shares={"arithmetic": 0.5, "b": 0.5}))
    assert (
        "(3 groups of arithmetic where 2 are due, 1 groups of b where 2 are due)" in check_chain(halves)[0][1].faults[0]
    )
    table = read_parquet(one.recorded.table(2))
    drawn = table["problem_index"].to_pylist()
    others = [*range(10, 16)] if drawn[0] >= 10 else [*range(10)]
    instead = next(index for index in others if index not in drawn)
    changed = [instead if index == drawn[0] else index for index in drawn]
    place = table.column_names.index("problem_index")
    write_parquet(one.recorded.table(2), table.set_column(place, "problem_index", pa.array(changed, pa.int64())))
    assert f"problem_index is {instead}, and {drawn[0]} is due" in check_chain(one)[0][1].faults[0]


class CallingEngine(runs.ScriptedEngine):
    """Calls the calculator, then writes what it is told."""

    tokenizer: PreTrainedTokenizerBase

    def _completion(self, request: SamplingRequest) -> Completion:
        expression = f"{request.seed}-{request.seed}+42"  # samples of a problem have to differ
        call = f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
        written = self.tokenizer.decode(request.input_ids)
        text = "42" if "calculator" in written else call
        tokens = (*self.tokenizer.encode(text), self.tokenizer.eos_token_id)[: request.max_new_tokens]
        scored = ScoringRequest(token_ids=(*request.input_ids, *tokens), first=len(request.input_ids))
        return Completion(
            token_ids=tokens,
            logprobs=self._scores(scored),
            finish_reason="stop",
            weight_version=self.version,
        )


@pytest.fixture(scope="module")
def run_with_a_tool(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Two steps of an engine whose every attempt calls the calculator once."""
    folder = tmp_path_factory.mktemp("tool")
    shape = runs.SHAPE.model_copy(update={"tools": ["calculator"], "max_position_embeddings": 512})
    make_fresh(folder / "model", shape, torch.float32)
    convert(folder / "model", folder / "initial", Checkpoint())
    rows = [replace(runs.task_row(number), tools=("calculator",)) for number in range(8)]
    write_parquet(folder / "train.parquet", to_table(rows))
    CallingEngine.tokenizer = load_tokenizer(folder / "initial")
    inputs = (folder / "initial", folder / "train.parquet")
    run = runs.training_run(inputs, folder / "state", folder, steps=1, save_every=1)
    run = replace(run, rollout=run.rollout.model_copy(update={"max_new_tokens": 120}))
    runs.execute(run, CallingEngine)
    return run


@pytest.mark.parametrize("repeatable", [True, False])
def test_an_edited_result_of_a_tool_is_named_or_said_to_be_input(
    repeatable: bool, run_with_a_tool: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an engine that draws by no seed, so that the tokens are named in any case."""
    run, kind = run_with_a_tool, TOOLS.get("calculator")
    if not repeatable:
        kind = replace(kind, repeatable=lambda config: False, open=lambda config, place: pytest.fail("it must not run"))
    monkeypatch.setattr(TOOLS, "get", lambda name: kind)
    one = _audited_world(run, tmp_path)
    recorded = replace(one.recorded, rollouts=tmp_path)
    one = replace(one, recorded=recorded)
    table = read_parquet(run.rollouts.with_name(step_file(1)))
    found = {}
    for result in ("42", "43", "left out"):
        rows = table.to_pylist()
        assert [call["result"] for call in rows[0]["calls"]] == ["42"]
        rows[0]["calls"][0]["result"] = result
        rows[0]["calls"] = [] if result == "left out" else rows[0]["calls"]
        write_parquet(recorded.table(1), pa.Table.from_pylist(rows, schema=table.schema))
        checks = {check.what: check for check in check_steps(one, [1], {}, single_process())}
        assert "tokens" in _differing(checks)
        assert checks["gradients and weights"].state is State.EQUAL
        found[result] = checks["results of tools"]
    torch.use_deterministic_algorithms(False)
    assert _differing(checks) == {
        "tokens",
        "results of tools",
        *(() if repeatable else ("conversations", "advantages", "metrics")),
    }
    assert found["42"].state is State.EQUAL
    assert found["43"].state is (State.DIFFERS if repeatable else State.EQUAL)
    assert found["43"].note == ("" if repeatable else "16 are input: their tools give other results each time")


class LongTool(StatelessTool):
    """Gives results that are cut."""

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        return "42" * 30


def test_attempts_of_an_evaluation_are_derived_from_recorded_results_of_tools_that_must_not_run(
    run_with_a_tool: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, kind = run_with_a_tool, replace(TOOLS.get("calculator"), repeatable=lambda config: False)
    kind = replace(kind, open=lambda config, place: nullcontext(LongTool()))
    agent = run.rollout.agent.model_copy(update={"max_result_characters": 16})
    attempts = SplitAttempts(
        model=run.initial,
        split=run.train_splits["arithmetic"],
        conversation=run.rollout.model_copy(update={"agent": agent}),
        sampling=Sampling(
            samples=2, greedy=True, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=120, lockstep=True
        ),
        seeds=(0, SEED),
        engine=run.runtime.engine,
        dtype="float32",
        server_log=tmp_path / "log",
        agent_folder=tmp_path / "live",
    )
    tokenizer = load_tokenizer(run.initial)
    prompts = read_evaluation_prompts(attempts, tokenizer)[2:4]
    monkeypatch.setattr(TOOLS, "get", lambda name: kind)
    engine = CallingEngine(run.initial, [])
    engine.fill(open_tensors(run.initial))
    live = rollout_table(attempt_unseen(prompts, attempts, engine, tokenizer, what="live"))
    assert {call["result"] for calls in live["calls"].to_pylist() for call in calls} == {
        "42424242[44 characters left out]42424242"
    }

    kind = replace(kind, open=lambda config, place: pytest.fail("it must not run"))
    again = replace(attempts, replays=True, agent_folder=tmp_path / "again")
    assert write_results(live.to_pylist(), 3, prompts, again.conversation, again.agent_folder) == live.num_rows == 6
    assert rollout_table(attempt_unseen(prompts, again, engine, tokenizer, what="again")).equals(live)
