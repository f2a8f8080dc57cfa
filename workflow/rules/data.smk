"""Raw data to parquet, one folder per task; how hard its train problems are."""


rule prepare:
    input:
        script=SCRIPT,
        code=code("prepare"),
        model=MODEL,
    output:
        train=update("data/{experiment}/{task}/train.parquet"),
        validation=update("data/{experiment}/{task}/validation.parquet"),
        test=update("data/{experiment}/{task}/test.parquet"),
        dropped=update("data/{experiment}/{task}/dropped.parquet"),
        passages=update("data/{experiment}/{task}/passages.parquet"),
        card=update("data/{experiment}/{task}/card.json"),
        provenance=update("data/{experiment}/{task}/provenance.json"),
    log:
        "logs/{experiment}/prepare_{task}.log",
    benchmark:
        "logs/{experiment}/prepare_{task}.benchmark.tsv"
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
        passages=train_passages,
    output:
        train=update("results/{experiment}/difficulty/train.parquet"),
        pass_rates=update("results/{experiment}/difficulty/difficulty.parquet"),
        provenance=update("results/{experiment}/difficulty/provenance.json"),
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
