"""Hugging Face to the trainer's sharded format, and back."""


rule convert:
    input:
        script="workflow/scripts/convert.py",
        code=code_files("convert"),
        source=f"{RUN}/sft/manifest.json",
    output:
        manifest=f"{RUN}/initial/manifest.json",
        provenance=f"{RUN}/initial/provenance.json",
    log:
        "logs/{experiment}/seed_{seed}/convert.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/convert.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        sections=own("convert"),
    message:
        "convert: seed {wildcards.seed}"
    shell:
        "python {input.script} --experiment {wildcards.experiment} --seed {wildcards.seed}"
        " --params {params.sections:q} --input source={input.source}"
        " --output manifest={output.manifest} --output provenance={output.provenance} --log {log}"


rule export:
    input:
        script="workflow/scripts/export.py",
        code=code_files("export"),
        policy=f"{RUN}/policy/manifest.json",
    output:
        manifest=f"{RUN}/exported/manifest.json",
        provenance=f"{RUN}/exported/provenance.json",
    log:
        "logs/{experiment}/seed_{seed}/export.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/export.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        sections=own("export"),
    message:
        "export: seed {wildcards.seed}"
    shell:
        "python {input.script} --experiment {wildcards.experiment} --seed {wildcards.seed}"
        " --params {params.sections:q} --input policy={input.policy}"
        " --output manifest={output.manifest} --output provenance={output.provenance} --log {log}"
