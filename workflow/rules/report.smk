"""One page with everything an experiment says, and the numbers for DVC."""


rule report:
    input:
        script="workflow/scripts/report.py",
        code=code_files("report"),
        scores=of_every_evaluation("scores.parquet"),
        summaries=of_every_evaluation("scores.json"),
        metrics=of_every_seed("metrics.parquet"),
        rollouts=of_every_seed("rollouts/manifest.json"),
        provenance=every_provenance(),
    output:
        html=report(
            "results/{experiment}/report/report.html",
            caption="../report/report.rst",
            category="Report",
        ),
        summary="results/{experiment}/report/summary.md",
        metrics="results/{experiment}/report/metrics.json",
        curves="results/{experiment}/report/curves.csv",
        learning_curve=report(
            "results/{experiment}/report/figures/learning_curve.png",
            caption="../report/learning_curve.rst",
            category="Figures",
        ),
        base_vs_trained=report(
            "results/{experiment}/report/figures/base_vs_trained.png",
            caption="../report/base_vs_trained.rst",
            category="Figures",
        ),
        figures=OTHER_FIGURES,
        provenance="results/{experiment}/report/provenance.json",
    log:
        "logs/{experiment}/report.log",
    benchmark:
        "logs/{experiment}/report.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        sections=own("report"),
        inputs=lambda wildcards, input: " ".join(
            f"--input {name}={path}"
            for name in ("scores", "summaries", "metrics", "rollouts", "provenance")
            for path in input[name]
        ),
        figures=lambda wildcards, output: " ".join(
            f"--output figure_{number}={path}"
            for number, path in enumerate(output.figures)
        ),
    message:
        "report: {wildcards.experiment}"
    shell:
        "python {input.script} --experiment {wildcards.experiment}"
        " --params {params.sections:q} {params.inputs}"
        " --output html={output.html} --output summary={output.summary} --output metrics={output.metrics}"
        " --output curves={output.curves} --output learning_curve={output.learning_curve}"
        " --output base_vs_trained={output.base_vs_trained} {params.figures}"
        " --output provenance={output.provenance} --log {log}"
