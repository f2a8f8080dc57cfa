"""Stage sample: a checkpoint completes every problem of a test split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.pipeline.declaration import DATA, EVALUATION, POLICIES, RAW, RUN, Job, Needs, Params, Stage, Wildcards
from dagrpo.trainer.config.runtime import Runtime

if TYPE_CHECKING:
    from dagrpo.evaluation.sampling import Checkpoint, SplitAttempts


def work(job: Job) -> None:
    """Write completions.parquet of one task without grading; all tasks share an engine."""
    from dagrpo.evaluation.sampling import opened

    attempts = attempts_of(job)
    complete(job, attempts, job.shared.opened(lambda: opened(attempts)))


def complete(job: Job, attempts: "SplitAttempts", checkpoint: "Checkpoint") -> None:
    """Write the completions of an opened checkpoint."""
    from dagrpo.evaluation.conversations import about_conversations
    from dagrpo.evaluation.sampling import sample
    from dagrpo.rollout.agents import OWN_LOOP
    from dagrpo.rollout.table import sighted
    from dagrpo.utils.console import summary
    from dagrpo.utils.tables import write_parquet

    completions = sample(attempts, checkpoint)
    write_parquet(job.output("completions"), completions)
    is_other_agent = attempts.conversation.agent.name != OWN_LOOP
    rows = [
        ("completions", f"{completions.num_rows:,}"),
        *about_conversations(sighted(completions), always=is_other_agent),
    ]
    summary(f"sample {completions['task'][0]}", [*rows, ("file", str(job.output("completions")))])


def attempts_of(job: Job) -> "SplitAttempts":
    """Return the attempts that a job makes."""
    from dagrpo.evaluation.config import Sampling
    from dagrpo.evaluation.sampling import SplitAttempts, evaluation_sampling
    from dagrpo.rollout.config import conversation_of

    section = job.section(Sampling, "evaluation.sampling")
    return SplitAttempts(
        model=job.input("model").parent,
        split=job.input("test"),
        passages=job.input("passages"),
        max_problems=section.max_problems,
        without_pictures=section.without_pictures,
        conversation=conversation_of(job.params["rollout"]),
        sampling=evaluation_sampling(section, deterministic=job.params["rollout"]["deterministic"]),
        seeds=(section.seed, job.own_seed if seeded(job.params, job.inputs) else 0),
        engine=job.runtime.engine,
        dtype=job.params["rollout"]["dtype"],
        head_dtype=job.params["rollout"]["head_dtype"],
        server_log=job.log.with_suffix(".server.log"),
        agent_folder=job.state / "agent",
    )


def raw(params: Params, wildcards: Wildcards) -> list[str]:
    """List the files that the tools of a task read: corpora."""
    from dagrpo.pipeline.raw_inputs import files_of_tools

    return files_of_tools(params, {wildcards["task"]})


def seeded(params: Mapping[str, Any], inputs: Mapping[str, Sequence[Path]]) -> bool:
    """Return False for the base policy without fine-tuning: all seeds have the same, and it is sampled once."""
    (model,) = inputs["model"]
    return bool(params["sft"]["steps"]) or model.parent.name != POLICIES["base"]


def needs(runtime: Runtime) -> Needs:
    engine = runtime.engine
    resources = {"memory_mb": 4000, "memory_per_byte": 3, "minutes": 240, "minutes_per_gb": 30}
    return Needs(beside=engine.all_threads, gpus=engine.gpus, checkpoint="model", **resources)


STAGE = Stage(
    name="sample",
    work=work,
    reads=(
        "runtime.portable_arithmetic",
        "evaluation.sampling",
        "sft.steps",
        "rollout.agent",
        "rollout.tools",
        "rollout.chat",
        "rollout.dtype",
        "rollout.head_dtype",
        "rollout.deterministic",
    ),
    inputs={
        "model": f"{RUN}/{{checkpoint}}/manifest.json",
        "test": f"{DATA}/test.parquet",
        "passages": f"{DATA}/passages.parquet",
        RAW: raw,
    },
    outputs={
        "completions": f"{EVALUATION}/completions.parquet",
        "provenance": f"{EVALUATION}/completions.provenance.json",
    },
    spreads=("task",),
    seeded=seeded,
    label="{policy} policy, seed {seed}",
    selects=("agent", "tool", "chat", "interaction", "engine"),
    needs=needs,
    restarts=1,
)
