"""GRPO. Its resumable state is not an output: a failed job would lose it."""


rule train:
    input:
        script="workflow/scripts/train.py",
        code=code_files("train"),
        initial=f"{RUN}/initial/manifest.json",
        train="results/{experiment}/difficulty/train.parquet",
    output:
        policy=f"{RUN}/policy/manifest.json",
        metrics=f"{RUN}/metrics.parquet",
        rollouts=f"{RUN}/rollouts/manifest.json",
        provenance=f"{RUN}/policy/provenance.json",
    log:
        "logs/{experiment}/seed_{seed}/train.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/train.benchmark.tsv"
    retries: 3
    conda:
        "../envs/project.yaml"
    threads: max(2, params.runtime.training.processes)
    resources:
        mem_mb=8000,
    params:
        sections=own("train"),
        launcher=launcher(params.runtime.training.processes),
    message:
        "train: seed {wildcards.seed}"
    shell:
        "{params.launcher} {input.script} --experiment {wildcards.experiment} --seed {wildcards.seed}"
        " --params {params.sections:q} --input initial={input.initial} --input train={input.train}"
        " --output policy={output.policy} --output metrics={output.metrics}"
        " --output rollouts={output.rollouts} --output provenance={output.provenance} --log {log}"
