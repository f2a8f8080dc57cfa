"""Declarations of stages, the single source for rules, dvc.yaml and frame."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dagrpo.core.errors import UserError, nearest
from dagrpo.core.experiment import Train, learned, tasks_of
from dagrpo.core.section import Section
from dagrpo.trainer.config.runtime import Runtime

if TYPE_CHECKING:
    from dagrpo.config.schema import Params as Params
else:
    Params = Any  # for annotations: a stage that imports the schema has all of it as its code

WILDCARDS = (
    "experiment",
    "model",
    "seed",
    "task",
    "train",
    "validated",
    "policy",
    "step",
    "candidate",
)  # of outputs, in the order of a job's name
STANDING_FOR = ("first_seed", "checkpoint", "earlier_provenance")  # in inputs, for what the parameters name
PROVENANCE_OUTPUT = "provenance"  # the output of every stage that records it
RAW = "raw"  # the input with the files that no stage makes: of those that parameters name, the ones that are there
NAME_IN_BRACES = re.compile(r"\{(\w+)\}")
SectionType = TypeVar("SectionType", bound=Section)
T = TypeVar("T")
# The start of a stage's paths: patterns, as in a rule of Snakemake. `Stage` lists the wildcards.
DATA = "data/{experiment}/{task}"
TRAIN_DATA = "data/{experiment}/{train}"
RATED = "results/{experiment}/difficulty/{train}"
MODEL = "models/{experiment}/{model}/manifest.json"
RUN = "results/{experiment}/runs/seed_{seed}"
SEED = re.compile(r"/runs/seed_(\d+)/")  # in the path of a seed's results
EVALUATION = f"{RUN}/eval/{{task}}/{{policy}}"
KEPT_EVALUATION = f"{RUN}/eval/{{task}}/step_{{step}}"  # of a kept policy: {policy} stands for it, too
VALIDATION = f"{RUN}/validation/{{validated}}/{{candidate}}"
POLICIES = {
    "base": "sft",
    "trained": "exported",
    "chosen": "chosen",
}  # with a checkpoint, a folder of the run; the others are restored
EARLIER_PROVENANCE = "{earlier_provenance}"  # of all jobs of the stages that do not come after this one
Paths = str | tuple[str, ...]  # one pattern, or several under one name
Wildcards = Mapping[str, str]
Files = Callable[[Params, Wildcards], Iterable[str]]  # of the parameters and of a job's wildcards


def rated_splits(train: Train, results: Path) -> dict[str, Path]:
    """Return the split of each task that the trainer sees, by a value of experiment.train and the experiment's folder of results."""
    return learned(train, [results / "difficulty" / task / "train.parquet" for task in tasks_of(train)])


