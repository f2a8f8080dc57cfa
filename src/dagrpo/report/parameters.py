"""Parameters recorded in the results' provenance, instead of today's params.yaml."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.utils.files import canonical_json, read_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One dotted key. More than one value: stages ran with different ones, so some result is out of date."""

    key: str  # without its section
    values: tuple[str, ...]  # JSON text
    stages: tuple[str, ...]  # that read it
    default: str | None = None  # JSON text; None: by default there is no such key

    @property
    def is_changed(self) -> bool:
        """True unless every recorded value is the default."""
        return self.values != (self.default,)


def recorded(
    provenance: Sequence[Path], own: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, list[Parameter]]:
    """Return parameters by section, in the order of the schema.

    own: those of the report stage, whose provenance is not written yet; defaults: those of the schema; both nested.
    """
    values: dict[str, set[str]] = {}
    stages: dict[str, set[str]] = {}
    records = [read_object(path) for path in provenance]
    read = [(record["stage"], record.get("params", {})) for record in records]
    for stage, params in [*read, ("report", own)]:
        for key, value in _flat(params):
            values.setdefault(key, set()).add(canonical_json(value))
            stages.setdefault(key, set()).add(stage)
    texts = {key: canonical_json(value) for key, value in _flat(defaults)}
    sections: dict[str, list[Parameter]] = {}
    order = {section: place for place, section in enumerate(defaults)}
    for key in sorted(values, key=lambda key: (order.get(key.partition(".")[0], len(order)), key)):
        section, _, rest = key.partition(".")
        parameter = Parameter(
            key=rest,
            values=tuple(sorted(values[key])),
            stages=tuple(sorted(stages[key])),
            default=texts.get(key),
        )
        sections.setdefault(section, []).append(parameter)
    return sections


def changed(parameters: Mapping[str, Sequence[Parameter]]) -> dict[str, Parameter]:
    """Return the non-default parameters by dotted key; two experiments in which these agree have no other differences."""
    return {
        f"{section}.{each.key}": each for section, entries in parameters.items() for each in entries if each.is_changed
    }


def software(provenance: Sequence[Path]) -> list[tuple[str, str]]:
    """Return names and versions of the stages' software, and the kind of machine; several values if they differ."""
    versions: dict[str, set[str]] = {}
    for path in provenance:
        for name, value in read_object(path).get("environment", {}).items():
            if name != "device":  # most stages use the CPU anyway
                versions.setdefault(name, set()).add(str(value))
    return [(name, " and ".join(sorted(values))) for name, values in versions.items()]


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def value_of(parameters: Mapping[str, Sequence[Parameter]], dotted: str) -> str | None:
    """Return the recorded JSON text of a key such as reward.permuted; None if it is not recorded, or ambiguous."""
    section, _, rest = dotted.partition(".")
    for parameter in parameters.get(section, ()):
        if parameter.key == rest and len(parameter.values) == 1:
            return parameter.values[0]
    return None
