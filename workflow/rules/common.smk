"""What the rules share: the checked parameters, and which files a stage reads. No rules here."""

import os
from pathlib import Path

from dagrpo.execution.ancestors import STARTED_BY, name_as_starter
from dagrpo.execution.devices import visible_devices
from dagrpo.stages import all_stages
from dagrpo.workflow import jobs
from dagrpo.workflow.configuration import (
    checked,
    differs_from_file,
    split_for_rollouts,
    told_by_snakemake,
)
from dagrpo.workflow.dvc_file import keep_current, require_current
from dagrpo.workflow.finish import begin, commit, settle_tracking, show_results
from dagrpo.workflow.locks import forget_owner, note_owner, release_stale_lock
from dagrpo.workflow.stop import stop_on_sigterm

# Two OpenMP threads that spin while they wait collapse as soon as another process wants a core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

params = checked(config)
experiment = params.experiment
overridden = differs_from_file(params)
if workflow.is_main_process:
    os.environ[STARTED_BY] = name_as_starter()
    release_stale_lock(Path.cwd())
    told_by_snakemake(lambda: require_current(params))

SCRIPT = "workflow/scripts/stage.py"
RUN_STAGE = "python {input.script} --job {params.job} {params.arguments} --log {log}"
RUN = "results/{experiment}/runs/seed_{seed}"
OTHER_FIGURES = [
    f"results/{{experiment}}/report/figures/{name}"
    for name in (
        "learning_curve.svg",
        "base_vs_trained.svg",
        *(
            f"{figure}.{kind}"
            for figure in (
                "reward_distribution",
                "completion_length",
                "logprob_difference",
            )
            for kind in ("png", "svg")
        ),
    )
]
CHECKPOINT_OF = {"base": "sft", "trained": "exported"}


def code(stage):
    """The files that the stage's result depends on, beside its data."""
    return jobs.code_files(params, all_stages()[stage])


def job(stage):
    """The file with the stage's own parameters; its name changes with them."""
    return jobs.job_file(params, all_stages()[stage])


def needs(stage):
    """What a job of the stage takes of a machine."""
    return all_stages()[stage].needs(params.runtime)


def memory(stage):
    """Megabytes: a fixed part, and a multiple of the checkpoint that the job reads, once that is known."""

    def megabytes(wildcards, input):
        return jobs.memory_mb(needs(stage), [str(path) for path in input])

    return megabytes


def arguments(wildcards, input, output):
    """The rest of a stage's command line. Snakemake compares none of it: it follows from the files, or changes no result."""
    seed = ["--seed", wildcards.seed] if "seed" in wildcards.keys() else []
    return " ".join(
        [
            *("--experiment", experiment.name),
            *seed,
            *jobs.file_arguments(input.items(), output.items()),
            *("--runtime", jobs.runtime_file(params)),
        ]
    )


def train_split(wildcards):
    """What training draws its problems from, before they are rated."""
    return split_for_rollouts(
        experiment.train, f"data/{experiment.train}/train.parquet"
    )


def test_split(wildcards):
    return split_for_rollouts(wildcards.task, f"data/{wildcards.task}/test.parquet")


def checkpoint_to_evaluate(wildcards):
    folder = CHECKPOINT_OF[wildcards.policy]
    return f"{RUN}/{folder}/manifest.json".format(**wildcards)


def of_every_seed(*patterns):
    """The paths of patterns below each seed's folder."""
    folder = f"results/{experiment.name}/runs/seed_{{seed}}"
    return [
        f"{folder}/{p}".format(seed=seed) for seed in experiment.seeds for p in patterns
    ]


def of_every_evaluation(name):
    """One file of each evaluation: every seed, task and policy."""
    folders = expand(
        "eval/{task}/{policy}", task=experiment.evaluate, policy=CHECKPOINT_OF
    )
    return of_every_seed(*(f"{folder}/{name}" for folder in folders))


def every_provenance():
    """What the lineage table of the report is made of."""
    checkpoints = [
        f"{folder}/provenance.json"
        for folder in ("sft", "initial", "policy", "exported")
    ]
    return [
        *(f"data/{task}/provenance.json" for task in experiment.tasks),
        f"models/{params.model.name}/provenance.json",
        f"results/{experiment.name}/difficulty/provenance.json",
        *of_every_seed(*checkpoints),
        *of_every_evaluation("completions.provenance.json"),
        *of_every_evaluation("scores.provenance.json"),
    ]


def start():
    stop_on_sigterm()
    note_owner(Path.cwd())
    begin()
    keep_current(params, overridden=overridden)
    if not workflow.remote_exec and "gpu" not in workflow.global_resources:
        # Jobs that need a GPU wait for one; where there is none they run on the CPU.
        devices = len(visible_devices())
        if devices:
            workflow.register_resource("gpu", devices)


def commit_what_ran():
    commit(overridden=overridden)
    forget_owner(Path.cwd())


def finish(name):
    commit_what_ran()
    settle_tracking()
    show_results(name)
