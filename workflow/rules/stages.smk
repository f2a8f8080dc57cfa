"""A rule for each stage. Its inputs, outputs, parameters and needs are declared in src/dagrpo/pipeline/stages/<stage>.py."""

for stage in experiments.rules:

    rule:
        name:
            stage.name
        input:
            **stage.inputs,
            script=stage.script,
        output:
            **stage.outputs,
        log:
            stage.log,
        benchmark:
            stage.benchmark
        wildcard_constraints:
            **stage.constraints,
        conda:
            "../envs/project.yaml"
        threads: stage.threads
        resources:
            **stage.resources,
            gpu=stage.gpus,
            mem_mb=stage.memory,
            runtime=stage.minutes,  # of one attempt
        params:
            job=stage.job,
            arguments=stage.arguments,
        message:
            stage.message
        shell:
            "python {input.script:q} --job {params.job} {params.arguments} --log {log}"


if experiments.sweep:

    rule sweep:
        input:
            experiments.outputs("score", "report"),
        output:
            experiments.page,
        log:
            f"logs/{experiments.name}/sweep.log",
        params:
            sweep=experiments.sweep,
        message:
            "sweep: {params.sweep}"
        shell:
            "dagrpo sweep {params.sweep:q} --html {output:q} > {log}"
