"""Rules of an experiment for the Snakefile, and hooks around its jobs."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markdown import Markdown
from snakemake.io import report
from snakemake.ioflags import update

from dagrpo.config.places import ROOT, SCRIPT, place_of
from dagrpo.config.schema import read_params
from dagrpo.core.errors import UserError
from dagrpo.pipeline import dag, job_files
from dagrpo.pipeline.declaration import Needs, Stage, names_in, patterns_of
from dagrpo.pipeline.dvc.file import keep_current, require_current
from dagrpo.pipeline.dvc.links import keep_other_experiments
from dagrpo.pipeline.dvc.lock import require_readable_lock
from dagrpo.pipeline.dvc.recording import commit, record_left_over
from dagrpo.pipeline.locks import hold, is_run_by_another, note_executor
from dagrpo.pipeline.override_runs import PARAMS, override_run
from dagrpo.pipeline.record import PART
from dagrpo.pipeline.runner import dvc_drives
from dagrpo.pipeline.snakemake.checks import (
    checked,
    refused,
    require_hub,
    require_mirror,
    require_own_targets,
    require_possible_weights_folder,
    require_project,
    require_status_of_jobs,
    require_unedited,
)
from dagrpo.pipeline.snakemake.private import (
    call_around_the_jobs,
    executor_name,
    leave_threads_to_jobs,
    options,
    run_in_slurm,
    runs_jobs,
)
from dagrpo.pipeline.snakemake.reconcile import reconcile
from dagrpo.pipeline.snakemake.stop import stop_with_stages
from dagrpo.pipeline.stages.teacher import require_source
from dagrpo.tracking.attempt import follow_jobs, leave_database_to_the_head
from dagrpo.tracking.sync import record_what_is_new, require_recordable
from dagrpo.tracking.variations import TRY
from dagrpo.utils import slurm
from dagrpo.utils.console import VisibleConsole, say
from dagrpo.utils.devices import visible_devices
from dagrpo.utils.files import json_text, read_text
from dagrpo.utils.watchdog import STARTED_BY, name_as_starter

__all__ = ["Experiment", "require_project"]
SECONDS_BETWEEN_SYNCS = 60  # under DVC
SLURM = "slurm"  # as Snakemake calls its executor; within a job "slurm-jobstep"
CAPTIONS = ROOT / "workflow/report"
_prepared = set[str]()  # experiments: of a module, Snakemake reads the Snakefile for each `use rule`


class Experiment:
    """The experiment of params.yaml and --config, for the Snakefile: its rules, its outputs, and what frames its jobs."""

    def __init__(self, workflow: Any, config: Mapping[str, Any]) -> None:
        """Check everything that a command needs before its jobs are planned. Raises Refusal with what to change."""
        self._workflow = workflow
        self.params = checked(config)
        self._run = refused(lambda: override_run(self.params, read_params(PARAMS)))
        self.folder = self._run.folder
        executor = executor_name()
        self.has_gpus = not executor.startswith(SLURM) or slurm.has_gpus() is not False
        _set_environment()
        leave_threads_to_jobs(workflow)
        if workflow.remote_exec:
            leave_database_to_the_head()
        if options() is not None:
            os.environ[STARTED_BY] = name_as_starter()  # also in a Snakemake that runs one job on another machine
            if workflow.is_main_process and self.folder not in _prepared:
                refused(self._prepare)
                _prepared.add(self.folder)
        call_around_the_jobs(workflow, self.start, self.finish, self.record)
        self.rules = [Rule(self, stage) for stage in dag.in_order()]

    def _prepare(self) -> None:
        require_current(self.params)
        require_own_targets(self.folder)
        require_mirror(self.params, self.folder)
        require_possible_weights_folder(self.params)
        require_source(self.params)
        is_run = runs_jobs()
        if is_run:
            require_status_of_jobs()
            require_recordable()
            require_hub(self.params)
            hold(self.folder)
            if not self._run.overrides:
                require_readable_lock()
        # Also before a dry run, whose plan is read from Snakemake's records, and for `dvc status` after it.
        keep_current(self.params, overridden=bool(self._run.overrides))
        keep_other_experiments()
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

    def start(self) -> None:
        """Pass signals on to the stages, announce an override run, and count the GPUs: a job that needs one waits for it."""
        stop_with_stages()
        if self._workflow.is_main_process and not self._workflow.local_exec:
            note_executor(self.folder, executor_name(), run_in_slurm(self._workflow))
            follow_jobs(self.folder)
        if self._run.overrides:
            changes = ", ".join(f"{key}: {json_text(value).strip()}" for key, value in self._run.overrides.items())
            say(f"An override run, with {changes}: its folders are called {self.folder}, and DVC does not record it.")
        workflow, devices = self._workflow, len(visible_devices())
        if devices and workflow.local_exec and not workflow.remote_exec and "gpu" not in workflow.global_resources:
            workflow.register_resource("gpu", devices)  # without one, such jobs run on the CPU

    def finish(self) -> None:
        """Record the results in DVC and MLflow, and show them if the report is among the targets."""
        self.record()
        refused(lambda: require_unedited(self.params))
        targets = (given.targets if (given := options()) else None) or ["target"]
        if any(name == "target" or "/report/" in name for name in targets):
            _show_results(self.folder, self.params.training.learning_rate)

    def record(self) -> None:
        """Record the results in DVC and MLflow."""
        commit(self.folder)
        _record_runs()


class Rule:
    """A stage as a rule of Snakemake."""

    def __init__(self, experiment: Experiment, stage: Stage) -> None:
        params = experiment.params
        self._experiment = experiment
        self._stage = stage
        self._needs: Needs = stage.needs(params.runtime)
        self.name = stage.name
        code = refused(lambda: job_files.code_files(params, stage))  # what the result depends on, beside its data
        self.code, self.script = [str(place_of(name)) for name in code], str(place_of(SCRIPT))
        self.inputs = {name: self._input(name) for name in stage.inputs}
        self.outputs = {name: self._output(name) for name in stage.outputs}
        self.log = f"{dag.log_of(stage)}.log"
        self.benchmark = f"{dag.log_of(stage)}.benchmark.tsv"
        self.threads = self._needs.threads
        self.gpus = self._needs.gpus if experiment.has_gpus else 0
        self.job = refused(lambda: job_files.job_file(params, stage))  # another value of a parameter is another name
        self.message = f"{stage.name}: {self._label()}"

    def _input(self, name: str) -> Callable[[Mapping[str, str]], str | list[str]]:
        params, stage = self._experiment.params, self._stage

        def paths(wildcards: Mapping[str, str]) -> str | list[str]:
            found = dag.input_paths(stage, name, params, dict(wildcards.items()))
            return found[0] if isinstance(stage.inputs[name], str) and len(found) == 1 else found

        return paths

    def _output(self, name: str) -> Any:
        """Return an output that stays where it is until the stage replaces it; one of Snakemake's report has its caption."""
        paths, content = self._stage.outputs[name], self._stage.pages.get(name)
        if self._stage.spreads or not isinstance(paths, str):
            patterns, params = patterns_of(self._stage.outputs)[name], self._experiment.params
            return [update(path) for each in patterns for path in dag.over_spread(each, self._stage, params)]
        if content is None:
            return update(paths)
        caption = CAPTIONS / f"{Path(paths).stem}.rst"
        labels = {"experiment": "{experiment}", "shows": content}
        return update(report(paths, caption=str(caption), category="Results", labels=labels))

    def _label(self) -> str:
        text = self._stage.label.replace("{train}", self._experiment.params.experiment.train)
        for name in names_in(text):
            text = text.replace(f"{{{name}}}", f"{{wildcards.{name}}}")
        return text

    def memory(self, wildcards: object, input: Sequence[object], attempt: int) -> int:
        """Return megabytes: a fixed part, and a multiple of the checkpoint that the job reads, once that is known."""
        return job_files.memory_mb(self._needs, [str(path) for path in input], attempt)

    def minutes(self, wildcards: object, input: Sequence[object], attempt: int) -> int:
        """Return the time limit of one attempt. A stage with steps resumes from its state, and needs no longer one."""
        return job_files.minutes(self._needs, [str(path) for path in input]) * (1 if self._stage.extends else attempt)

    def arguments(self, wildcards: Mapping[str, str], input: Any, output: Any) -> str:
        """Return the rest of a command line. Snakemake compares none of it: it follows from the files, or changes no result."""
        given = dict(wildcards.items())
        return " ".join(
            [
                *("--experiment", given["experiment"]),
                *(("--seed", given["seed"]) if "seed" in given else ()),
                *self._files(given, input, output),
                *refused(self._experiment.shared_arguments),
            ]
        )

    def _files(self, wildcards: Mapping[str, str], input: Any, output: Any) -> Iterator[str]:
        stage, params = self._stage, self._experiment.params
        if not stage.spreads:
            yield from job_files.file_arguments(input.items(), output.items())
            return
        parts = dag.parts_of(stage, params, wildcards)
        shared = {name: paths for name, paths in parts[0].inputs.items() if all(p.inputs[name] == paths for p in parts)}
        yield from job_files.file_arguments(shared.items(), ())
        for part in parts:
            own = [(name, paths) for name, paths in part.inputs.items() if name not in shared]
            made = [(name, paths if len(paths) > 1 else paths[0]) for name, paths in part.outputs.items()]
            yield from job_files.file_arguments(own, made, f"{PART}{part.wildcards[stage.spreads]}")


