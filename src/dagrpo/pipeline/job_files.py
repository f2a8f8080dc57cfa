"""Files that the rules pass to stages: parameters, code list, runtime.

Each is named by its content. A file keeps Snakemake's error messages short, and its name is the parameter that Snakemake
compares: another value is another name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import configuration_of
from dagrpo.config.schema import Params, all_keys
from dagrpo.config.selection import named_code, selected_modules
from dagrpo.core.errors import UserError, nearest
from dagrpo.core.experiment import in_lowest_terms
from dagrpo.pipeline.declaration import RAW, Needs, Stage, names_in, patterns_of
from dagrpo.pipeline.identity import code_digests, code_of
from dagrpo.utils.files import digest_of, json_text, read_object, write_json
from dagrpo.utils.manifest import MANIFEST, listed_files

JOBS = Path(".state/jobs")
NOT_DATA = frozenset({"script"})


def own_params(params: Params, stage: Stage) -> dict[str, Any]:
    """Return the parameters that a stage reads, nested as in params.yaml."""
    values = params.model_dump()
    values["experiment"]["train"] = in_lowest_terms(params.experiment.train)
    values["experiment"]["train_tasks"] = list(
        params.experiment.train_tasks
    )  # for what does not depend on their shares
    chosen: dict[str, Any] = {}
    for key in stage.reads:
        *parents, last = key.split(".")
        source, target = values, chosen
        try:
            for parent in parents:
                source, target = source[parent], target.setdefault(parent, {})
            target[last] = source[last]
        except KeyError:
            raise UserError(
                f"the stage {stage.name} reads {key}, which is not a parameter: {nearest(key, all_keys())}"
            ) from None
    return chosen


def code_files(params: Params, stage: Stage) -> list[str]:
    """List the files of a stage's code, as the parameters select it."""
    tasks = tasks_of(params, stage)
    selected, named = selected_modules(params, tasks), named_code(params, tasks)
    plugins = [module for kind in stage.selects for module in selected[kind]]
    own = [code for kind in stage.selects for code in named.get(kind, ())]
    modules = [module for code in own for module in code.modules]
    return code_of(stage.work.__module__, [*plugins, *modules], [file for code in own for file in code.files])


def tasks_of(params: Params, stage: Stage) -> list[str]:
    """List the tasks whose data a stage reads or makes: of one that reads the train tasks' alone, another task is no part."""
    patterns = chain(*patterns_of(stage.inputs).values(), *patterns_of(stage.outputs).values())
    if any("task" in names_in(path) for path in patterns):
        return list(params.experiment.tasks)
    chosen = [given for name, given in stage.inputs.items() if callable(given) and name != RAW]
    paths = [Path(path) for given in chosen for path in given(params, {"experiment": "experiment"})]
    named = {path.parts[2] for path in paths if path.parts[0] == "data"}
    return [task for task in params.experiment.tasks if task in params.experiment.train_tasks or task in named]


def job_file(params: Params, stage: Stage) -> str:
    """Return the path of the stage's parameters and code, and write the file if it is missing. Another edit is another path."""
    code = _file("code", code_digests(code_files(params, stage)))
    return _file(stage.name, {"stage": stage.name, "params": own_params(params, stage), "code": Path(code).stem})


def recorded_code(code: str) -> dict[str, str] | None:
    """Return the digests of the files with one digest `code`; None if no job was planned here with that code."""
    try:
        files: dict[str, str] = read_object(JOBS / f"code-{code[:16]}.json")
    except UserError:
        return None
    return files if digest_of(files) == code else None


def runtime_file(params: Params) -> str:
    """Return the path of section runtime, and write the file if it is missing."""
    return _file("runtime", params.runtime.model_dump())


def configuration_file(params: Params) -> str:
    """Return the path of the experiment's configuration, written if missing. For the history of runs: it decides no output."""
    return _file("configuration", configuration_of(params))


def overrides_file(overrides: Mapping[str, Any]) -> str:
    """Return the path of an override run's overrides by dotted key, and write the file if it is missing."""
    return _file("overrides", dict(overrides))


def _file(name: str, content: dict[str, Any]) -> str:
    path = JOBS / f"{name}-{digest_of(content)[:16]}.json"
    with suppress(OSError):  # missing or unreadable
        if path.read_bytes() == json_text(content).encode():
            return str(path)
    write_json(path, content)
    return str(path)


def file_arguments(
    inputs: Iterable[tuple[str, str | Sequence[str]]],
    outputs: Iterable[tuple[str, str | Sequence[str]]],
    part: str = "",
) -> Iterator[str]:
    """Yield `--input name=path` for each input except the script and the code, `--output name=path` for each output.

    A list of inputs repeats its name; a list of outputs gets numbered ones. `part`: is put after each name.
    """
    for name, paths in inputs:
        if name not in NOT_DATA:
            yield from (f"--input {name}{part}={path}" for path in _listed(paths))
    for name, paths in outputs:
        listed = _listed(paths)
        numbered = [name] if isinstance(paths, str) else [f"{name}_{number}" for number in range(len(listed))]
        yield from (f"--output {key}{part}={path}" for key, path in zip(numbered, listed, strict=True))


def _listed(paths: str | Sequence[str]) -> list[str]:
    return [str(paths)] if isinstance(paths, str) else [str(path) for path in paths]


def memory_mb(needs: Needs, inputs: Sequence[str], attempt: int = 1) -> int:
    """Return a job's megabytes: its fixed part, and a multiple of its checkpoints' bytes; half as much more in each new attempt."""
    checkpoints = _bytes_of_checkpoints(inputs) if needs.memory_per_byte else 0
    return (needs.memory_mb + round(needs.memory_per_byte * checkpoints / 1e6)) * (attempt + 1) // 2


def minutes(needs: Needs, inputs: Sequence[str]) -> int:
    """Return how long a job may take: its fixed part, and a multiple of its checkpoints' bytes."""
    checkpoints = _bytes_of_checkpoints(inputs) if needs.minutes_per_gb else 0
    return needs.minutes + round(needs.minutes_per_gb * checkpoints / 1e9)


def _bytes_of_checkpoints(inputs: Sequence[str]) -> int:
    total = 0
    for manifest in (Path(path) for path in inputs if path.endswith(f"/{MANIFEST}")):
        with suppress(UserError):  # missing or damaged, which the stage then reports
            total += sum(entry.bytes for entry in listed_files(manifest).values())
    return total
