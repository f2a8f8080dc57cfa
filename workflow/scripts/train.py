"""GRPO with SGLang rollouts."""

from collections.abc import Mapping

from dagrpo.console import summary
from dagrpo.distributed import process_group
from dagrpo.files import read_parquet, sha256_of
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.runtime import Runtime
from dagrpo.params.training import Training
from dagrpo.stage import Stage, main
from dagrpo.trainer.loop import train
from dagrpo.trainer.run import TrainingRun

SHOWN = ["prompt", "completion", "ground_truth", "extracted", "reward", "advantage", "finish_reason"]


def work(stage: Stage) -> None:
    assert stage.seed is not None
    run = TrainingRun(
        initial=stage.input("initial").parent,
        train_split=stage.input("train"),
        seed=stage.seed,
        rollout=stage.section(Rollout, "rollout"),
        reward=stage.section(Reward, "reward"),
        algorithm=stage.section(Algorithm, "algorithm"),
        training=stage.section(Training, "training"),
        runtime=stage.section(Runtime, "runtime"),
        state=stage.state_folder(),
        server_log=stage.log.with_name("train.server.log"),
        policy=stage.output("policy").parent,
        metrics=stage.output("metrics"),
        rollouts=stage.output("rollouts"),
    )
    seen: list[Mapping[str, float]] = []

    def report(step: int, metrics: Mapping[str, float]) -> None:
        seen.append(metrics)
        stage.run.log_metrics(metrics, step)

    split = stage.input("train")
    stage.run.log_dataset(split, f"{split.parent.name}/train", sha256_of(split), "training")
    with process_group() as world:
        train(run, report, world)
    if not world.is_rank_zero:
        return
    stage.run.log_artifact(stage.output("metrics"))
    last_step = run.rollouts.with_name(f"step_{run.training.steps:05d}.parquet")
    stage.run.log_table("completions_last_step", read_parquet(last_step).select(SHOWN))
    summary(f"train, seed {stage.seed}", _rows(run, seen))


def _rows(run: TrainingRun, seen: list[Mapping[str, float]]) -> list[tuple[str, str]]:
    last = seen[-min(10, len(seen)) :]
    seconds = sum(value for metrics in seen for name, value in metrics.items() if name.startswith("seconds_"))
    return [
        ("steps", str(len(seen))),
        ("reward, last 10 steps", f"{sum(m['reward_mean'] for m in last) / len(last):.3f}"),
        ("largest logprob difference, engine against trainer", f"{max(m['logprob_difference_max'] for m in seen):.1e}"),
        ("seconds per step", f"{seconds / len(seen):.2f}"),
    ]


if __name__ == "__main__":
    main("train", work)
