"""Stage report: an experiment's scores, curves, completions and lineage on one page."""

from pathlib import Path

from dagrpo.pipeline.declaration import (
    EARLIER_PROVENANCE,
    EVALUATION,
    MODEL,
    RUN,
    Job,
    Params,
    Stage,
    Wildcards,
    rated_splits,
)
from dagrpo.pipeline.stages.choose import CHOICE

TOKENIZER = "tokenizer.json"
PAGE = "results/{experiment}/report"
FIGURES = f"{PAGE}/figures"
OTHER_FIGURES = ("reward_distribution", "completion_length", "logprob_difference")


def work(job: Job) -> None:
    """Write the page, its figures, and the numbers for DVC."""
    from dagrpo.config.schema import Params
    from dagrpo.report.build import build, write
    from dagrpo.report.config import Report
    from dagrpo.report.format import headline
    from dagrpo.report.inputs import read_inputs
    from dagrpo.report.times import times_of_seeds, write_times_page
    from dagrpo.utils.console import say, summary
    from dagrpo.utils.run_info import read_accounts

    report, models = job.section(Report, "report"), job.inputs.get("model", ())
    tokenizers = (manifest.with_name(TOKENIZER) for manifest in models)
    inputs = read_inputs(
        job.experiment,
        scores=job.inputs["scores"],
        summaries=job.inputs["summaries"],
        metrics=job.inputs["metrics"],
        rollouts=job.inputs["rollouts"],
        held_out=job.inputs["held_out"],
        provenance=job.inputs["lineage"],
        splits=job.inputs.get("splits", []),
        choices=job.inputs.get("choices", []),
        tokenizer=next((path for path in tokenizers if path.is_file()), None),
    )
    page = build(inputs, report, job.params, Params().model_dump(), job.overrides)
    html = job.output("html")
    write(
        page,
        report.smoothing,
        html=html,
        metrics=job.output("metrics"),
        scores=job.output("scores"),
        table=job.output("curves"),
        summary=job.output("summary"),
        figures=html.parent / "figures",
    )
    for doubt in page.doubts:
        say(f"report of {job.experiment}: {doubt}")
    seconds = times_of_seeds(job.inputs["metrics"], job.log.parent)
    accounts = read_accounts(job.log.parent, job.inputs["lineage"])
    times = write_times_page(job.experiment, seconds, job.log.parent, accounts)
    rows = [*((c.label, headline(c)) for c in page.comparisons), ("open", str(html))]
    summary(f"report of {job.experiment}", [*rows, *([("executions", str(times))] if times else [])])


def splits(params: Params, wildcards: Wildcards) -> list[str]:
    """List the splits in which the report finds kinds and pictures of problems."""
    experiment = wildcards["experiment"]
    tests = [f"data/{experiment}/{task}/test.parquet" for task in params.experiment.evaluate]
    rated = rated_splits(params.experiment.train, Path("results", experiment))
    return [*tests, *map(str, rated.values())]


def choices(params: Params, wildcards: Wildcards) -> list[str]:
    """List the choices of a policy, one for each seed; [] if none is chosen."""
    seeds = params.experiment.seeds if params.evaluation.choose else ()
    return [CHOICE.format(experiment=wildcards["experiment"], seed=seed) for seed in seeds]


STAGE = Stage(
    name="report",
    work=work,
    reads=("report", "experiment.seeds", "experiment.evaluate", "experiment.tasks"),
    inputs={
        "scores": f"{EVALUATION}/scores.parquet",
        "summaries": f"{EVALUATION}/scores.json",
        "metrics": f"{RUN}/metrics.parquet",
        "rollouts": f"{RUN}/rollouts/manifest.json",
        "held_out": f"{RUN}/held_out.parquet",
        "lineage": EARLIER_PROVENANCE,
        "splits": splits,
        "choices": choices,
        "model": MODEL,
    },
    outputs={
        "html": f"{PAGE}/report.html",
        "summary": f"{PAGE}/summary.md",
        "metrics": f"{PAGE}/metrics.json",
        "scores": f"{PAGE}/scores.csv",
        "curves": f"{PAGE}/curves.csv",
        "learning_curve": f"{FIGURES}/learning_curve.svg",
        "base_vs_trained": f"{FIGURES}/base_vs_trained.svg",
        "figures": tuple(f"{FIGURES}/{name}.svg" for name in OTHER_FIGURES),
        "provenance": f"{PAGE}/provenance.json",
    },
    computes=True,
    pages={
        "html": "the whole report",
        "summary": "the table of scores",
        "learning_curve": "learning curve",
        "base_vs_trained": "base against trained",
    },
    metrics=("metrics",),
    reusable=lambda params: False,  # the page names its experiment
)
