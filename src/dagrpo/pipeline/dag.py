"""Jobs of an experiment, computed from the stages' declarations alone."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path

from dagrpo.config.schema import Params
from dagrpo.pipeline.declaration import (
    EARLIER_PROVENANCE,
    NAME_IN_BRACES,
    POLICIES,
    PROVENANCE_OUTPUT,
    RAW,
    SEED,
    WILDCARDS,
    Stage,
    names_in,
    patterns_of,
)
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.manifest import MANIFEST


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job of an experiment, or one part of a job that spreads: its stage, the values of its wildcards, its files by name."""

    stage: str
    wildcards: Mapping[str, str]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]

    @property
    def provenance(self) -> str:
        """Return the path of the record that the job writes beside its outputs."""
        return self.outputs[PROVENANCE_OUTPUT][0]

    @property
    def files(self) -> list[str]:
        """List all outputs."""
        return [path for paths in self.outputs.values() for path in paths]


def planned_jobs(params: Params, experiment: str) -> list[PlannedJob]:
    """List the jobs of an experiment in the order in which they run, those that spread by their parts.

    `experiment` names its folders: an override run has others than the experiment of its parameters.
    """
    jobs = list[PlannedJob]()
    for stage in (each for each in in_order() if each.wanted(params)):
        names = wildcards_of(stage)
        for chosen in product(*(own_values(name, stage, params, experiment) for name in names)):
            jobs += parts_of(stage, params, dict(zip(names, chosen, strict=True)))
    return jobs


def by_job(parts: Iterable[PlannedJob]) -> list[list[PlannedJob]]:
    """Group planned jobs by the job that they are a part of: most are the only one of theirs."""
    jobs: dict[tuple[str, ...], list[PlannedJob]] = {}
    for part in parts:
        own = [value for name, value in part.wildcards.items() if name not in all_stages()[part.stage].spreads]
        jobs.setdefault((part.stage, *own), []).append(part)
    return list(jobs.values())


def parts_of(stage: Stage, params: Params, wildcards: Mapping[str, str]) -> list[PlannedJob]:
    """Return the parts of the job with these wildcards: of a stage that does not spread, the job."""
    return [
        PlannedJob(
            stage=stage.name,
            wildcards=own,
            inputs={name: tuple(input_paths(stage, name, params, own)) for name in stage.inputs},
            outputs={n: tuple(path.format(**own) for path in paths) for n, paths in patterns_of(stage.outputs).items()},
        )
        for own in ({**wildcards, **values} for values in spread(stage, params))
    ]


def input_paths(stage: Stage, name: str, params: Params, wildcards: Mapping[str, str]) -> list[str]:
    """List the paths of one named input of a job, or of a part of one. `wildcards`: those of its outputs."""
    if not wildcards.keys() >= {*stage.spreads}:
        parts = ({**wildcards, **values} for values in spread(stage, params))
        return list(dict.fromkeys(path for part in parts for path in input_paths(stage, name, params, part)))
    given = stage.inputs[name]
    if callable(given):
        return [path for path in given(params, wildcards) if name != RAW or Path(path).is_file()]
    fixed = dict(wildcards) | {"first_seed": str(params.experiment.seeds[0])}
    fixed |= {"checkpoint": POLICIES[wildcards["policy"]]} if wildcards.get("policy") in POLICIES else {}
    paths = list[str]()
    for pattern in input_patterns(stage, params)[name]:
        free = [each for each in names_in(pattern) if each not in fixed]  # which stand for all their values
        values = [_values(each, params, fixed["experiment"], evaluated="{seed}" in pattern) for each in free]
        paths += [pattern.format(**fixed, **dict(zip(free, chosen, strict=True))) for chosen in product(*values)]
    return list(dict.fromkeys(paths))


def own_values(name: str, stage: Stage, params: Params, experiment: str) -> Sequence[str]:
    """Return every value of a wildcard of a stage's outputs: of the policies, a stage that reads checkpoints has those with one."""
    if name == "policy" and reads_checkpoints(stage):
        return [each for each in params.evaluation.policy_names(params.training) if each in POLICIES]
    return _values(name, params, experiment, evaluated="seed" in _of_outputs(stage))


def reads_checkpoints(stage: Stage) -> bool:
    """Return True if the stage reads the checkpoint of {policy}."""
    return any("{checkpoint}" in path for paths in patterns_of(stage.inputs).values() for path in paths)


def _values(name: str, params: Params, experiment: str, *, evaluated: bool) -> Sequence[str]:
    """Return every value of a wildcard. `evaluated`: of the tasks those that are evaluated alone."""
    return {
        "experiment": [experiment],
        "model": [params.model.name],
        "seed": [str(seed) for seed in params.experiment.seeds],
        "task": params.experiment.evaluate if evaluated else params.experiment.tasks,
        "train": params.experiment.train_tasks,
        "policy": params.evaluation.policy_names(params.training),
        "validated": params.evaluation.validated(params.experiment, params.data),
        "candidate": params.evaluation.candidates(params.training),
        "step": [str(step) for step in params.evaluation.steps(params.training)],
    }[name]


def wildcards_of(stage: Stage) -> list[str]:
    """List the wildcards of a stage's jobs: those of its outputs but for those that it spreads over."""
    return [name for name in WILDCARDS if name in _of_outputs(stage) and name not in stage.spreads]


