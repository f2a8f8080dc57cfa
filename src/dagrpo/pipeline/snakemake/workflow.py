"""Rules of an experiment for the Snakefile, and hooks around its jobs."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

from rich.markdown import Markdown
from snakemake.io import report
from snakemake.ioflags import update

from dagrpo.config.places import ROOT, SCRIPT, place_of
from dagrpo.config.schema import Params, read_params
from dagrpo.config.sweeps import read_sweep
from dagrpo.core.errors import UserError
from dagrpo.pipeline import dag, job_files
from dagrpo.pipeline.declaration import Needs, Stage, names_in, patterns_of
from dagrpo.pipeline.dvc.file import keep_current, require_current
from dagrpo.pipeline.dvc.recording import commit, record_left_over, require_readable_lock
from dagrpo.pipeline.locks import hold, is_run_by_another, note_executor
from dagrpo.pipeline.override_runs import PARAMS, TRY, CellRun, OverrideRun, cell_runs, override_run
from dagrpo.pipeline.planner import planner
from dagrpo.pipeline.record import PART
from dagrpo.pipeline.runner import dvc_drives
from dagrpo.pipeline.snakemake.checks import (
    OTHER_FILE,
    SWEEPS,
    checked,
    refused,
    require_hub,
    require_mirror,
    require_own_targets,
    require_possible_weights_folder,
    require_project,
    require_raw_files,
    require_status_of_jobs,
    require_unedited,
)
from dagrpo.pipeline.snakemake.reconcile import reconcile
from dagrpo.pipeline.snakemake.stop import stop_with_stages
from dagrpo.pipeline.snakemake_private import (
    call_around_the_jobs,
    executor_name,
    leave_threads_to_jobs,
    options,
    retries,
    run_in_slurm,
    runs_jobs,
    stages_of_a_job,
)
from dagrpo.pipeline.tracker import tracker
from dagrpo.utils import slurm
from dagrpo.utils.addresses import require_address
from dagrpo.utils.console import VisibleConsole, duration, say
from dagrpo.utils.devices import visible_devices
from dagrpo.utils.files import json_text, read_text
from dagrpo.utils.watchdog import STARTED_BY, name_as_starter

__all__ = ["Experiments", "require_project"]
SWEEP = "sweep"  # of --config: the name of a sweep, or its file
SECONDS_BETWEEN_SYNCS = 60  # under DVC
SLURM = "slurm"  # as Snakemake calls its executor; within a job "slurm-jobstep"
TRAIN = "train"
# The limit of a job, by the planned time with every completion as long as it may be:
PLANNED_TIMES, MINUTES_BESIDE = 1.5, 30
CAPTIONS = ROOT / "workflow/report"
_prepared = set[str]()  # experiments: of a module, Snakemake reads the Snakefile for each `use rule`


class Experiments:
    """The experiments of a command, for the Snakefile: that of params.yaml and --config, or the cells of a sweep."""

    def __init__(self, workflow: Any, config: Mapping[str, Any]) -> None:
        """Check everything that a command needs before its jobs are planned. Raises Refusal with what to change."""
        self._workflow = workflow
        params = checked({key: value for key, value in config.items() if key != SWEEP})
        file = refused(lambda: read_params(PARAMS))
        self.name = params.experiment.name
        self.sweep = str(config[SWEEP]) if SWEEP in config else None
        if OTHER_FILE in config:
            runs = [(params, OverrideRun(folder=self.name, overrides={OTHER_FILE: str(config[OTHER_FILE])}))]
        elif self.sweep is None:
            runs = [(params, refused(lambda: override_run(params, file)))]
        else:
            runs = [(cell.params, cell.run) for cell in refused(lambda: _cells(str(self.sweep), params, file))]
        self._all = [Experiment(params, run) for params, run in runs]
        # Stages run on the Python of Snakemake, whatever environment is active: a path in the command would make them run again elsewhere.
        programs = [str(Path(sys.executable).parent), os.getenv("PATH", os.defpath)]
        os.environ["PATH"] = os.pathsep.join(programs)
        # Two OpenMP threads that spin while they wait collapse as soon as another process wants a core.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        leave_threads_to_jobs(workflow)
        self._tracker = tracker()
        if workflow.remote_exec and self._tracker is not None:
            self._tracker.leave_database_to_the_head()
        if options() is not None:
            os.environ[STARTED_BY] = name_as_starter()  # also in a Snakemake that runs one job on another machine
            if workflow.is_main_process and self.description not in _prepared:
                refused(lambda: require_own_targets([each.folder for each in self._all]))
                for each in self._all:
                    refused(each.prepare)
                _prepared.add(self.description)
        call_around_the_jobs(workflow, self.start, self.finish, self.record)
        has_gpus = not executor_name().startswith(SLURM) or slurm.has_gpus() is not False
        there = {job.stage for each in self._all for job in dag.planned_jobs(each.params, each.folder)}
        self.rules = [Rule(self._all, stage, has_gpus=has_gpus) for stage in dag.in_order() if stage.name in there]
        self.page = f"results/{self.name}/{SWEEPS}/{Path(self.sweep).stem}.html" if self.sweep else None

    @property
    def description(self) -> str:
        """Name the experiment, or the sweep and its number of cells."""
        if self.sweep is None:
            return self._all[0].folder
        return f"sweep {self.sweep} of {self.name}, {len(self._all)} cells"

    def outputs(self, *stages: str) -> list[str]:
        """List the outputs of some stages of all experiments, by default of all stages, with the page of a sweep."""
        files = [path for each in self._all for path in each.outputs(*stages)]
        return [*files, self.page] if self.page and not stages else files

    def start(self) -> None:
        """Pass signals on to the stages, announce what runs, and count the GPUs: a job that needs one waits for it."""
        stop_with_stages()
        if self._workflow.is_main_process and not self._workflow.local_exec:
            for each in self._all:
                note_executor(each.folder, executor_name(), run_in_slurm(self._workflow))
            if self._tracker is not None:
                self._tracker.follow_jobs({each.folder for each in self._all})
        if self.sweep is None:
            self._all[0].announce()
        else:
            say(f"A {self.description}: each is an override run, in folders {self.name}{TRY}...")
        workflow, devices = self._workflow, len(visible_devices())
        if devices and workflow.local_exec and not workflow.remote_exec and "gpu" not in workflow.global_resources:
            workflow.register_resource("gpu", devices)  # without one, such jobs run on the CPU

    def finish(self) -> None:
        """Record the results in DVC and MLflow, and show them if the report is among the targets."""
        self.record()
        params = self._all[0].params
        refused(lambda: require_unedited(params))
        targets = (given.targets if (given := options()) else None) or ["target"]
        if not any(name == "target" or "/report/" in name for name in targets):
            return
        if self.sweep is None:
            _show_results(self._all[0].folder, params.training.learning_rate)
        else:
            say(f"Sweep: {Path(str(self.page)).resolve()}; `dagrpo sweep {self.sweep}` prints it.")

    def record(self) -> None:
        """Record the results in DVC and MLflow, whose import takes seconds; print the reason if that fails.

        Under DVC every stage is a separate workflow: there the last stage does it, and one per minute before it.
        """
        for each in self._all:
            commit(each.folder)
        last = dag.in_order()[-1].name
        is_last = os.environ.get("DVC_STAGE", last).startswith(last)
        every_s = 0 if is_last else SECONDS_BETWEEN_SYNCS
        if self._tracker is not None and (trouble := self._tracker.record_what_is_new(every_s)):
            print(f"Some results are not recorded in MLflow yet: {trouble}", file=sys.stderr)


def _cells(sweep: str, params: Params, file: Params) -> list[CellRun]:
    """List the cells of a sweep. Raises UserError beside other overrides, which `dagrpo sweep` would not know."""
    if overrides := override_run(params, file).overrides:
        raise UserError(
            f"--config {SWEEP}={sweep} stands alone: write {next(iter(overrides))} into params.yaml, or into the sweep."
        )
    cells = cell_runs(read_sweep(sweep), file.model_copy(update={"runtime": params.runtime}))
    if len({_policies(each.params) for each in cells}) > 1:
        raise UserError(
            f"the cells of the sweep {sweep} evaluate policies of different steps: give evaluation.policies one list of steps that all "
            "cells keep."
        )
    return cells


def _policies(params: Params) -> tuple[tuple[str, ...], ...]:
    evaluation, training = params.evaluation, params.training
    return tuple(evaluation.policy_names(training)), tuple(evaluation.candidates(training))


class Experiment:
    """One experiment: its outputs, and the files that its jobs are given."""

    def __init__(self, params: Params, run: OverrideRun) -> None:
        self.params = params
        self._run = run
        self.folder = run.folder
        # What the result of a stage depends on, beside its data. Another value of a parameter is another name of the job file.
        stages = dag.in_order()
        self.job = refused(lambda: {stage.name: job_files.job_file(params, stage) for stage in stages})

    @cached_property
    def planned_minutes(self) -> Mapping[str, float]:
        """Return the longest minutes of stages by the plan for the slowest GPU of SLURM's partitions; {} if that is not known."""
        types = slurm.gpu_types() if executor_name() == SLURM else []
        plans = planner() if types else None  # it loads torch
        return {} if plans is None else plans.minutes_on(self.params, types)

    def announce(self) -> None:
        """Say that it is an override run, if it is one, and if its training is longer than all jobs that retries allow."""
        longest, attempts = self.planned_minutes.get(TRAIN, 0.0), 1 + retries()
        needed = ceil(longest / self.params.runtime.job_minutes)
        if needed > attempts:
            say(
                f"The stage {TRAIN} may take {duration(60 * longest)} by `dagrpo plan`, and {attempts} jobs of runtime.job_minutes have "
                f"{duration(60 * attempts * self.params.runtime.job_minutes)}: set --retries to {needed - 1}."
            )
        if self._run.overrides:
            changes = ", ".join(f"{key}: {json_text(value).strip()}" for key, value in self._run.overrides.items())
            say(f"An override run, with {changes}: its folders are called {self.folder}, and DVC does not record it.")

    def prepare(self) -> None:
        """Check this machine and the former outputs, and lock the folders. Raises UserError with what to change."""
        require_current(self.params)
        require_mirror(self.params, self.folder)
        require_possible_weights_folder(self.params)
        require_raw_files(self.params, self.folder)
        if not executor_name().startswith(SLURM):
            runtime = self.params.runtime
            require_address(runtime.address, max(stage.nodes(runtime) for stage in dag.in_order()))
        is_run = runs_jobs()
        if is_run:
            require_status_of_jobs()
            require_hub(self.params)
            hold(self.folder)
            if not self._run.overrides:
                require_readable_lock()
        # Also before a dry run, whose plan is read from Snakemake's records, and for `dvc status` after it.
        keep_current(self.params, overridden=bool(self._run.overrides))
        if is_run or not is_run_by_another(self.folder):
            reconcile(self.params, self.folder)
        if is_run:
            record_left_over(self.folder)

    def outputs(self, *stages: str) -> list[str]:
        """List the outputs of some stages, by default of all."""
        planned = dag.planned_jobs(self.params, self.folder)
        return dag.all_files(job for job in planned if not stages or job.stage in stages)

    def shared_arguments(self) -> list[str]:
        """Return the part of a command line that is the same for all jobs of a run."""
        overrides = self._run.overrides
        return [
            *("--runtime", job_files.runtime_file(self.params)),
            *("--configuration", job_files.configuration_file(self.params)),
            *(("--overrides", job_files.overrides_file(overrides)) if overrides else ()),
        ]


