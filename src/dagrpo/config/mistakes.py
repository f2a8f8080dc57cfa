"""Error messages for params.yaml: the key, the mistake, the fix."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagrpo.core.errors import nearest_of
from dagrpo.core.escape import brief
from dagrpo.core.plugin_sections import InvalidPart

TASK = r"^[a-z0-9][A-Za-z0-9_.-]*$"
PATTERNS = {  # of texts in the schema, in words
    TASK: "letters, digits, `_`, `.` and `-`, of which the first is a small letter or a digit",
    r"^[a-z0-9][a-z0-9_.-]*(~[a-z0-9_]+)?$": "small letters, digits, `_`, `.` and `-`, of which the first is a letter or "
    "a digit; for an override run NAME~WORD, with small letters, digits and `_` in the word",
    r"^(base|trained|step_[1-9][0-9]{0,7})$": "base, trained, or step_ and the number of a step, such as step_40",
    r"^[a-zA-Z0-9_-]{1,64}$": "1 to 64 letters, digits, `_` and `-`",
    r"^[A-Za-z0-9][A-Za-z0-9.\-]*(:[0-9]{1,5})?$": "an address or a host's name, with a port after a colon if it is fixed",
    r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$": "names of letters, digits and `_` with a dot between each two",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One error of pydantic. In the keys of a plug-in: `prefix` is their path, and `part` has the known keys."""

    error: Mapping[str, Any]
    prefix: str
    part: InvalidPart | None

    def sentence(self, source: str, known: Sequence[str]) -> str:
        """Return the error message with its fix. `known`: every key of params.yaml."""
        inside = ".".join(str(each) for each in self.error["loc"] if not str(each).startswith("["))  # as [key]
        key = self.prefix + inside
        if self.error["type"] == "extra_forbidden":
            return f"{source}: unknown key `{key}`: {_hint(inside, self.prefix, self.part, known)}."
        if self.error["type"] == "literal_error" and self.error["loc"][-1] == "[key]":
            return f"{source}: unknown key `{key}`: write {self.error['ctx']['expected']}."
        if self.error["type"] == "value_error":
            message = str(self.error["ctx"]["error"]).removesuffix(".")
            section = key.removesuffix(".")
            is_named = not section or f"{section}." in message or f"`{section}`" in message
            return f"{source}: {'' if is_named else f'`{section}`: '}{message}."
        if self.error["type"] == "model_type":
            first = next((each.removeprefix(f"{key}.") for each in known if each.startswith(f"{key}.")), "...")
            return f"{source}: `{key}` is {brief(self.error['input'])}: it is a section, so give it keys, such as {{{first}: ...}}."
        given = "empty" if self.error["input"] is None else brief(self.error["input"])
        return f"{source}: `{key}` is {given}: {self._in_words()}{self._nearest_value()}."

    def _in_words(self) -> str:
        """Return what pydantic says of the value, without its regular expressions."""
        context, message = self.error.get("ctx", {}), self.error["msg"]
        match self.error["type"]:
            case "string_pattern_mismatch" if context["pattern"] == TASK and ":" in self.error["input"]:
                return f"write {self.error['input'].replace(':', '.')}, with a dot between module and task"
            case "string_pattern_mismatch" if context["pattern"] in PATTERNS:
                return f"write {PATTERNS[context['pattern']]}"
            case "too_short":
                return f"give at least {context['min_length']} of them"
            case "list_type":
                return f"write a list, such as [{brief(self.error['input'])}]"
            case "too_long":
                return f"give at most {context['max_length']} of them"
            case _:
                return f"{message[0].lower()}{message[1:]}"

    def _nearest_value(self) -> str:
        """Return the value that was probably meant, if one of several words is expected."""
        given = self.error["input"]
        if self.error["type"] != "literal_error" or not isinstance(given, str):
            return ""
        near = nearest_of(given, re.findall("'([^']*)'", self.error["ctx"]["expected"]))
        return f"; the nearest one is '{near}'" if near else ""


def mistakes(
    errors: Iterable[Mapping[str, Any]], prefix: str = "", part: InvalidPart | None = None
) -> Iterator[Mistake]:
    """Yield every mistake, those inside plug-ins one by one. part: the section at the prefix, if it has its own keys."""
    for error in errors:
        inner = error.get("ctx", {}).get("error")
        if isinstance(inner, InvalidPart):
            key = prefix + ".".join(str(each) for each in error["loc"])
            yield from mistakes(inner.errors, f"{key}.", inner)
        else:
            yield Mistake(error, prefix, part)


def _hint(key: str, prefix: str, part: InvalidPart | None, all_keys: Sequence[str]) -> str:
    """Suggest the nearest known key; first one with the same last part, which may have moved, of the same section before others."""
    known = part.known if part else all_keys
    if key in known and "." in key:
        section, _, last = key.partition(".")
        return f"write it below its section, `{section}: {{{last}: ...}}`"
    section, _, last = key.rpartition(".")
    same = [each for each in known if section and each.endswith(f".{last}")]
    moved = [each for each in same if each.startswith(f"{section}.")] or (same if len(same) == 1 else [])
    near = moved[0] if moved else nearest_of(key, known, cutoff=0.5)
    own = [each.rpartition(".")[2] for each in known if each.rpartition(".")[0] == section]
    if near == section and len(own) > 1:
        return f"`{prefix}{section}` has the keys {', '.join(own[:-1])} and {own[-1]}"
    if near:
        return f"the nearest known key is `{prefix}{near}`"
    return f"{part.owner} has no such key, so delete it" if part else "docs/parameters.md lists the known keys"
