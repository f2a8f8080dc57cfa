"""The policy before GRPO: the model as it comes, then a supervised fine-tuning. And a teacher to learn from, if there is one."""


ruleorder: teacher > model


rule model:
    input:
        script=SCRIPT,
        code=code("model"),
    output:
        manifest=update("models/{experiment}/{model}/manifest.json"),
        provenance=update("models/{experiment}/{model}/provenance.json"),
    log:
        "logs/{experiment}/model_{model}.log",
    benchmark:
        "logs/{experiment}/model_{model}.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("model").threads
    resources:
        gpu=needs("model").gpus,
        mem_mb=memory("model"),
        runtime=needs("model").minutes,
    params:
        job=job("model"),
        arguments=arguments,
    message:
        "model: {wildcards.model}"
    shell:
        RUN_STAGE


rule teacher:
    input:
        script=SCRIPT,
        code=code("teacher"),
        model=MODEL,
        source=teacher_folder,
    output:
        manifest=update(TEACHER),
        provenance=update("models/{experiment}/teacher/provenance.json"),
    log:
        "logs/{experiment}/teacher.log",
    benchmark:
        "logs/{experiment}/teacher.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("teacher").threads
    resources:
        gpu=needs("teacher").gpus,
        mem_mb=memory("teacher"),
        runtime=needs("teacher").minutes,
    params:
        job=job("teacher"),
        arguments=arguments,
    message:
        f"teacher: {params.algorithm.teacher.source}"
    shell:
        RUN_STAGE


rule sft:
    input:
        script=SCRIPT,
        code=code("sft"),
        model=MODEL,
        train=train_split,
    output:
        manifest=update(f"{RUN}/sft/manifest.json"),
        provenance=update(f"{RUN}/sft/provenance.json"),
    log:
        "logs/{experiment}/seed_{seed}/sft.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/sft.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("sft").threads
    resources:
        gpu=needs("sft").gpus,
        mem_mb=memory("sft"),
        runtime=needs("sft").minutes,
    params:
        job=job("sft"),
        arguments=arguments,
    message:
        "sft: seed {wildcards.seed}"
    shell:
        RUN_STAGE
