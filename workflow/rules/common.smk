"""What the rules share: the checked parameters, and which files a stage reads. No rules here."""

import os
import sys
from pathlib import Path

from dagrpo.utils.ancestors import STARTED_BY, name_as_starter
from dagrpo.utils.devices import visible_devices
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline import jobs
from dagrpo.pipeline.snakemake.reconcile import agree
from dagrpo.pipeline.snakemake.configuration import (
    PARAMS,
    checked,
    told_by_snakemake,
)
from dagrpo.pipeline.dvc.file import keep_current, require_current
from dagrpo.pipeline.dvc.links import keep_other_experiments
from dagrpo.pipeline.dvc.lock import require_readable_lock
from dagrpo.pipeline.snakemake.folder import (
    require_mirror,
    require_possible_weights_folder,
)
from dagrpo.pipeline.snakemake.finish import (
    begin,
    record_runs,
    require_same_parameters,
    show_results,
)
from dagrpo.pipeline.snakemake.invocation import (
    is_command,
    require_own_targets,
    runs_jobs,
    wants_report,
)
from dagrpo.pipeline.locks import hold, is_run_by_another
from dagrpo.pipeline.dvc.recording import commit, record_left_over
from dagrpo.pipeline.snakemake.stop import stop_with_stages
from dagrpo.pipeline.trial_runs import try_of
from dagrpo.config.schema import read_params

# Two OpenMP threads that spin while they wait collapse as soon as another process wants a core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

params = checked(config)
experiment = params.experiment
a_try = told_by_snakemake(lambda: try_of(params, read_params(PARAMS)))
FOLDER = a_try.folder
if is_command():
    # Also the Snakemake that runs one job on another machine: there it is the one above the stage.
    os.environ[STARTED_BY] = name_as_starter()


def prepare_plan():
    """What a command needs before its jobs are planned."""
    require_current(params)
    require_own_targets(FOLDER)
    require_mirror(params, FOLDER)
    require_possible_weights_folder(params)
    if runs_jobs():
        hold(FOLDER)
        if not a_try.is_one:
            require_readable_lock()
    # Also before a dry run, whose plan is read from Snakemake's records, and for `dvc status` after it.
    keep_current(params, overridden=a_try.is_one)
    keep_other_experiments()
    if runs_jobs() or not is_run_by_another(FOLDER):
        agree(a_try, params)
    if runs_jobs():
        record_left_over(FOLDER)


if workflow.is_main_process and is_command():
    told_by_snakemake(prepare_plan)

# Stages run under the Python that runs Snakemake, whatever environment is active; its path in RUN_STAGE would run them again elsewhere.
os.environ.update(
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.getenv("PATH", os.defpath)]
    )
)
SCRIPT = jobs.SCRIPT
RUN_STAGE = "python {input.script} --job {params.job} {params.arguments} --log {log}"
MODEL = f"models/{{experiment}}/{params.model.name}/manifest.json"
TEACHER = "models/{experiment}/teacher/manifest.json"
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
    return told_by_snakemake(lambda: jobs.code_files(params, all_stages()[stage]))


def job(stage):
    """The file with the stage's own parameters; its name changes with them."""
    return told_by_snakemake(lambda: jobs.job_file(params, all_stages()[stage]))


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
            *("--experiment", wildcards.experiment),
            *seed,
            *jobs.file_arguments(input.items(), output.items()),
            *told_by_snakemake(shared_arguments),
        ]
    )


def shared_arguments():
    """The part of a command line that is the same for all jobs of a run."""
    overrides = jobs.overrides_file(a_try.overrides) if a_try.is_one else None
    return [
        *("--runtime", jobs.runtime_file(params)),
        *("--configuration", jobs.configuration_file(params)),
        *(("--overrides", overrides) if overrides else ()),
    ]


def train_split(wildcards):
    """What training draws its problems from, before they are rated."""
    return f"data/{wildcards.experiment}/{experiment.train}/train.parquet"


def train_passages(wildcards):
    """What the tools of the task that is trained on may search."""
    return f"data/{wildcards.experiment}/{experiment.train}/passages.parquet"


def held_out_data(wildcards):
    """What the policy answers while it is trained, where training.evaluate_every asks for it."""
    return told_by_snakemake(lambda: jobs.held_out_data(params, wildcards.experiment))


def splits_of_report(wildcards):
    """What the report takes the kinds and the pictures of problems from."""
    return told_by_snakemake(
        lambda: jobs.splits_of_report(params, wildcards.experiment)
    )


def teacher_folder(wildcards):
    """The manifest of the checkpoint that is there already, where algorithm.teacher names one; else nothing."""
    return told_by_snakemake(lambda: jobs.teacher_folder(params))


def checkpoint_to_evaluate(wildcards):
    folder = CHECKPOINT_OF[wildcards.policy]
    return f"{RUN}/{folder}/manifest.json".format(**wildcards)


def of_every_seed(*patterns):
    """The paths of patterns below each seed's folder."""
    folder = f"results/{FOLDER}/runs/seed_{{seed}}"
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
        *(f"data/{FOLDER}/{task}/provenance.json" for task in experiment.tasks),
        f"models/{FOLDER}/{params.model.name}/provenance.json",
        f"models/{FOLDER}/teacher/provenance.json",
        f"results/{FOLDER}/difficulty/provenance.json",
        *of_every_seed(*checkpoints),
        *of_every_evaluation("completions.provenance.json"),
        *of_every_evaluation("scores.provenance.json"),
    ]


def everything():
    """What an experiment consists of, so that nothing of it may be missing."""
    files = [
        *(f"{name}/manifest.json" for name in ("sft", "initial", "policy", "exported")),
        "rollouts/manifest.json",
        "metrics.parquet",
        "held_out.parquet",
    ]
    evaluations = ("completions.parquet", "scores.parquet", "scores.json")
    return [
        f"results/{FOLDER}/report/report.html",
        *of_every_seed(*files),
        *(path for name in evaluations for path in of_every_evaluation(name)),
        *every_provenance(),
    ]


def start():
    stop_with_stages()
    begin(a_try)
    if not workflow.remote_exec and "gpu" not in workflow.global_resources:
        # Jobs that need a GPU wait for one; where there is none they run on the CPU.
        devices = len(visible_devices())
        if devices:
            workflow.register_resource("gpu", devices)


def finish():
    commit(FOLDER)
    record_runs()
    told_by_snakemake(lambda: require_same_parameters(params))
    if wants_report():
        show_results(FOLDER)
