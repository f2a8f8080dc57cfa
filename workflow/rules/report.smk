"""One page with everything an experiment says, and the numbers for DVC."""


rule report:
    input:
        script=SCRIPT,
        code=code("report"),
        scores=of_every_evaluation("scores.parquet"),
        summaries=of_every_evaluation("scores.json"),
        metrics=of_every_seed("metrics.parquet"),
        rollouts=of_every_seed("rollouts/manifest.json"),
        held_out=of_every_seed("held_out.parquet"),
        lineage=every_provenance(),
        splits=splits_of_report,
        model=MODEL,
    output:
        html=update(
            report(
                "results/{experiment}/report/report.html",
                caption="../report/report.rst",
                category="Results",
                labels={"experiment": "{experiment}", "shows": "the whole report"},
            )
        ),
        summary=update(
            report(
                "results/{experiment}/report/summary.md",
                caption="../report/summary.rst",
                category="Results",
                labels={"experiment": "{experiment}", "shows": "the table of scores"},
            )
        ),
        metrics=update("results/{experiment}/report/metrics.json"),
        scores=update("results/{experiment}/report/scores.csv"),
        curves=update("results/{experiment}/report/curves.csv"),
        learning_curve=update(
            report(
                "results/{experiment}/report/figures/learning_curve.png",
                caption="../report/learning_curve.rst",
                category="Results",
                labels={"experiment": "{experiment}", "shows": "learning curve"},
            )
        ),
        base_vs_trained=update(
            report(
                "results/{experiment}/report/figures/base_vs_trained.png",
                caption="../report/base_vs_trained.rst",
                category="Results",
                labels={"experiment": "{experiment}", "shows": "base against trained"},
            )
        ),
        figures=[update(path) for path in OTHER_FIGURES],
        provenance=update("results/{experiment}/report/provenance.json"),
    log:
        "logs/{experiment}/report.log",
    benchmark:
        "logs/{experiment}/report.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("report").threads
    resources:
        gpu=needs("report").gpus,
        mem_mb=memory("report"),
        runtime=needs("report").minutes,
    params:
        job=job("report"),
        arguments=arguments,
    message:
        "report: {wildcards.experiment}"
    shell:
        RUN_STAGE
