"""YAML that versions 1.1 and 1.2 read alike.

Snakemake reads YAML 1.1, DVC 1.2. Refused are text that the two versions read differently, aliases, and a repeated key. The sections
check keys and values.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line

TEMPLATE = "__use_yte__"  # Snakemake takes a file with this key for a program, and runs it
_SAME_IN_BOTH = {  # accepted as this type by YAML 1.1 and 1.2 alike
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+"),
    "float": re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    "null": re.compile(r"~|null|Null|NULL|"),
    # 1e-4, a number in 1.2 alone, passes: a section reads it as one. -_1 and ._ DVC's reader takes for numbers, and fails.
    "str": re.compile(r"(?![-+]?0o[0-7_]+$|(?=[-+.0-9])[-+]?[.0-9]*_[.0-9_]*([eE][-+]?[0-9]+)?$).*", re.DOTALL),
}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises UserError naming the file if it is missing, not YAML, or not a mapping."""
    values = yaml_value(
        _text(path), str(path), f"{path} is not valid YAML", "correct it, or write it anew with `dagrpo use`"
    )
    if not isinstance(values, dict):
        raise UserError(f"{path} does not hold sections: `dagrpo use arithmetic_tiny` writes a new one.")
    if TEMPLATE in values:
        raise UserError(f"{path}: `{TEMPLATE}` would have Snakemake run the file as a program: remove that key.")
    return values


def yaml_value(text: str, source: str, complaint: str, remedy: str) -> Any:
    """Parse a YAML text. Raises UserError with the complaint and the remedy if it is invalid."""
    try:
        return yaml.load(text, Loader=_Careful)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a value contradicts its tag
        raise UserError(f"{complaint} ({_reason(error)}): {remedy}.") from None


def _reason(error: Exception) -> str:
    """Return line and problem, without the lines that PyYAML quotes."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {one_line(error.problem or str(error.context), 200)}"
    return one_line(str(error), 200)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        remedy = "`dagrpo use arithmetic_tiny` writes one" if path.name == "params.yaml" else "correct the path"
        raise UserError(f"{path} is missing: {remedy}.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): correct its permissions, or move it away."
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid YAML (it is not UTF-8): save it as UTF-8.") from None


class _Careful(yaml.SafeLoader):
    """A loader of plain YAML: no aliases, nothing that YAML 1.1 and 1.2 read differently, each key once."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ConstructorError(None, None, "it refers to another place: write the value out", mark)
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: dict[Any, Node]) -> ScalarNode:
        is_plain = self.peek_event().implicit[0]  # type: ignore[no-untyped-call]
        node = super().compose_scalar_node(anchor)
        kind = node.tag.rpartition(":")[2]
        same = _SAME_IN_BOTH.get(kind)
        if is_plain and kind != "merge" and (same is None or not same.fullmatch(node.value)):
            advice = "YAML 1.1 and 1.2 read it differently: put it in quotes, or write a decimal number, true or false"
            raise ConstructorError(None, None, f"{brief(node.value)}: {advice}", node.start_mark)
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse repeated keys: the second would win silently."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, ScalarNode):
                if key.value in seen:
                    raise ConstructorError(
                        None, None, f"the key {one_line(key.value, 80)} stands twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)
