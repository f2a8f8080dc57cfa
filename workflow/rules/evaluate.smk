"""Sampling on the test split, and scoring of what was sampled: another extractor samples nothing again."""


rule sample:
    input:
        script=SCRIPT,
        code=code("sample"),
        model=checkpoint_to_evaluate,
        test="data/{experiment}/{task}/test.parquet",
        passages="data/{experiment}/{task}/passages.parquet",
    output:
        completions=update(f"{RUN}/eval/{{task}}/{{policy}}/completions.parquet"),
        provenance=update(f"{RUN}/eval/{{task}}/{{policy}}/completions.provenance.json"),
    log:
        "logs/{experiment}/seed_{seed}/sample_{task}_{policy}.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/sample_{task}_{policy}.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("sample").threads
    resources:
        gpu=needs("sample").gpus,
        mem_mb=memory("sample"),
        runtime=needs("sample").minutes,
    params:
        job=job("sample"),
        arguments=arguments,
    message:
        "sample: {wildcards.policy} policy on {wildcards.task}, seed {wildcards.seed}"
    shell:
        RUN_STAGE


rule score:
    input:
        script=SCRIPT,
        code=code("score"),
        completions=f"{RUN}/eval/{{task}}/{{policy}}/completions.parquet",
    output:
        scores=update(f"{RUN}/eval/{{task}}/{{policy}}/scores.parquet"),
        summary=update(f"{RUN}/eval/{{task}}/{{policy}}/scores.json"),
        provenance=update(f"{RUN}/eval/{{task}}/{{policy}}/scores.provenance.json"),
    log:
        "logs/{experiment}/seed_{seed}/score_{task}_{policy}.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/score_{task}_{policy}.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("score").threads
    resources:
        gpu=needs("score").gpus,
        mem_mb=memory("score"),
        runtime=needs("score").minutes,
    params:
        job=job("score"),
        arguments=arguments,
    message:
        "score: {wildcards.policy} policy on {wildcards.task}, seed {wildcards.seed}"
    shell:
        RUN_STAGE
