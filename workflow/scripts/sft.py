"""Fine-tune the model on the train split's own answers before GRPO."""

from collections.abc import Mapping

from dagrpo.console import summary
from dagrpo.distributed import process_group
from dagrpo.params.runtime import SftRuntime
from dagrpo.params.sft import Sft
from dagrpo.stage import Stage, main
from dagrpo.trainer.run import SftRun
from dagrpo.trainer.sft import fine_tune


def work(stage: Stage) -> None:
    assert stage.seed is not None
    run = SftRun(
        model=stage.input("model").parent,
        train_split=stage.input("train"),
        seed=stage.seed,
        sft=stage.section(Sft, "sft"),
        runtime=stage.section(SftRuntime, "runtime.sft"),
        state=stage.state_folder(),
        tuned=stage.output("manifest").parent,
    )
    last: dict[str, float] = {}

    def report(step: int, metrics: Mapping[str, float]) -> None:
        last.update(metrics)
        stage.run.log_metrics(metrics, step)

    with process_group() as world:
        fine_tune(run, report, world)
    if not world.is_rank_zero:
        return
    loss = f"{last['loss']:.4f}" if last else "none: sft.steps is 0, the model passes through"
    summary(f"sft, seed {stage.seed}", [("steps", str(run.sft.steps)), ("last loss", loss)])


if __name__ == "__main__":
    main("sft", work)
