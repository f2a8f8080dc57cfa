"""Stage sample_kept: kept policies complete every problem of the test splits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dagrpo.pipeline.declaration import DATA, KEPT_EVALUATION, RAW, RUN, Job
from dagrpo.pipeline.stages import sample
from dagrpo.utils.files import read_object


def work(job: Job) -> None:
    """Write completions.parquet of one policy on one task without grading; all share an engine, whose weights change."""
    from dagrpo.evaluation.kept import opened_kept

    attempts = sample.attempts_of(job)
    attempts = replace(attempts, seeds=(attempts.seeds[0], job.own_seed))  # those of the trained policy
    kept, initial = job.input("kept").parent, job.input("initial").parent
    checkpoint_of = job.shared.opened(lambda: opened_kept(attempts, kept, initial))
    sample.complete(job, attempts, checkpoint_of(job.output("completions").parent.name))


def read_of_kept(inputs: Mapping[str, Sequence[Path]], outputs: Mapping[str, Path]) -> Mapping[Path, str]:
    """Return the digest of the policy that is sampled, for the list of all: what else is kept changes none of its completions."""
    from dagrpo.evaluation.config import STEP

    (manifest,), policy = inputs["kept"], outputs["completions"].parent.name
    kept = read_object(manifest)["policies"].get(policy.removeprefix(STEP))
    return {} if kept is None else {manifest: kept["digest"]}


STAGE = replace(
    sample.STAGE,
    name="sample_kept",
    work=work,
    inputs={
        "model": f"{RUN}/sft/manifest.json",
        "initial": f"{RUN}/initial/manifest.json",
        "kept": f"{RUN}/kept/manifest.json",
        "test": f"{DATA}/test.parquet",
        "passages": f"{DATA}/passages.parquet",
        RAW: sample.raw,
    },
    outputs={
        "completions": f"{KEPT_EVALUATION}/completions.parquet",
        "provenance": f"{KEPT_EVALUATION}/completions.provenance.json",
    },
    spreads=("step", "task"),  # so that each policy answers all tasks before the next one
    seeded=lambda params, inputs: True,
    reads_of=read_of_kept,
    label="kept policies, seed {seed}",
)
