"""Presets: parts of an experiment, and experiments that combine them.

A part (a model, a task, an algorithm, a trainer, hardware) is a small mapping in presets/<kind>/<name>.yaml; a file of presets/experiments
names the parts it uses under `use`, and lays its own keys over them. Later parts win. A script of verl or Megatron-LM is such an
experiment, too, from its line in presets/scripts.tsv.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from dagrpo.config import scripts
from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import merged
from dagrpo.config.places import KINDS, PRESETS, presets_of
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError, nearest
from dagrpo.core.escape import brief
from dagrpo.data.task import TASKS
from dagrpo.utils.yaml_text import read_yaml

FOLDER = PRESETS
USE = "use"
PURPOSES = {
    "models": "name the model",
    "tasks": "name the task",
    "algorithms": "set {}",
    "backends": "choose the trainer",
    "hardware": "describe the hardware",
}


def composed(names: Sequence[str], folder: Path = FOLDER) -> Params:
    """Compose the parameters of parts and experiments, each laid over the one before.

    If none of them names the experiment, it gets their names, joined, without the hardware's. Raises UserError if a name is
    unknown, one undoes another, or the whole does not fit together.
    """
    _require_no_rivals(names, folder)
    values: dict[str, Any] = {}
    for name in names:
        values = merged(values, _resolved(name, folder, ()))
    what = [name for name in names if _path(name, folder).parent.name != "hardware"]
    if not what:
        raise UserError(f"{' and '.join(names)} say nothing of what is trained: name a model and a task, too.")
    if len(what) > 1 or "name" not in values.get("experiment", {}):
        values = merged(values, {"experiment": {"name": "-".join(_short(name, folder) for name in what)}})
    return parse(merged(Params().model_dump(), values), " + ".join(names))


def name_no_task(names: Sequence[str], folder: Path = FOLDER) -> bool:
    """Return True if presets leave the task at the schema's default: no task, experiment or file is among them."""
    return {_path(name, folder).parent.name for name in names} <= {"models", "algorithms", "backends", "hardware"}


def _require_no_rivals(names: Sequence[str], folder: Path) -> None:
    """Raise UserError if two parts have one purpose, so that the later one would undo the former."""
    paths = [_path(name, folder) for name in dict.fromkeys(names) if not name.endswith(".yaml")]
    for first, second in combinations(paths, 2):
        if (purpose := _purpose_of_both(first, second)) is not None:
            raise UserError(
                f"the presets {first.stem} and {second.stem} both {purpose}, and {second.stem} would undo {first.stem}: leave out "
                f"{first.stem}, or {second.stem} if that is not meant."
            )


def _purpose_of_both(first: Path, second: Path) -> str | None:
    kind = first.parent.name
    if kind != second.parent.name or kind not in PURPOSES:
        return None
    if kind != "algorithms":
        return PURPOSES[kind]
    one, other = (_by_parameter(_preset(path)) for path in (first, second))
    set_twice = [key for key in one if key in other and one[key] != other[key]]
    return PURPOSES[kind].format(set_twice[0]) if set_twice else None


def _by_parameter(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return `algorithm.loss` and the like with their values."""
    return {f"{name}.{key}": value for name, keys in sections.items() if name != USE for key, value in keys.items()}


def _short(name: str, folder: Path) -> str:
    """Return a part's contribution to an experiment's name: its own name, or that of the experiment in a file."""
    own = _preset(Path(name)).get("experiment", {}) if Path(name).suffix == ".yaml" else {}
    return str(own.get("name", Path(name).stem))


def preset_text(names: Sequence[str], folder: Path = FOLDER) -> str:
    """Return the params.yaml of composed presets."""
    return params_yaml(composed(names, folder))


def known(folder: Path = FOLDER) -> dict[str, Path]:
    """Return the file of every preset by its name; experiments first, scripts, whose file is their table, last."""
    files = {name: path for kind in KINDS for name, path in presets_of(kind, folder).items()}
    return files | dict.fromkeys(scripts.presets(folder), folder / scripts.TABLE)


def experiments(folder: Path = FOLDER) -> list[str]:
    """List the presets that are whole experiments."""
    return sorted(presets_of("experiments", folder))


def hardware(folder: Path = FOLDER) -> list[str]:
    """List the presets of hardware."""
    return sorted(presets_of("hardware", folder))


def hardware_in(names: Sequence[str], folder: Path = FOLDER) -> list[str]:
    """List the presets of hardware among others and among those that they use. Raises UserError if a name is unknown."""
    of_hardware = list[str]()
    for name in names:
        path = _path(name, folder)
        if path.parent.name == "hardware":
            of_hardware.append(name)
        else:
            of_hardware += hardware_in(_named(name, folder).get(USE, []), folder)
    return of_hardware


def _resolved(name: str, folder: Path, above: tuple[str, ...]) -> dict[str, Any]:
    """Return a preset's keys laid over the parts that it uses."""
    if name in above:
        raise UserError(f"the presets {' -> '.join([*above, name])} use each other: remove one `{USE}`.")
    own = _named(name, folder)
    values: dict[str, Any] = {}
    for part in own.pop(USE, []):
        values = merged(values, _without_a_name(_resolved(part, folder, (*above, name))))
    return merged(values, own)


def _named(name: str, folder: Path) -> dict[str, Any]:
    """Return the sections of a preset and its `use`. Raises UserError if it is unknown or does not have the form of a preset."""
    path = _path(name, folder)
    return _preset(path) if path.name != scripts.TABLE else scripts.sections(scripts.presets(folder)[name])


def _preset(path: Path) -> dict[str, Any]:
    """Read a file of presets. Raises UserError if its sections or its `use` do not have the form of a preset's."""
    values: dict[str, Any] = _placed(read_yaml(path), path.parent)
    parts = values.get(USE, [])
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UserError(f"{path}: `{USE}` is {brief(parts)}: write a list of presets.")
    if not isinstance(values.get("experiment", {}), dict):
        raise UserError(f"{path}: `experiment` is {brief(values['experiment'])}: write a section with keys.")
    return values


def _placed(value: Any, folder: Path) -> Any:
    """Replace texts such as ./rubric.txt by the path of that file in the preset's folder."""
    if isinstance(value, dict):
        return {key: _placed(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [_placed(each, folder) for each in value]
    return str(folder / value) if isinstance(value, str) and value.startswith("./") else value


def _without_a_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the name of an experiment that another one uses."""
    experiment = {key: value for key, value in values.get("experiment", {}).items() if key != "name"}
    return {**values, "experiment": experiment}


def _path(name: str, folder: Path) -> Path:
    path = Path(name)
    if path.suffix == ".yaml":
        return path
    names = known(folder)
    if name not in names:
        remedy = f"{nearest(name, names)}."
        if name in TASKS.own_names():
            remedy = "it is a task; name it in experiment.tasks, and in experiment.train or experiment.evaluate of params.yaml."
        raise UserError(f"there is no preset `{name}` in {folder}: {remedy}")
    return names[name]
