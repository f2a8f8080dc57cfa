"""Stage score: grade completions and summarise them with intervals."""

from dagrpo.execution.declaration import Job, Stage


def work(job: Job) -> None:
    """Needs completions alone: another extractor rescores, and samples nothing again."""
    from dagrpo.console import summary
    from dagrpo.evaluation.outcomes import group_of, label_of
    from dagrpo.evaluation.scoring import estimates_of, metrics_to_log, rows_to_show, score
    from dagrpo.files import write_json, write_parquet
    from dagrpo.params.evaluation import Scoring
    from dagrpo.tasks.registry import get_task

    scores, result = score(job.input("completions"), job.section(Scoring, "evaluation.scoring"))
    oracle = get_task(result["task"]).oracle
    result = {**result, "oracle": oracle}
    write_parquet(job.output("scores"), scores)
    write_json(job.output("summary"), result)
    group = group_of(result["task"], oracle=oracle)
    estimates, logged = estimates_of(result), metrics_to_log(result)
    bounds = {f"{name}_{bound}" for name in estimates for bound in ("low", "high")}
    job.run.log_metrics({f"{group}/{name}": value for name, value in logged.items() if name not in bounds})
    job.run.log_tags(
        {f"interval.{group}/{name}": f"{each.low:.4f} to {each.high:.4f}" for name, each in estimates.items()}
    )
    job.run.log_table("completions", scores)
    job.run.log_attempts(scores, job.runtime.traces)
    summary(f"score {label_of(result['task'], oracle=oracle)}", rows_to_show(result))


STAGE = Stage(name="score", work=work, reads=("evaluation.scoring",), selects=("task", "verifier"))
