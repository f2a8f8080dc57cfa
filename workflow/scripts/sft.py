"""Fine-tune the model on the train split's own answers before GRPO."""

from collections.abc import Mapping

from dagrpo.console import summary
from dagrpo.params.sft import Sft
from dagrpo.stage import Stage, main
from dagrpo.trainer.sft import fine_tune


def work(stage: Stage) -> None:
    assert stage.seed is not None
    params = stage.section(Sft, "sft")
    last: dict[str, float] = {}

    def report(step: int, metrics: Mapping[str, float]) -> None:
        last.update(metrics)
        stage.run.log_metrics(metrics, step)

    source, destination = stage.input("model").parent, stage.output("manifest").parent
    fine_tune(source, stage.input("train"), destination, params, stage.seed, report)
    loss = f"{last['loss']:.4f}" if last else "none: sft.steps is 0, the model passes through"
    summary(f"sft, seed {stage.seed}", [("steps", str(params.steps)), ("last loss", loss)])


if __name__ == "__main__":
    main("sft", work)
