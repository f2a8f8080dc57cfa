"""Raw data to parquet, one folder per task."""


rule prepare:
    input:
        script="workflow/scripts/prepare.py",
        code=code_files("prepare"),
    output:
        train="data/{task}/train.parquet",
        test="data/{task}/test.parquet",
        card="data/{task}/card.json",
        provenance="data/{task}/provenance.json",
    log:
        "logs/prepare/{task}.log",
    benchmark:
        "logs/prepare/{task}.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        experiment=experiment.name,
        sections=own("prepare"),
    message:
        "prepare: {wildcards.task}"
    shell:
        "python {input.script} --experiment {params.experiment} --params {params.sections:q}"
        " --output train={output.train} --output test={output.test} --output card={output.card}"
        " --output provenance={output.provenance} --log {log}"
