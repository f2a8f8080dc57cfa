"""Stage sft: supervised fine-tuning on the train split's own answers, before GRPO."""

from collections.abc import Mapping

from dagrpo.pipeline.declaration import MODEL, RUN, TRAIN_DATA, Job, Needs, Stage
from dagrpo.trainer.config.runtime import Runtime


def work(job: Job) -> None:
    """Fine-tune the model; with 0 steps it passes through unchanged."""
    from dagrpo.core.experiment import learned, shares_of
    from dagrpo.pipeline.curve import Curve
    from dagrpo.rollout.config import Conversation
    from dagrpo.trainer.config.sft import Sft
    from dagrpo.trainer.run import SftRun
    from dagrpo.trainer.sft import fine_tune
    from dagrpo.utils.console import summary
    from dagrpo.utils.distributed import process_group
    from dagrpo.utils.machine import warn_of_slow_types

    rollout = dict(job.params["rollout"])
    deterministic = rollout.pop("deterministic")
    train = job.params["experiment"]["train"]
    run = SftRun(
        model=job.input("model").parent,
        train_splits=learned(train, job.inputs["train"]),
        shares=shares_of(train),
        seed=job.own_seed,
        sft=job.section(Sft, "sft"),
        conversation=Conversation.model_validate(rollout),
        deterministic=deterministic,
        runtime=job.runtime.sft,
        grace_seconds=job.runtime.grace_seconds,
        state=job.state,
        tuned=job.output("manifest").parent,
    )
    last: dict[str, float] = {}
    curve = Curve(job.log)

    def report(step: int, metrics: Mapping[str, float]) -> None:
        last.update(metrics)
        curve.add(step, metrics)

    with process_group(job.threads, deterministic=deterministic) as world:
        if run.sft.steps:
            warn_of_slow_types({"sft.dtype": run.sft.dtype}, world)
        fine_tune(run, report, world)
    if not world.is_rank_zero:
        return
    loss = f"{last['sft/loss']:.4f}" if last else "none: sft.steps is 0, the model passes through"
    summary(f"sft, seed {job.seed}", [("steps", str(run.sft.steps)), ("last loss", loss)])


def needs(runtime: Runtime) -> Needs:
    count, threads = runtime.sft.processes, runtime.sft.all_threads
    return Needs(threads=threads, gpus=count, memory_mb=4000, memory_per_byte=10, minutes=240, minutes_per_gb=60)


STAGE = Stage(
    name="sft",
    work=work,
    reads=(
        "runtime.portable_arithmetic",
        "experiment.train",
        "sft",
        "rollout.chat",
        "rollout.deterministic",
        "rollout.tools",
    ),
    inputs={"model": MODEL, "train": f"{TRAIN_DATA}/train.parquet"},
    outputs={"manifest": f"{RUN}/sft/manifest.json", "provenance": f"{RUN}/sft/provenance.json"},
    label="seed {seed}",
    selects=("model_format", "chat", "tool"),
    extends=("sft.steps",),
    needs=needs,
    processes=lambda runtime: runtime.sft.processes,
    restarts=3,
)
