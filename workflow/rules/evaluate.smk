"""Sampling on the test split, and scoring of what was sampled: another extractor samples nothing again."""


rule sample:
    input:
        script="workflow/scripts/sample.py",
        code=code_files("sample"),
        model=checkpoint_to_evaluate,
        test=test_split,
    output:
        completions=f"{RUN}/eval/{{task}}/{{policy}}/completions.parquet",
        provenance=f"{RUN}/eval/{{task}}/{{policy}}/completions.provenance.json",
    log:
        "logs/{experiment}/seed_{seed}/sample_{task}_{policy}.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/sample_{task}_{policy}.benchmark.tsv"
    retries: 1
    conda:
        "../envs/project.yaml"
    threads: 1
    resources:
        mem_mb=4000,
    params:
        sections=own("sample"),
    message:
        "sample: {wildcards.policy} policy on {wildcards.task}, seed {wildcards.seed}"
    shell:
        "python {input.script} --experiment {wildcards.experiment} --seed {wildcards.seed}"
        " --params {params.sections:q} --input model={input.model} --input test={input.test}"
        " --output completions={output.completions} --output provenance={output.provenance} --log {log}"


rule score:
    input:
        script="workflow/scripts/score.py",
        code=code_files("score"),
        completions=f"{RUN}/eval/{{task}}/{{policy}}/completions.parquet",
    output:
        scores=f"{RUN}/eval/{{task}}/{{policy}}/scores.parquet",
        summary=f"{RUN}/eval/{{task}}/{{policy}}/scores.json",
        provenance=f"{RUN}/eval/{{task}}/{{policy}}/scores.provenance.json",
    log:
        "logs/{experiment}/seed_{seed}/score_{task}_{policy}.log",
    benchmark:
        "logs/{experiment}/seed_{seed}/score_{task}_{policy}.benchmark.tsv"
    retries: 0
    conda:
        "../envs/project.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        sections=own("score"),
    message:
        "score: {wildcards.policy} policy on {wildcards.task}, seed {wildcards.seed}"
    shell:
        "python {input.script} --experiment {wildcards.experiment} --seed {wildcards.seed}"
        " --params {params.sections:q} --input completions={input.completions}"
        " --output scores={output.scores} --output summary={output.summary}"
        " --output provenance={output.provenance} --log {log}"
