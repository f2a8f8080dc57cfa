"""Hugging Face to the format that the trainer reads, and back."""


rule convert:
    input:
        script=SCRIPT,
        code=code("convert"),
        source=f"{RUN}/sft/manifest.json",
    output:
        manifest=update(f"{RUN}/initial/manifest.json"),
        provenance=update(f"{RUN}/initial/provenance.json"),
    log:
        "logs/{experiment}/seed_{seed}/convert.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/convert.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("convert").threads
    resources:
        gpu=needs("convert").gpus,
        mem_mb=memory("convert"),
        runtime=needs("convert").minutes,
    params:
        job=job("convert"),
        arguments=arguments,
    message:
        "convert: seed {wildcards.seed}"
    shell:
        RUN_STAGE


rule export:
    input:
        script=SCRIPT,
        code=code("export"),
        policy=f"{RUN}/policy/manifest.json",
    output:
        manifest=update(f"{RUN}/exported/manifest.json"),
        provenance=update(f"{RUN}/exported/provenance.json"),
    log:
        "logs/{experiment}/seed_{seed}/export.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/export.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: needs("export").threads
    resources:
        gpu=needs("export").gpus,
        mem_mb=memory("export"),
        runtime=needs("export").minutes,
    params:
        job=job("export"),
        arguments=arguments,
    message:
        "export: seed {wildcards.seed}"
    shell:
        RUN_STAGE
