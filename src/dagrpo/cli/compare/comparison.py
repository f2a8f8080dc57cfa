"""Several experiments compared: every later one with the first."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dagrpo.cli.compare.differences import Difference, as_objects, differences
from dagrpo.cli.compare.evaluated import read_evaluated
from dagrpo.cli.compare.scores import TaskPair, pairs
from dagrpo.cli.compare.wording import others, scope, verdict
from dagrpo.core.errors import UserError
from dagrpo.report.inputs import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison: scores, differences and a verdict."""

    names: tuple[str, ...]
    policy: Variant  # whose scores these are
    pairs: tuple[TaskPair, ...]
    notes: tuple[str, ...]  # sentences on what cannot be compared
    differences: tuple[Difference, ...]

    def as_object(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {
            "experiments": list(self.names),
            "policy": self.policy,
            "pairs": [asdict(pair) | _sentences(pair) for pair in self.pairs],
            "notes": list(self.notes),
            "differences": as_objects(self.differences, self.names),
        }


def _sentences(pair: TaskPair) -> dict[str, str]:
    return {"verdict": verdict(pair), "others": others(pair), "scope": scope(pair)}


def compare(given: Sequence[str], policy: Variant = "trained") -> Comparison:
    """Compare experiments, by name or by folder. UserError: one has no scores, or there is nothing to compare."""
    evaluated = [read_evaluated(name, policy) for name in given]
    names = tuple(each.name for each in evaluated)
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError("Name two experiments or more, each once: `dagrpo compare A B`.")
    made, notes = pairs(evaluated)
    return Comparison(
        names=names, policy=policy, pairs=tuple(made), notes=tuple(notes), differences=tuple(differences(names))
    )
