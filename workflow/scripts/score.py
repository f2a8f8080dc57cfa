"""Grade completions and summarise them with intervals."""

from dagrpo.console import summary
from dagrpo.evaluation.scoring import metrics_to_log, score
from dagrpo.files import write_json, write_parquet
from dagrpo.params.evaluation import Scoring
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    scores, result = score(stage.input("completions"), stage.section(Scoring, "evaluation.scoring"))
    write_parquet(stage.output("scores"), scores)
    write_json(stage.output("summary"), result)
    metrics = metrics_to_log(result)
    stage.run.log_metrics(metrics)
    stage.run.log_table("completions", scores)
    summary(f"score {result['task']}", [(name, f"{value:.4f}") for name, value in metrics.items()])


if __name__ == "__main__":
    main("score", work)
