"""GRPO. Its resumable state is not an output: a failed job would lose it."""


rule train:
    input:
        script=SCRIPT,
        code=code("train"),
        initial=f"{RUN}/initial/manifest.json",
        train="results/{experiment}/difficulty/train.parquet",
        passages=train_passages,
        teacher=TEACHER,
        held_out=held_out_data,
    output:
        policy=update(f"{RUN}/policy/manifest.json"),
        metrics=update(f"{RUN}/metrics.parquet"),
        rollouts=update(f"{RUN}/rollouts/manifest.json"),
        held_out=update(f"{RUN}/held_out.parquet"),
        provenance=update(f"{RUN}/policy/provenance.json"),
    log:
        "logs/{experiment}/seed_{seed}/train.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/train.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("train").threads
    resources:
        gpu=needs("train").gpus,
        mem_mb=memory("train"),
        runtime=needs("train").minutes,
    params:
        job=job("train"),
        arguments=arguments,
    message:
        "train: seed {wildcards.seed}"
    shell:
        RUN_STAGE
