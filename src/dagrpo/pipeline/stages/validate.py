"""Stage validate: policies to choose from complete the validation rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dagrpo.pipeline.declaration import RAW, VALIDATION, Job, Params, Wildcards
from dagrpo.pipeline.stages import sample, sample_kept


def work(job: Job) -> None:
    """Write completions.parquet of one policy on one task without grading; all share an engine, whose weights change."""
    from dagrpo.core.errors import UserError
    from dagrpo.evaluation.kept import opened_kept
    from dagrpo.utils.tables import read_parquet

    if not read_parquet(split := job.input("test")).num_rows:
        raise UserError(
            f"{split} has no rows to choose a policy by: set data.held_out_validation, or evaluation.choose to null."
        )
    attempts = sample.attempts_of(job)
    attempts = replace(attempts, seeds=(attempts.seeds[0], job.own_seed), without_pictures=False)
    folders = {name: job.input(name).parent for name in ("kept", "initial", "trained")}
    checkpoint_of = job.shared.opened(lambda: opened_kept(attempts, **folders))
    sample.complete(job, attempts, checkpoint_of(job.output("completions").parent.name))


def raw(params: Params, wildcards: Wildcards) -> Iterable[str]:
    """List the files that the tools of a task read: corpora."""
    return sample.raw(params, {"task": wildcards["validated"]})


def read_of(inputs: Mapping[str, Sequence[Path]], outputs: Mapping[str, Path]) -> Mapping[Path, str]:
    """Return the digest of the kept policy that is sampled, for the list of all, and of the trained policy none: or nothing of the list."""
    (kept,), (trained,) = inputs["kept"], inputs["trained"]
    if outputs["completions"].parent.name == "trained":
        return {kept: ""}
    return {**sample_kept.read_of_kept(inputs, outputs), trained: ""}


STAGE = replace(
    sample_kept.STAGE,
    name="validate",
    work=work,
    inputs={
        **sample_kept.STAGE.inputs,
        "trained": "results/{experiment}/runs/seed_{seed}/exported/manifest.json",
        "test": "data/{experiment}/{validated}/validation.parquet",
        "passages": "data/{experiment}/{validated}/passages.parquet",
        RAW: raw,
    },
    outputs={
        "completions": f"{VALIDATION}/completions.parquet",
        "provenance": f"{VALIDATION}/provenance.json",
    },
    spreads=("candidate", "validated"),
    reads_of=read_of,
    label="policies to choose from, seed {seed}",
)
