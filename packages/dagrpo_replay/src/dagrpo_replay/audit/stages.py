"""Audit of the stages around training, and of evaluations."""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.config.schema import Params
from dagrpo.core.trajectory import BLIND
from dagrpo.evaluation.sampling import attempt_unseen, read_prompts
from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.pipeline.dag import PlannedJob, planned_jobs
from dagrpo.pipeline.declaration import PROVENANCE_OUTPUT, RAW, Job, threads_of
from dagrpo.pipeline.identity import code_digest
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.stages.sample import attempts_of
from dagrpo.rollout.build_table import rollout_table
from dagrpo.rollout.table import ROLLOUTS, read_table
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.distributed import single_process
from dagrpo.utils.files import sha256_of
from dagrpo_publish.crate.finished import Finished
from dagrpo_replay.audit.checks import FORGED, Asked, Check, compare, fault_of
from dagrpo_replay.audit.engine import deriving_engine, turns_by_seed
from dagrpo_replay.audit.run import PROMPTS, TOKENS, TOOLS_USED, check_tokens, reason_against_tokens, write_results

OTHERS = ("train", "sample")  # stages that are derived in another way than by running them again


def jobs_again(finished: Finished, scratch: Path) -> Iterator[tuple[ExecutionRecord, PlannedJob, Job]]:
    """Yield each execution with its job, whose outputs are in the scratch folder."""
    planned = {each.provenance: each for each in planned_jobs(finished.params, finished.name)}
    for record in finished.records:
        if (plan := planned.get(str(record.provenance))) is None:
            continue
        runtime = Runtime.model_validate(record.runtime)
        yield (
            record,
            plan,
            Job(
                stage=record.stage,
                experiment=record.experiment,
                overrides=record.overrides,
                seed=record.seed,
                inputs={name: [Path(path) for path in paths] for name, paths in plan.inputs.items()},
                outputs={name: scratch / paths[0] for name, paths in plan.outputs.items()},
                params=record.params,
                runtime=runtime,
                threads=threads_of(all_stages()[record.stage], runtime),
                state=scratch / record.stage / "state",
                log=scratch / record.stage / "logs" / "stage.log",
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
    for record, plan, job in jobs_again(finished, asked.scratch):
        if record.stage in OTHERS:
            continue
        reason = reason_not_to_run(record.stage, finished.params, fine_tunes=asked.sft)
        if reason:
            yield Check.unchecked(record.what, "made again", reason)
            continue
        files = [path for name, paths in plan.outputs.items() if name != PROVENANCE_OUTPUT for path in paths]
        is_todays = record.code == code_digest(code_files(finished.params, all_stages()[record.stage]))
        how = "" if is_todays else ", with code other than on record"
        faults = _run_again(job) or [
            f"{path} is not what {record.what} makes of its inputs{how}"
            for path in files
            if not (asked.scratch / path).is_file() or sha256_of(asked.scratch / path) != _digest(path)
        ]
        yield Check.of(record.what, "made again", faults, f"{len(files)} files")


def _digest(path: str) -> str:
    return sha256_of(Path(path)) if Path(path).is_file() else ""


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


def check_evaluations(finished: Finished, seeds: tuple[int, ...], asked: Asked) -> Iterator[Check]:
    """Derive the completions of a share of the problems of each evaluation from the checkpoint and the seeds."""
    for record, _, job in jobs_again(finished, asked.scratch):
        if record.stage == "sample" and record.seed in seeds:
            yield from _check_evaluation(record, job, asked)


def _check_evaluation(record: ExecutionRecord, job: Job, asked: Asked) -> Iterator[Check]:
    attempts = attempts_of(job)
    (path,) = (Path(path) for path in record.outputs)
    table = read_table(path, ROLLOUTS)
    tokenizer = load_tokenizer(attempts.model)
    prompts = read_prompts(attempts, tokenizer)
    own = table.filter(pc.not_equal(table["sample_index"], BLIND))
    numbers = own["problem_index"].to_pylist()
    due = [each.index for each in prompts for _ in attempts.sampling.sample_indices]
    faults = (
        [] if numbers == due else [f"{path} has {len(numbers)} attempts, and {len(due)} are due, problem by problem"]
    )
    yield Check.of(record.what, "problems", faults, f"{len(prompts):,} of {len(prompts):,}")
    drawn = [prompts[place] for place in asked.drawn(range(len(prompts)))]
    own = own.filter(pc.is_in(own["problem_index"], pa.array([each.index for each in drawn])))
    engine = deriving_engine(
        attempts.model,
        turns=turns_by_seed(own.to_pylist()),
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
