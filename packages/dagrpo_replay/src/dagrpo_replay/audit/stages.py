"""Audit of the stages around training, and of evaluations."""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.checkpoints.folder import ADAPTER, auxiliary_files, copy_auxiliary, set_config_dtype
from dagrpo.checkpoints.kept import open_kept
from dagrpo.checkpoints.manifest import verify, verify_listing
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.config.schema import Params
from dagrpo.core.trajectory import BLIND
from dagrpo.evaluation.config import STEP
from dagrpo.evaluation.sampling import attempt_unseen, read_prompts, require_samplable
from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.pipeline.dag import PlannedJob, planned_jobs
from dagrpo.pipeline.declaration import PROVENANCE_OUTPUT, RAW, Job, threads_of
from dagrpo.pipeline.identity import code_digest
from dagrpo.pipeline.job_files import code_files, own_params
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.stages.sample import attempts_of
from dagrpo.rollout.build_table import rollout_table
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.rollout.table import ROLLOUTS, read_table
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.distributed import single_process
from dagrpo.utils.files import sha256_of
from dagrpo_publish.crate.finished import Finished
from dagrpo_replay.audit.checks import FORGED, Asked, Check, compare, fault_of
from dagrpo_replay.audit.engine import deriving_engine, turns_by_seed
from dagrpo_replay.audit.run import (
    KEPT,
    PROMPTS,
    TOKENS,
    TOOLS_USED,
    Audited,
    check_tokens,
    reason_against_tokens,
    write_results,
)

SAMPLING = ("sample", "sample_kept", "validate")


def check_records(finished: Finished) -> Check:
    """Check that each job that the parameters ask for has a record, of this job and its files."""
    faults, planned = list[str](), planned_jobs(finished.params, finished.name)
    records = {str(each.provenance): each for each in finished.records}
    for plan in planned:
        record, inputs = records.get(plan.provenance), {path for paths in plan.inputs.values() for path in paths}
        params = own_params(finished.params, all_stages()[plan.stage])
        due = (plan.stage, plan.wildcards.get("seed", "None"), params, inputs, {*plan.files} - {plan.provenance})
        read = {path for path in (record.inputs if record else ()) if path in inputs or Path(path).is_file()}
        found = None if record is None else (record.stage, str(record.seed), record.params, read, {*record.outputs})
        if found != due:
            faults.append(f"{plan.provenance} is no record of {plan.stage} with its seed, parameters and files")
    return Check.of("records", "jobs", faults, f"{len(planned)} of {len(planned)} jobs")


def jobs_again(finished: Finished, scratch: Path) -> Iterator[tuple[ExecutionRecord, PlannedJob, Job]]:
    """Yield each job that the parameters ask for with its record; its outputs are in the scratch folder."""
    records = {str(each.provenance): each for each in finished.records}
    for plan in planned_jobs(finished.params, finished.name):
        record = records[plan.provenance]
        runtime = Runtime.model_validate(record.runtime)
        yield (
            record,
            plan,
            Job(
                stage=plan.stage,
                experiment=record.experiment,
                overrides=record.overrides,
                seed=record.seed,
                inputs={name: [Path(path) for path in paths] for name, paths in plan.inputs.items()},
                outputs={name: scratch / paths[0] for name, paths in plan.outputs.items()},
                params=record.params,
                runtime=runtime,
                threads=threads_of(all_stages()[plan.stage], runtime),
                state=scratch / plan.stage / "state",
                log=scratch / plan.stage / "logs" / "stage.log",
            ),
        )


def reason_not_to_run(stage: str, params: Params, *, fine_tunes: bool) -> str:
    """Return why a stage is not run again; "" if it is."""
    if stage == "model" and params.model.source != "fresh":
        return f"model.source is {params.model.source}: its files are input, by digest"
    if stage == "teacher" and params.algorithm.teacher.is_there:
        return "the teacher is input, by digest"
    if stage == "difficulty" and params.difficulty.samples:
        return "difficulty.samples: pass rates are input, by digest"
    if stage == "sft" and params.sft.steps and not fine_tunes:
        return "its weights are input: --sft tunes them again"
    return ""


def check_stages(finished: Finished, asked: Asked) -> Iterator[Check]:
    """Run the stages around training again, as far as they need no engine, and compare their files byte by byte."""
    yield check_records(finished)
    for record, plan, job in jobs_again(finished, asked.scratch):
        if plan.stage in ("train", *SAMPLING):  # which are derived in another way
            continue
        reason = reason_not_to_run(plan.stage, finished.params, fine_tunes=asked.sft)
        if reason:
            yield Check.unchecked(record.what, "made again", reason)
            continue
        files = [path for name, paths in plan.outputs.items() if name != PROVENANCE_OUTPUT for path in paths]
        is_todays = record.code == code_digest(code_files(finished.params, all_stages()[plan.stage]))
        how = "" if is_todays else ", with code other than on record"
        faults = _run_again(job) or [
            f"{path} is not what {record.what} makes of its inputs{how}"
            for path in files
            if not (asked.scratch / path).is_file() or sha256_of(asked.scratch / path) != sha256_of(Path(path))
        ]
        yield Check.of(record.what, "made again", faults, f"{len(files)} files")


