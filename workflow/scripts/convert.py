"""Stage convert: Hugging Face layout to the trainer's sharded format. No logic of its own."""

from dagrpo import console
from dagrpo.checkpoints import facts
from dagrpo.checkpoints.convert import convert
from dagrpo.params.checkpoint import Checkpoint
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    source, folder = stage.input("source").parent, stage.output("manifest").parent
    manifest = convert(source, folder, stage.section(Checkpoint, "checkpoint"))
    stage.run.log_metrics(facts.figures(folder, manifest))
    console.summary(f"convert: {source} to {manifest.format}", facts.lines(folder, manifest))


if __name__ == "__main__":
    main("convert", work)
