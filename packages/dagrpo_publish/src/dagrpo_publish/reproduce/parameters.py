"""Parameters of an untrusted crate for a run on this machine."""

import re
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import merged, with_keys
from dagrpo.config.places import is_dagrpos, place_of
from dagrpo.config.schema import Params
from dagrpo.config.selection import named_code
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line
from dagrpo.core.user_code import only_modules
from dagrpo.pipeline.identity import LIBRARY, code_digests, code_of
from dagrpo.pipeline.override_runs import TRY
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.rewards.components.judge import ANSWERS
from dagrpo.utils.yaml_text import yaml_value
from dagrpo_publish.crate.finished import recorded_params
from dagrpo_publish.crate.reading import Crate

REMEDY = "read it, and if you want it, give it yourself, --set {key}=..."
WORD = "reproduced"  # after the ~ in the name of the run
# What a machine alone knows: taken from params.yaml here.
OF_THE_MACHINE = (
    "data.mirror",
    "runtime.engine.servers",
    "runtime.engine.weights_folder",
    "runtime.engine.nodes",
    "runtime.engine.nodes_per_server",
    "runtime.engine.weight_sync",
    "runtime.teacher.servers",
    "runtime.teacher.weights_folder",
    "runtime.reward_model.servers",
    "runtime.reward_model.weights_folder",
    "runtime.nodes",
    "runtime.address",
    "runtime.node_timeout",
    "runtime.backend",
)
# Ends of keys of words that a program gets, of variables that it may read, and of servers.
FOR_PROGRAMS = (".command", ".settings", ".keep_variables", ".mcp.environment")
SERVERS = (".address", ".url")
# Values of which a crate may name these alone, and what a run does with others.
FIXED = {
    "rollout.agent.environment": (".venv-verifiers", "to which the run would write"),
    "reward.components.judge.answers": (ANSWERS, "to which the run would write"),
    "rollout.agent.lock": ("requirements/verifiers.lock", "from which the run would install packages"),
    "rollout.agent.harness": ("null", "which would run beside the taskset"),
}
_ADDRESS = re.compile(r"[\x00-\x20]*(\w+://|[/~])|(.*/)?\.\.(/|$)", re.DOTALL)  # leads out of the folder or to a server


def parameters(crate: Crate, place: Path, here: Params, given: Sequence[str]) -> Params:
    """Return the parameters of a crate under the name of an override run; those of the machine are this one's.

    place: where the crate lies. given: `key=value` in the place of what the crate has.

    Raises UserError if the crate names code, a command, a path or a server that is refused, or if its parameters do not fit this version.
    """
    oracles = any(score.get("oracle") is True for score in crate.scores.values())
    values = recorded_params(crate.records, oracles=oracles)
    machine = here.model_dump()
    for key in OF_THE_MACHINE:
        *parents, last = key.split(".")
        section, own = _section(values, parents), _section(machine, parents)
        section.pop(last, None)
        section |= {last: own[last]} if last in own else {}
    values = merged(values, {"runtime": {"reuse": False}})  # to compute it again is the purpose
    chosen = dict(_given(each) for each in given)
    values = with_keys(values, chosen)
    require_nothing_outside(values, chosen)
    name = f"{crate.experiment.partition(TRY)[0]}{TRY}{WORD}"
    values = merged(values, {"experiment": {"name": name}})
    known = {file: digest for files in crate.code.values() for file, digest in files.items()}
    with only_modules(lambda module: _require_same_code(module, known, place)):
        params = parse_with_tasks(values, "the crate")
        for code in (each for kind in named_code(params, params.experiment.tasks).values() for each in kind):
            for module in code.modules:
                _require_same_code(module, known, place)
    return params


def _section(values: dict[str, Any], parents: Sequence[str]) -> dict[str, Any]:
    """Return a nested section; a new one, apart from the values, if it is missing."""
    for part in parents:
        inner = values.get(part)
        values = inner if isinstance(inner, dict) else {}
    return values


def _given(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--set {text}: write KEY=VALUE, such as --set model.gguf=weights/model.gguf.")
    return key, yaml_value(value, text, f"--set {text}: the value is not valid YAML", "correct it")


def require_nothing_outside(
    values: Mapping[str, Any], chosen: Collection[str], owner: str = "The crate", remedy: str = REMEDY
) -> None:
    """Raise UserError for a command, or a path or an address that leads out of this folder, unless its key is one of `chosen`."""
    own = (*chosen, *OF_THE_MACHINE)
    is_environment = _section(dict(values), ["rollout", "agent"]).get("name") == "environment"
    for key, value in _nested(values):
        if any(key == each or key.startswith(f"{each}.") for each in own):
            continue
        ask = remedy.format(key=key)
        if key.endswith(FOR_PROGRAMS) and value:
            raise UserError(
                f"{owner} would hand {brief(value)} to a program ({key}), and is not trusted with that: {ask}"
            )
        is_class = is_environment and key == "rollout.agent.environment" and ":" in str(value)  # checked as code
        if key in FIXED and isinstance(value, str) and not is_class and value != FIXED[key][0]:
            usual, purpose = FIXED[key]
            raise UserError(f"{owner} has {key}: {brief(value)}, {purpose}, and not {usual}: {ask}")
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (_ADDRESS.match(text) or (text and key.endswith(SERVERS))):
                raise UserError(f"{owner} has {key}: {brief(text)}, a place of another machine: {ask}")


def _nested(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is not the whole, with its dotted key; of a list of mappings its items, with the list's key."""
    if key:
        yield key, values
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _nested(value, f"{key}.{name}".lstrip("."))
    elif isinstance(values, list):
        for value in values:
            if isinstance(value, Mapping | list):
                yield from _nested(value, key)


def _require_same_code(module: str, known: Mapping[str, str], crate: Path) -> None:
    """Raise UserError unless the module and what it imports are your own, and have the digests on record. Nothing is imported for it.

    crate: the crate's folder, none of whose files is your own.
    """
    shown = one_line(module, 200)
    is_name = all(part.isidentifier() for part in module.split("."))
    files = code_of(module) if is_name else ()
    files = [file for file in files if not file.startswith(LIBRARY) and not is_dagrpos(place_of(file))]
    if not files or any(
        _is_installed(file) or place_of(file).resolve().is_relative_to(crate.resolve()) for file in files
    ):
        raise UserError(
            f"The crate names code of its author, {shown}, which is not here: get it from its author, read it, and put it in `src` of this "
            "folder, or on PYTHONPATH. A crate is not trusted with other modules."
        )
    for file in files:
        if known.get(file) != code_digests([file]).get(file):
            raise UserError(
                f"The crate names code, {shown}, of which {file} here is another than its author's: get that version, or run "
                "your own with `dagrpo use`."
            )


def _is_installed(file: str) -> bool:
    """Return True for a file of Python or of an installed package: an import path to one may do anything."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places = [Path(folder).resolve() for folder in folders]
    return any(place_of(file).resolve().is_relative_to(place) for place in places)