def _run_again(job: Job) -> list[str]:
    """Do a stage's work; return its fault, if any."""
    for path in (*job.outputs.values(), job.log, job.state / "-"):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            all_stages()[job.stage].work(job)
    except FORGED as error:
        return [f"{job.stage} cannot be run again: {fault_of(error)}"]
    return []


def check_files(one: Audited) -> Iterator[Check]:
    """Check that the trained policy has the initial checkpoint's tokenizer, chat template and configuration beside its weights."""
    policy, again = one.recorded.folder / "policy", one.run.state / "policy"
    copy_auxiliary(one.run.initial, verify(one.run.initial), again)
    set_config_dtype(again, next(iter(open_tensors(policy).specs.values())).dtype)
    verify_listing(policy)
    found = {n: sha256_of(policy / n) for n in auxiliary_files(policy) if not n.startswith(f"{ADAPTER}/")}
    due = {path.relative_to(again).as_posix(): sha256_of(path) for path in again.rglob("*") if path.is_file()}
    differing = sorted(name for name in {*found, *due} if found.get(name) != due.get(name))
    faults = [f"{policy / name} is not the initial checkpoint's" for name in differing]
    yield Check.of(one.where, "files beside the weights", faults, f"{len(due)} files")


def check_evaluations(finished: Finished, seeds: tuple[int, ...], asked: Asked) -> Iterator[Check]:
    """Derive the completions of a share of the problems of each evaluation from the checkpoint and the seeds."""
    for record, plan, job in jobs_again(finished, asked.scratch):
        if plan.stage in SAMPLING and int(plan.wildcards["seed"]) in seeds:
            yield from _check_evaluation(record, job, Path(plan.outputs["completions"][0]), asked)


def _check_evaluation(record: ExecutionRecord, job: Job, path: Path, asked: Asked) -> Iterator[Check]:
    attempts = attempts_of(job)
    if KEPT in job.inputs:
        attempts = replace(attempts, seeds=(attempts.seeds[0], job.own_seed))
    require_samplable(attempts.model)
    table = read_table(path, ROLLOUTS)
    tokenizer = load_tokenizer(attempts.model)
    prompts = read_prompts(attempts, tokenizer)
    own = table.filter(pc.not_equal(table["sample_index"], BLIND))
    due = [
        (each.index, sample, sampling_seed(*attempts.seeds, each.row.task, each.index, sample))
        for each in prompts
        for sample in attempts.sampling.sample_indices
    ]
    found = [tuple(row.values()) for row in own.select(["problem_index", "sample_index", "sampling_seed"]).to_pylist()]
    place = next((at for at, pair in enumerate(zip_longest(found, due)) if len({*pair}) > 1), None)
    faults = [] if place is None else [f"{path}: row {place} is no attempt at the problem due, with the seed due"]
    yield Check.of(record.what, "problems and seeds", faults, f"{len(prompts):,} of {len(prompts):,} problems")
    drawn = [prompts[place] for place in asked.drawn(range(len(prompts)))]
    own = own.filter(pc.is_in(own["problem_index"], pa.array([each.index for each in drawn])))
    engine = deriving_engine(
        attempts.model,
        _weights(job),
        turns_by_seed(own.to_pylist()),
        dtype=attempts.dtype,
        head_dtype=attempts.head_dtype,
        version=own["weight_version"][0].as_py() if own.num_rows else "",
        device=single_process().device,
    )
    is_seeded = attempts.sampling.lockstep or record.environment.get("device") == "cpu"
    reason = reason_against_tokens(attempts.conversation, job.runtime.engine.name, drawn, is_seeded=is_seeded)
    if reason or job.inputs.get(RAW):
        yield Check.unchecked(record.what, "tokens", reason or "its tools read files of this machine")
        return
    attempts = replace(attempts, replays=True)
    size = len(attempts.sampling.sample_indices)
    write_results(own.to_pylist(), size, drawn, attempts.conversation, attempts.agent_folder)
    trajectories = attempt_unseen(drawn, attempts, engine.as_engine, tokenizer, what=record.what)
    yield check_tokens(record.what, engine, "")
    yield compare(record.what, "conversations", own, rollout_table(trajectories), (*PROMPTS, *TOKENS, *TOOLS_USED))


def _weights(job: Job) -> Tensors | None:
    """Open the weights that a job of an evaluation sampled; None: its model's."""
    if KEPT not in job.inputs:
        return None
    policy = job.output("completions").parent.name
    if policy == "trained":
        return open_tensors(job.input("trained").parent)
    return open_kept(job.input(KEPT).parent, job.input("initial").parent, int(policy.removeprefix(STEP)))
