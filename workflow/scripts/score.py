"""Grade completions and summarise them with intervals."""

from dagrpo.console import summary
from dagrpo.evaluation.scoring import metrics_to_log, rows_to_show, score
from dagrpo.files import write_json, write_parquet
from dagrpo.params.evaluation import Scoring
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    scores, result = score(stage.input("completions"), stage.section(Scoring, "evaluation.scoring"))
    write_parquet(stage.output("scores"), scores)
    write_json(stage.output("summary"), result)
    stage.run.log_metrics(metrics_to_log(result))
    stage.run.log_table("completions", scores)
    summary(f"score {result['task']}", rows_to_show(result))


if __name__ == "__main__":
    main("score", work)
