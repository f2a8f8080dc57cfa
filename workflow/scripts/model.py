"""Stage model: make the policy before any training. No logic of its own."""

from dagrpo import console
from dagrpo.checkpoints import facts
from dagrpo.models.make import make_model
from dagrpo.params.model import Model
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    params = stage.section(Model, "model")
    folder = stage.output("manifest").parent
    manifest = make_model(folder, params)
    stage.run.log_metrics(facts.figures(folder, manifest))
    console.summary(f"model: {params.name} from {params.source}", facts.lines(folder, manifest))


if __name__ == "__main__":
    main("model", work)