class Shared(ExitStack):
    """The context that the parts of one job have in common: the first that needs it opens it, the job's end closes it."""

    def opened(self, context: Callable[[], AbstractContextManager[T]]) -> T:
        """Return what the context gives, which is entered on the first call."""
        if not hasattr(self, "_given"):
            self._given = self.enter_context(context())
        return self._given


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution of a stage: its files and its parameters. Of a stage that spreads, one part of it: one value's."""

    stage: str
    experiment: str  # name of its folders: that of the experiment, or <name>~<digest> of an override run
    overrides: Mapping[str, Any]  # of an override run, by dotted key; else empty
    seed: int | None  # None for stages that all seeds share
    inputs: Mapping[str, Sequence[Path]]
    outputs: Mapping[str, Path]
    params: Mapping[str, Any]  # the parameters that the stage reads, nested as in params.yaml
    runtime: Runtime  # changes no result
    threads: int  # of each of its processes, equal on every machine
    state: Path  # folder for resumable state; shared only by jobs whose results agree as far as both go
    log: Path  # logs of what the job starts, and its curves, go beside it
    shared: Shared = field(default_factory=Shared)
    facts: dict[str, Any] = field(default_factory=dict)  # what the work adds to provenance.json

    def input(self, name: str) -> Path:
        """Return the one input of that name."""
        (path,) = self.inputs[name]
        return path

    def output(self, name: str) -> Path:
        """Return the path to write. A checkpoint folder is named by its manifest.json."""
        return self.outputs[name]

    def section(self, kind: type[SectionType], dotted: str) -> SectionType:
        """Return a section of params.yaml that the stage declares to read, such as `evaluation.sampling`."""
        values: Any = self.params
        for part in dotted.split("."):
            values = values[part]
        return kind.model_validate(values)

    @property
    def own_seed(self) -> int:
        """Return the seed of a stage that runs once per seed."""
        assert self.seed is not None, f"{self.stage} is not run once per seed"
        return self.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The resources of a job on each of its nodes. Memory and time grow with the bytes of its checkpoint: a fixed part and a multiple."""

    threads: int = 1  # of all its processes; rounding of sums depends on it, so it must not depend on the machine
    beside: int = 0  # threads of servers and graders beside these processes on a CPU; a scheduler gives cores for both
    gpus: int = 0  # if the machine has any; without one, a stage that needs a GPU runs on the CPU
    memory_mb: int = 2000
    memory_per_byte: float = 0.0  # bytes of memory per byte of the checkpoint that the job reads
    minutes: int = 60  # a limit for cluster schedulers, of one attempt
    minutes_per_gb: float = 0.0  # of the checkpoint that the job reads
    checkpoint: str | None = None  # the name of the input that is meant; None: all together


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The one declaration of a stage: its rule, its entry in dvc.yaml and every list of stages follow from it.

    Outputs are patterns with the wildcards {experiment}, {model}, {seed}, {task}, {train}, {validated}, {policy}, {step} and {candidate};
    there is a job for each of their values. Inputs may have these too: one that the outputs lack stands for all its values.
    {first_seed} and {checkpoint} stand for the first seed and the checkpoint of {policy}, of which a stage that reads it has those of
    POLICIES alone. {train} is a task of experiment.train, {step} that of a kept policy that evaluation.policies names, {candidate} a
    policy, and {validated} a task, by which evaluation.choose chooses.

    A stage that `spreads` over wildcards has one job for all their values: the work is called for one after the other, the values of
    the last wildcard in turn. Each has its own outputs and its own provenance, and those that are made already are not made again.

    Declarations are imported whenever the Snakefile is read, so a module that makes one imports its work's dependencies inside
    that work.
    """

    name: str
    work: Callable[[Job], None]  # its module, and what that imports, is the stage's code
    reads: tuple[str, ...]  # dotted keys of params.yaml that change its outputs
    inputs: Mapping[str, Paths | Files] = field(default_factory=dict)
    outputs: Mapping[str, Paths] = field(default_factory=dict)  # the first names the job; one is called provenance
    spreads: tuple[str, ...] = ()  # wildcards of its outputs; (): a job for each value of all of them
    label: str = "{experiment}"  # of a job on the screen, after the stage's name
    selects: tuple[str, ...] = ()  # kinds of plug-in of which it runs the ones that the parameters name
    extends: tuple[str, ...] = ()  # keys of `reads` that change no finished step: a run resumes with others
    needs: Callable[[Runtime], Needs] = lambda runtime: Needs()
    computes: bool = False  # without a model, in floating point: its last bits depend on the kind of processor
    restarts: int = 0  # after a crash; never after a mistake of the user's
    processes: Callable[[Runtime], int] = lambda runtime: 1  # that are launched together, on each node
    nodes: Callable[[Runtime], int] = lambda runtime: 1  # machines, each with these needs
    # False for parameters with which the work starts these processes itself, so that it runs once
    launched: Callable[[Mapping[str, Any]], bool] = lambda params: True
    wanted: Callable[[Params], bool] = lambda params: True  # False: an experiment with these parameters has no such job
    # of its parameters and inputs: False if the outputs are the same for all seeds, so that one seed's job makes them for all
    seeded: Callable[[Mapping[str, Any], Mapping[str, Sequence[Path]]], bool] = lambda params, inputs: True
    # of its inputs and outputs: the digest of what it reads of an input, for the file's, where that is a part of it; "": nothing
    reads_of: Callable[[Mapping[str, Sequence[Path]], Mapping[str, Path]], Mapping[Path, str]] = (
        lambda inputs, outputs: {}
    )
    metrics: tuple[str, ...] = ()  # outputs that DVC shows as metrics
    pages: Mapping[str, str] = field(default_factory=dict)  # outputs in Snakemake's report, with what each shows
    # of its parameters: whether they and the inputs determine the outputs
    reusable: Callable[[Mapping[str, Any]], bool] = lambda params: True

    def __post_init__(self) -> None:
        """Raise UserError if the declaration has no output `provenance`, or names a wildcard that does not exist."""
        if self.outputs and PROVENANCE_OUTPUT not in self.outputs:
            raise UserError(
                f"the stage {self.name} has no output {PROVENANCE_OUTPUT}: add one to its outputs, such as "
                f"'results/{{experiment}}/{self.name}/provenance.json'."
            )
        of_outputs = self._require_known("outputs", self.outputs, WILDCARDS)
        self._require_known("inputs", self.inputs, (*WILDCARDS, *STANDING_FOR))
        of_jobs = ("experiment", *sorted(of_outputs - {"experiment", *self.spreads}), *STANDING_FOR)
        self._require_known("label", {"": self.label}, of_jobs)

    def _require_known(self, field: str, files: Mapping[str, Paths | Files], known: Sequence[str]) -> set[str]:
        named = {name for paths in patterns_of(files).values() for path in paths for name in names_in(path)}
        for name in sorted(named - {*known}):
            raise UserError(f"the {field} of the stage {self.name} name {{{name}}}: {nearest(name, known)}")
        return named


def names_in(pattern: str) -> list[str]:
    """List the names in braces in a pattern, each once."""
    return list(dict.fromkeys(NAME_IN_BRACES.findall(pattern)))


def patterns_of(files: Mapping[str, Paths | Files]) -> dict[str, tuple[str, ...]]:
    """Return the patterns of inputs or outputs by name, without those that are functions of the parameters."""
    return {name: (paths,) if isinstance(paths, str) else paths for name, paths in files.items() if not callable(paths)}


def threads_of(stage: Stage, runtime: Runtime) -> int:
    """Return the threads of each process: its share of the stage's declaration."""
    return max(1, stage.needs(runtime).threads // stage.processes(runtime))