class Rule:
    """A stage as a rule of Snakemake: of several experiments, the wildcard {experiment} says which one's parameters a job has."""

    def __init__(self, experiments: Sequence[Experiment], stage: Stage, *, has_gpus: bool) -> None:
        self._by_folder = {each.folder: each for each in experiments}
        self._any = experiments[0].params  # of what all cells have in common: the tasks
        self._stage = stage
        self._has_gpus = has_gpus
        self.name = stage.name
        self.script = str(place_of(SCRIPT))
        self.inputs = {name: self._input(name) for name in stage.inputs}
        self.outputs = {name: self._output(name) for name in stage.outputs}
        self.log = f"{dag.log_of(stage)}.log"
        self.benchmark = f"{dag.log_of(stage)}.benchmark.tsv"
        self.message = f"{stage.name}: {self._label()}"
        names = {"experiment": self._by_folder, "model": {each.params.model.name for each in experiments}}
        if "policy" in dag.wildcards_of(stage):
            names["policy"] = dag.own_values("policy", stage, self._any, experiments[0].folder)
        # A path of another experiment or model is not made with these parameters, nor that of a kept policy from a checkpoint.
        self.constraints = {name: "|".join(map(re.escape, sorted(values))) for name, values in names.items()}

    def _of(self, wildcards: Mapping[str, str]) -> Experiment:
        return self._by_folder[wildcards["experiment"]]

    def _needs(self, wildcards: Mapping[str, str]) -> Needs:
        return self._stage.needs(self._of(wildcards).params.runtime)

    def job(self, wildcards: Mapping[str, str]) -> str:
        """Return the path of the file with the stage's parameters and code."""
        return self._of(wildcards).job[self.name]

    def threads(self, wildcards: Mapping[str, str]) -> int:
        """Return the threads of all its processes; the cores of a job of SLURM, which gets no others."""
        needs, runtime = self._needs(wildcards), self._of(wildcards).params.runtime
        if not executor_name().startswith(SLURM):
            return needs.threads
        gpus = needs.gpus if self._has_gpus else 0
        return max(needs.threads + needs.beside, runtime.cores_per_gpu * gpus)

    def gpus(self, wildcards: Mapping[str, str]) -> int:
        """Return the number of GPUs; 0 where jobs go to a SLURM without any, and of a job of several nodes there."""
        return self._needs(wildcards).gpus if self._has_gpus and "gres" not in self.resources else 0

    @property
    def resources(self) -> dict[str, int | str]:
        """Return the resources that SLURM needs besides: for GPUs one node, else it may take them from two; {} outside of SLURM.

        Without GPUs a job is one task, which no two nodes share. A job of several nodes has all of these resources.
        `mpi`: the stage is started on the first node without srun, and starts the others itself. GPUs of each node: `gres`;
        `tasks_per_gpu` 0: the executor would else ask for `tasks` tasks on each of them.
        """
        runtime = self._any.runtime
        nodes = self._stage.nodes(runtime)
        if not executor_name().startswith(SLURM):
            return {}
        gpus = self._stage.needs(runtime).gpus if self._has_gpus else 0
        if nodes == 1:
            return {"nodes": 1} if gpus else {}
        asked: dict[str, int | str] = {"nodes": nodes, "tasks": nodes, "mpi": "srun"}
        return asked | {"gres": f"gpu:{gpus}", "tasks_per_gpu": 0} if gpus else asked

    def _input(self, name: str) -> Callable[[Mapping[str, str]], str | list[str]]:
        stage = self._stage

        def paths(wildcards: Mapping[str, str]) -> str | list[str]:
            found = dag.input_paths(stage, name, self._of(wildcards).params, dict(wildcards.items()))
            return found[0] if isinstance(stage.inputs[name], str) and len(found) == 1 else found

        return paths

    def _output(self, name: str) -> Any:
        """Return an output that stays where it is until the stage replaces it; one of Snakemake's report has its caption."""
        paths, content = self._stage.outputs[name], self._stage.pages.get(name)
        if self._stage.spreads or not isinstance(paths, str):
            patterns = patterns_of(self._stage.outputs)[name]
            return [update(path) for each in patterns for path in dag.over_spread(each, self._stage, self._any)]
        if content is None:
            return update(paths)
        caption = CAPTIONS / f"{Path(paths).stem}.rst"
        labels = {"experiment": "{experiment}", "shows": content}
        return update(report(paths, caption=str(caption), category="Results", labels=labels))

    def _label(self) -> str:
        text = self._stage.label
        if len(self._by_folder) > 1 and "experiment" not in names_in(text):
            text += ", {experiment}"
        for name in names_in(text):
            text = text.replace(f"{{{name}}}", f"{{wildcards.{name}}}")
        return text

    def memory(self, wildcards: Mapping[str, str], input: Sequence[object], attempt: int) -> int:
        """Return megabytes: a fixed part, and a multiple of the checkpoint that the job reads, once that is known."""
        return job_files.memory_mb(self._needs(wildcards), self._checkpoints(wildcards, input), attempt)

    def minutes(self, wildcards: Mapping[str, str], input: Sequence[object], attempt: int) -> int:
        """Return the time limit of one attempt, by the plan if SLURM names its GPUs. A stage with steps resumes."""
        experiment = self._of(wildcards)
        limit = job_files.minutes(self._needs(wildcards), self._checkpoints(wildcards, input))
        if (planned := experiment.planned_minutes.get(self.name)) is not None:
            limit = ceil(PLANNED_TIMES * planned) + MINUTES_BESIDE
        longest = experiment.params.runtime.job_minutes // stages_of_a_job(self.name)
        return min(limit if self._stage.extends else limit * attempt, longest)

    def _checkpoints(self, wildcards: Mapping[str, str], input: Sequence[object]) -> list[str]:
        name = self._needs(wildcards).checkpoint
        paths = input if name is None else self.inputs[name](wildcards)
        return [paths] if isinstance(paths, str) else [str(path) for path in paths]

    def arguments(self, wildcards: Mapping[str, str], input: Any, output: Any) -> str:
        """Return the rest of a command line. Snakemake compares none of it: it follows from the files, or changes no result."""
        given = dict(wildcards.items())
        whose = ["--experiment", given["experiment"], *(("--seed", given["seed"]) if "seed" in given else ())]
        return " ".join([*whose, *self._files(given, input, output), *refused(self._of(wildcards).shared_arguments)])

    def _files(self, wildcards: Mapping[str, str], input: Any, output: Any) -> Iterator[str]:
        stage, params = self._stage, self._of(wildcards).params
        if not stage.spreads:
            yield from job_files.file_arguments(input.items(), output.items())
            return
        parts = dag.parts_of(stage, params, wildcards)
        shared = {name: paths for name, paths in parts[0].inputs.items() if all(p.inputs[name] == paths for p in parts)}
        yield from job_files.file_arguments(shared.items(), ())
        for part in parts:
            own = [(name, paths) for name, paths in part.inputs.items() if name not in shared]
            made = [(name, paths if len(paths) > 1 else paths[0]) for name, paths in part.outputs.items()]
            value = ".".join(part.wildcards[name] for name in stage.spreads)
            yield from job_files.file_arguments(own, made, f"{PART}{value}")


