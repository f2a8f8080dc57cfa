"""Stage difficulty: pass rate of every train problem under the base policy."""

from typing import TYPE_CHECKING

from dagrpo.pipeline.declaration import RATED, RAW, TRAIN_DATA, Job, Needs, Params, Stage, Wildcards
from dagrpo.trainer.config.runtime import Runtime

if TYPE_CHECKING:
    from dagrpo.evaluation.config import Difficulty


def work(job: Job) -> None:
    """Sample as training does, grade, and write one task's split with its pass rates; with 0 samples it passes through."""
    from dagrpo.evaluation.config import Difficulty
    from dagrpo.evaluation.pass_rates import pass_through
    from dagrpo.utils.console import summary

    difficulty = job.section(Difficulty, "difficulty")
    if difficulty.samples:
        _rate(job, difficulty)
        return
    pass_through(job.input("train"), job.output("train"), job.output("pass_rates"))
    summary("difficulty", [("problems", "not rated: difficulty.samples is 0")])


def _rate(job: Job, difficulty: "Difficulty") -> None:
    from dagrpo.evaluation.difficulty import metrics_to_log, rate
    from dagrpo.evaluation.sampling import SplitAttempts, opened
    from dagrpo.rewards.config import Reward
    from dagrpo.rollout.config import Rollout, training_sampling
    from dagrpo.utils.console import summary

    split = job.input("train")
    rollout = job.section(Rollout, "rollout")
    attempts = SplitAttempts(
        model=job.input("model").parent,
        split=split,
        conversation=rollout,
        passages=job.input("passages"),
        sampling=training_sampling(rollout, difficulty.samples),
        seeds=(difficulty.seed, 0),
        engine=job.runtime.engine,
        dtype=rollout.dtype,
        head_dtype=rollout.head_dtype,
        server_log=job.log.with_suffix(".server.log"),
        agent_folder=job.state / "agent",
    )
    checkpoint = job.shared.opened(lambda: opened(attempts))
    ratings = rate(attempts, checkpoint, job.section(Reward, "reward"), job.output("train"), job.output("pass_rates"))
    metrics = metrics_to_log(ratings)
    summary(
        f"difficulty {split.parent.name}", [(name.replace("_", " "), f"{value:.3f}") for name, value in metrics.items()]
    )


def raw(params: Params, wildcards: Wildcards) -> list[str]:
    """List the files that the tools of a train task read, such as corpora; [] if no problem is rated."""
    from dagrpo.pipeline.raw_inputs import files_of_tools

    return files_of_tools(params, {wildcards["train"]}) if params.difficulty.samples else []


def needs(runtime: Runtime) -> Needs:
    engine = runtime.engine
    return Needs(
        threads=2,
        beside=engine.all_threads,
        gpus=engine.gpus,
        memory_mb=4000,
        memory_per_byte=3,
        minutes=240,
        minutes_per_gb=30,
    )


STAGE = Stage(
    name="difficulty",
    work=work,
    reads=(
        "runtime.portable_arithmetic",
        "difficulty",
        "rollout",
        "reward.verifier",
        "reward.extractor",
        "reward.verify_seconds",
    ),
    inputs={
        "model": "results/{experiment}/runs/seed_{first_seed}/sft/manifest.json",
        "train": f"{TRAIN_DATA}/train.parquet",
        "passages": f"{TRAIN_DATA}/passages.parquet",
        RAW: raw,
    },
    outputs={
        "train": f"{RATED}/train.parquet",
        "pass_rates": f"{RATED}/difficulty.parquet",
        "provenance": f"{RATED}/provenance.json",
    },
    spreads=("train",),
    label="pass rates",
    selects=("verifier", "agent", "tool", "chat", "interaction", "engine"),
    needs=needs,
    restarts=1,
)
