"""Stage export: the trained policy to the Hugging Face layout. No logic of its own."""

from dagrpo import console
from dagrpo.checkpoints import facts
from dagrpo.checkpoints.convert import export
from dagrpo.params.checkpoint import Checkpoint
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    policy, folder = stage.input("policy").parent, stage.output("manifest").parent
    manifest = export(policy, folder, stage.section(Checkpoint, "checkpoint"))
    stage.run.log_metrics(facts.figures(folder, manifest))
    console.summary(f"export: {policy} to {manifest.format}", facts.lines(folder, manifest))


if __name__ == "__main__":
    main("export", work)