def _show_results(experiment: str, learning_rate: float) -> None:
    """Print the report's summary table, the paths of the other results, and the commands that most people want next."""
    page = Path("results") / experiment / "report"
    summary = page / "summary.md"
    if dvc_drives() or not summary.exists():
        return
    console = VisibleConsole(stderr=True)
    try:
        text = read_text(summary, "run the stage report again")
    except UserError as error:
        say(str(error))
        return
    console.print(Markdown(text))
    console.print(f"Report: {(page / 'report.html').resolve()}", soft_wrap=True)
    times = Path("logs") / experiment / "times.html"
    if times.exists():
        console.print(f"Made:   {times.resolve()}", soft_wrap=True)
    console.print("Next:")
    for command, meaning in _next_commands(experiment, learning_rate):
        console.print(f"  {command}  # {meaning}", soft_wrap=True, highlight=False, markup=False)


def _next_commands(experiment: str, learning_rate: float) -> list[tuple[str, str]]:
    """Return three commands with their meanings, with the profiles of this one.

    Below `make`, whose PATH ends with it, with the folder of their programs.
    """
    programs = ".venv/bin/" if "MAKELEVEL" in os.environ else ""
    profiles = " ".join(f"--profile {each}" for each in getattr(options(), "profile", None) or [])
    run = f"{programs}snakemake {profiles or '--cores all'} target"
    name, overridden, _ = experiment.partition(TRY)
    last = (f"{run} --config training__learning_rate={learning_rate / 2:g}", "the same at half the learning rate")
    if overridden and (Path("results") / name / "report/summary.md").exists():
        last = (f"{programs}dagrpo compare {name} {experiment}", "which one is better, by how much")
    elif overridden:
        last = (run, "the experiment of params.yaml, to compare with")
    return [
        (f"{programs}dagrpo show {experiment}", "the best and the worst completions of the last step"),
        (f"{programs}dagrpo ui", "the curves of all runs, in MLflow"),
        last,
    ]
