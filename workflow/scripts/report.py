"""Put an experiment's scores, curves, completions and lineage on one page."""

from dagrpo.console import summary
from dagrpo.params.report import Report
from dagrpo.report.build import FIGURE_FILES, build, metrics_to_log, write
from dagrpo.report.inputs import read_inputs
from dagrpo.report.wording import headline
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    report = stage.section(Report, "report")
    inputs = read_inputs(
        stage.experiment,
        scores=stage.inputs["scores"],
        summaries=stage.inputs["summaries"],
        metrics=stage.inputs["metrics"],
        rollouts=stage.inputs["rollouts"],
        provenance=stage.inputs["provenance"],
    )
    page = build(inputs, report, stage.params)
    html = stage.output("html")
    figures = html.parent / "figures"
    write(
        page,
        report.smoothing,
        html=html,
        metrics=stage.output("metrics"),
        table=stage.output("curves"),
        summary=stage.output("summary"),
        figures=figures,
    )
    stage.run.log_metrics(metrics_to_log(page.comparisons))
    stage.run.log_artifact(html)
    for name in FIGURE_FILES:
        stage.run.log_artifact(figures / name, "figures")
    summary(f"report of {stage.experiment}", [*((c.task, headline(c)) for c in page.comparisons), ("open", str(html))])


if __name__ == "__main__":
    main("report", work)