def _of_outputs(stage: Stage) -> set[str]:
    return {name for paths in patterns_of(stage.outputs).values() for path in paths for name in names_in(path)}


def spread(stage: Stage, params: Params) -> list[dict[str, str]]:
    """List the values of the wildcards that a stage spreads over, for each part of a job; one without any if it does not."""
    values = [own_values(name, stage, params, params.experiment.name) for name in stage.spreads]
    return [dict(zip(stage.spreads, chosen, strict=True)) for chosen in product(*values)]


def over_spread(path: str, stage: Stage, params: Params) -> list[str]:
    """Return a pattern of a stage with the values of the wildcards that it spreads over and of {train}, each path once."""
    filled = (_filled(path, values) for values in spread(stage, params))
    tasks = params.experiment.train_tasks
    return list(dict.fromkeys(_filled(each, {"train": task}) for each in filled for task in tasks))


def _filled(path: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def input_patterns(stage: Stage, params: Params | None = None) -> Mapping[str, tuple[str, ...]]:
    """Return the patterns of a stage's inputs by name, with those that EARLIER_PROVENANCE stands for: of stages that `params` want."""
    patterns = patterns_of(stage.inputs)
    later = {stage.name, *_stages_after(stage.name)}
    others = [other for name, other in sorted(all_stages().items()) if name not in later]
    others = [other for other in others if params is None or other.wanted(params)]
    earlier = [str(other.outputs[PROVENANCE_OUTPUT]) for other in others]
    return {key: tuple(earlier) if paths == (EARLIER_PROVENANCE,) else paths for key, paths in patterns.items()}


@cache
def in_order() -> tuple[Stage, ...]:
    """List all stages, each after those whose outputs it reads."""
    makers = {name: sorted(_makers(input_patterns(stage))) for name, stage in sorted(all_stages().items())}
    return tuple(all_stages()[name] for name in TopologicalSorter(makers).static_order())


@cache
def _stages_after(name: str) -> set[str]:
    """Return the stages that read an output of this one, directly or through others."""
    after = {stage.name for stage in all_stages().values() if name in _makers(patterns_of(stage.inputs))}
    return after.union(*(_stages_after(each) for each in after))


def _makers(inputs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the stages that make inputs given as patterns: {checkpoint} and {policy} stand for each of their values."""
    every = [{"checkpoint": each} for each in POLICIES.values()] + [{"policy": each} for each in ("base", "step_0")]
    read = [_filled(path, values) for paths in inputs.values() for path in paths for values in every]
    return {maker.name for path in read if (maker := maker_of(path)) is not None}


def maker_of(path: str) -> Stage | None:
    """Return the stage that makes a path, or a pattern of paths; None if none does."""
    found = stage_of(NAME_IN_BRACES.sub("0", path))
    return None if found is None else all_stages()[found]


def stage_of(path: str) -> str | None:
    """Return the name of the stage that writes a path of the results layout, a file in a checkpoint's folder, or a folder.

    A folder ends with a slash. None if no stage writes the path.
    """
    if path.endswith("/"):
        folders = {pattern: expression(pattern.rpartition("/")[0]) for pattern, _ in _patterns()}
        path = next((pattern for pattern, folder in folders.items() if folder.fullmatch(path[:-1])), path)
    for pattern, name in _patterns():
        folder = pattern.removesuffix(f"/{MANIFEST}")
        if expression(folder, below=folder != pattern).fullmatch(path):
            return name
    return None


def seed_of(path: str) -> int | None:
    """Return the seed in a path of a seed's results; None for any other path."""
    found = SEED.search(path)
    return int(found.group(1)) if found else None


@cache
def _patterns() -> tuple[tuple[str, str], ...]:
    """Return the pattern of each output, with its stage: those with fewer wildcards first, as teacher's before model's."""
    every = [
        (path, stage.name)
        for stage in all_stages().values()
        for paths in patterns_of(stage.outputs).values()
        for path in paths
    ]
    return tuple(sorted(every, key=lambda each: (len(names_in(each[0])), each)))


@cache
def expression(pattern: str, *, below: bool = False) -> re.Pattern[str]:
    """Return the regular expression of a pattern's paths; `below`: also of all that is below them."""
    text = r"[^/]+".join(re.escape(part) for part in NAME_IN_BRACES.split(pattern)[::2])
    return re.compile(f"{text}(/.*)?" if below else text)


def all_files(jobs: Iterable[PlannedJob]) -> list[str]:
    """List the outputs of jobs."""
    return [path for job in jobs for path in job.files]


def log_of(stage: Stage) -> str:
    """Return the pattern of a stage's log: `logs/{experiment}/seed_{seed}/score_{task}_{policy}`, without a suffix."""
    names = wildcards_of(stage)
    folder = "logs/{experiment}/seed_{seed}" if "seed" in names else "logs/{experiment}"
    own = [f"{{{name}}}" for name in names if name not in ("experiment", "seed")]
    return f"{folder}/{'_'.join([stage.name, *own])}"


def expected(params: Params, experiment: str) -> list[Path]:
    """Return the provenance files of a complete experiment, in the order of the pipeline."""
    return [Path(job.provenance) for job in planned_jobs(params, experiment)]
