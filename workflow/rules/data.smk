"""Raw data to parquet, one folder per task; how hard its train problems are."""


rule prepare:
    input:
        script="workflow/scripts/prepare.py",
        code=code_files("prepare"),
        model=f"models/{params.model.name}/manifest.json",
    output:
        train="data/{task}/train.parquet",
        test="data/{task}/test.parquet",
        dropped="data/{task}/dropped.parquet",
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
        " --input model={input.model} --output train={output.train} --output test={output.test}"
        " --output dropped={output.dropped} --output card={output.card}"
        " --output provenance={output.provenance} --log {log}"


rule difficulty:
    input:
        script="workflow/scripts/difficulty.py",
        code=code_files("difficulty"),
        model=f"{RUN}/sft/manifest.json".format(
            experiment="{experiment}", seed=experiment.seeds[0]
        ),
        train=train_split,
    output:
        train="results/{experiment}/difficulty/train.parquet",
        pass_rates="results/{experiment}/difficulty/difficulty.parquet",
        provenance="results/{experiment}/difficulty/provenance.json",
    log:
        "logs/{experiment}/difficulty.log",
    benchmark:
        "logs/{experiment}/difficulty.benchmark.tsv"
    retries: 1
    conda:
        "../envs/project.yaml"
    threads: 2
    resources:
        mem_mb=8000,
    params:
        sections=own("difficulty"),
    message:
        "difficulty: pass rates of {experiment.train}"
    shell:
        "python {input.script} --experiment {wildcards.experiment} --params {params.sections:q}"
        " --input model={input.model} --input train={input.train} --output train={output.train}"
        " --output pass_rates={output.pass_rates} --output provenance={output.provenance} --log {log}"
