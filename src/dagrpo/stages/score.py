"""Stage score: grade completions and summarise them with intervals."""

from dagrpo.execution.declaration import Job, Stage


def work(job: Job) -> None:
    """Needs completions alone: another extractor rescores, and samples nothing again."""
    from dagrpo.console import summary
    from dagrpo.evaluation.scoring import metrics_to_log, rows_to_show, score
    from dagrpo.files import write_json, write_parquet
    from dagrpo.params.evaluation import Scoring

    scores, result = score(job.input("completions"), job.section(Scoring, "evaluation.scoring"))
    write_parquet(job.output("scores"), scores)
    write_json(job.output("summary"), result)
    job.run.log_metrics(metrics_to_log(result))
    job.run.log_table("completions", scores)
    job.run.log_attempts(scores, job.runtime.traces)
    summary(f"score {result['task']}", rows_to_show(result))


STAGE = Stage(name="score", work=work, reads=("evaluation.scoring",), selects=("verifier",))
