"""Raw data to parquet, one folder per task; how hard its train problems are."""


rule prepare:
    input:
        script=SCRIPT,
        code=code("prepare"),
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
    threads: needs("prepare").threads
    resources:
        gpu=needs("prepare").gpus,
        mem_mb=memory("prepare"),
        runtime=needs("prepare").minutes,
    params:
        job=job("prepare"),
        arguments=arguments,
    message:
        "prepare: {wildcards.task}"
    shell:
        RUN_STAGE


rule difficulty:
    input:
        script=SCRIPT,
        code=code("difficulty"),
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
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("difficulty").threads
    resources:
        gpu=needs("difficulty").gpus,
        mem_mb=memory("difficulty"),
        runtime=needs("difficulty").minutes,
    params:
        job=job("difficulty"),
        arguments=arguments,
    message:
        "difficulty: pass rates of {experiment.train}"
    shell:
        RUN_STAGE
