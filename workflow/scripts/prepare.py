"""Stage prepare: data/<task>/{train,test,dropped}.parquet and card.json. The task is the name of the card's folder."""

from dagrpo.console import summary
from dagrpo.files import sha256_of
from dagrpo.params.data import Data
from dagrpo.stage import Stage, main
from dagrpo.tasks.prepare import prepare


def work(stage: Stage) -> None:
    """Write the task's folder, and record every split as a data set of the run."""
    folder = stage.output("card").parent
    experiment = stage.params["experiment"]
    card = prepare(
        folder.name,
        folder,
        stage.section(Data, "data"),
        model=stage.input("model").parent,
        evaluate=experiment["evaluate"],
        train=experiment["train"],
    )
    for split in card.counts:
        path = folder / f"{split}.parquet"
        stage.run.log_dataset(path, f"{card.task}/{split}", sha256_of(path), split)
    stage.run.log_metrics(card.metrics())
    summary(f"prepare {card.task}", card.summary())


if __name__ == "__main__":
    main("prepare", work)
