"""What the rules share: the checked parameters, and which files a stage reads. No rules here."""

import os
from pathlib import Path

from dagrpo.code import code_files
from dagrpo.workflow.configuration import (
    checked,
    differs_from_file,
    split_for_rollouts,
)
from dagrpo.workflow.finish import begin, commit, settle_tracking, show_results
from dagrpo.workflow.locks import release_stale_lock
from dagrpo.workflow.stages import sections

# Two OpenMP threads that spin while they wait collapse as soon as another process wants a core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
release_stale_lock(Path.cwd())

params = checked(config)
experiment = params.experiment
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


def own(stage):
    """The stage's own sections of params.yaml, as JSON."""
    return sections(params, stage)


def launcher(processes):
    """What starts a script in so many processes that find each other."""
    return "python" if processes == 1 else f"python -m dagrpo.launch {processes}"


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


def commit_what_ran():
    commit(overridden=differs_from_file(params))


def finish(name):
    commit_what_ran()
    settle_tracking()
    show_results(name)
