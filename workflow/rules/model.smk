"""The policy before GRPO: the model as it comes, then a supervised fine-tuning."""


rule model:
    input:
        script="workflow/scripts/model.py",
        code=code_files("model"),
    output:
        manifest="models/{model}/manifest.json",
        provenance="models/{model}/provenance.json",
    log:
        "logs/model/{model}.log",
    benchmark:
        "logs/model/{model}.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: 1
    resources:
        mem_mb=4000,
    params:
        experiment=experiment.name,
        sections=own("model"),
    message:
        "model: {wildcards.model}"
    shell:
        "python {input.script} --experiment {params.experiment} --params {params.sections:q}"
        " --output manifest={output.manifest} --output provenance={output.provenance} --log {log}"


rule sft:
    input:
        script="workflow/scripts/sft.py",
        code=code_files("sft"),
        model=f"models/{params.model.name}/manifest.json",
        train=train_split,
    output:
        manifest=f"{RUN}/sft/manifest.json",
        provenance=f"{RUN}/sft/provenance.json",
    log:
        "logs/{experiment}/seed_{seed}/sft.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/sft.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: 2
    resources:
        mem_mb=4000,
    params:
        sections=own("sft"),
    message:
        "sft: seed {wildcards.seed}"
    shell:
        "python {input.script} --experiment {wildcards.experiment} --seed {wildcards.seed}"
        " --params {params.sections:q} --input model={input.model} --input train={input.train}"
        " --output manifest={output.manifest} --output provenance={output.provenance} --log {log}"
