"""Stage prepare: data/<task>/{train,test}.parquet and card.json. The task is the name of the card's folder."""

from dagrpo.console import summary
from dagrpo.files import sha256_of
from dagrpo.params.data import Data
from dagrpo.stage import Stage, main
from dagrpo.tasks.prepare import prepare
from dagrpo.tasks.source import SPLITS


def work(stage: Stage) -> None:
    """Write the task's folder, and record both splits as data sets of the run."""
    folder = stage.output("card").parent
    card = prepare(folder.name, folder, stage.section(Data, "data"))
    for split in SPLITS:
        path = stage.output(split)
        stage.run.log_dataset(path, f"{card.task}/{split}", sha256_of(path), split)
    stage.run.log_metrics({f"{split}_rows": float(card.counts[split]) for split in SPLITS})
    stage.run.log_metrics({"dropped_rows": float(sum(card.dropped.values()))})
    source = f"{card.source} ({card.origin}{'' if card.revision is None else ' at ' + card.revision[:12]})"
    rows = [("source", source), *((f"{split} rows", f"{card.counts[split]:,}") for split in SPLITS)]
    summary(f"prepare {card.task}", [*rows, *((reason, f"{n:,}") for reason, n in card.dropped.items() if n)])


if __name__ == "__main__":
    main("prepare", work)