def _set_environment() -> None:
    """Give stages the Python that runs Snakemake, whatever environment is active, and threads that do not spin."""
    programs = [str(Path(sys.executable).parent), os.getenv("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(programs)  # a path in the command would make Snakemake run it again elsewhere
    # Two OpenMP threads that spin while they wait collapse as soon as another process wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _record_runs() -> None:
    """Bring the stages' results into MLflow, whose import takes seconds; print the reason if that fails.

    Under DVC every stage is a separate workflow: there the last stage does it, and one per minute before it.
    """
    last = dag.in_order()[-1].name
    is_last = os.environ.get("DVC_STAGE", last).startswith(last)
    trouble = record_what_is_new(0 if is_last else SECONDS_BETWEEN_SYNCS)
    if trouble:
        print(f"Some results are not recorded in MLflow yet: {trouble}", file=sys.stderr)


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
    """Return three commands with their meanings; below `make`, whose PATH ends with it, with the folder of their programs."""
    programs = ".venv/bin/" if "MAKELEVEL" in os.environ else ""
    name, overridden, _ = experiment.partition(TRY)
    vary = f"{programs}snakemake --cores all target --config training__learning_rate={learning_rate / 2:g}"
    compare = f"{programs}dagrpo compare {name} {experiment}"
    return [
        (f"{programs}dagrpo show {experiment}", "the best and the worst completions of the last step"),
        (f"{programs}dagrpo ui", "the curves of all runs, in MLflow"),
        (compare, "which one is better, by how much") if overridden else (vary, "the same at half the learning rate"),
    ]
