"""Stage score: grade completions and summarise them with intervals."""

from dagrpo.pipeline.declaration import EVALUATION, Job, Needs, Stage

GRADERS = 3  # besides one process: it grades with all cores that it has


def work(job: Job) -> None:
    """Write scores from completions alone: another extractor rescores, and samples nothing again."""
    from dagrpo.data.task import get_task
    from dagrpo.evaluation.config import Scoring
    from dagrpo.evaluation.outcomes import label_of
    from dagrpo.evaluation.scoring import rows_to_show, score
    from dagrpo.utils.console import summary
    from dagrpo.utils.files import write_json
    from dagrpo.utils.tables import write_parquet

    scores, result = score(job.input("completions"), job.section(Scoring, "evaluation.scoring"))
    oracle = get_task(result["task"]).oracle
    result = {**result, "oracle": oracle}
    write_parquet(job.output("scores"), scores)
    write_json(job.output("summary"), result)
    summary(f"score {label_of(result['task'], oracle=oracle)}", rows_to_show(result))


STAGE = Stage(
    name="score",
    work=work,
    reads=("evaluation.scoring",),
    inputs={"completions": f"{EVALUATION}/completions.parquet"},
    outputs={
        "scores": f"{EVALUATION}/scores.parquet",
        "summary": f"{EVALUATION}/scores.json",
        "provenance": f"{EVALUATION}/scores.provenance.json",
    },
    seeded=lambda params, inputs: False,  # equal completions have equal scores
    needs=lambda runtime: Needs(beside=GRADERS),
    computes=True,
    label="{policy} policy on {task}, seed {seed}",
    selects=("task", "verifier", "scorer"),
)
