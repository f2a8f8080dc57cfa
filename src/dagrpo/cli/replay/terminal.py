"""Output of a replay, on a terminal or in a pipe."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from dagrpo.cli.replay.recomputation import StepCheck
from dagrpo.cli.replay.recorded_run import RecordedRun
from dagrpo.trainer.state.digest_table import Computed, joint_digest
from dagrpo.utils.environment import environment

DIGITS = 16  # hex digits of a digest
SAME, DIFFERENT, UNKNOWN = ("same", "green"), ("differs", "bold red"), ("not recorded", "dim")


def table(run: RecordedRun, checks: Sequence[StepCheck]) -> Table:
    """Return a table with one row per step; the digests are the recorded ones."""
    table_of_steps = Table(title=Text(str(run.folder)), title_justify="left")
    for heading in (
        "step",
        "computed from",
        "gradient",
        "",
        "weights",
        "",
        "gradient norm",
        "logprobs differ by at most",
    ):
        table_of_steps.add_column(heading)
    for check in checks:
        gradients = [joint_digest(each) for each in check.recorded.gradients]
        table_of_steps.add_row(
            str(check.step),
            f"step {check.after}" if check.after else "initial",
            ", ".join(digest[:DIGITS] for digest in gradients),
            _verdict(check, agrees=check.gradient_agrees),
            joint_digest(check.recorded.weights)[:DIGITS] if check.is_compared else "",
            _verdict(check, agrees=check.weights_agree),
            f"{check.recorded_grad_norm:.6g}" + ("" if check.difference is None else f", now {check.grad_norm:.6g}"),
            f"{check.largest_logprob_difference:.1e}",
        )
    return table_of_steps


def _verdict(check: StepCheck, *, agrees: bool) -> Text:
    return Text(*((SAME if agrees else DIFFERENT) if check.is_compared else UNKNOWN))


def basis(run: RecordedRun, checks: Sequence[StepCheck], here: Computed) -> str:
    """Return how many recomputed steps agree with the run, and which conditions here differ from the run's."""
    compared = [check for check in checks if check.is_compared]
    agree = sum(check.difference is None for check in compared)
    lines = [f"{agree} of {len(compared)} steps that were computed again agree bit for bit in gradient and weights."]
    if without := len(checks) - len(compared):
        lines.append(
            f"{without} more were computed on the way, of which nothing is recorded "
            "(training.digests_every): the weights after a later step follow from them."
        )
    lines += _not_comparable(run, checks[-1].recorded.computed, here)
    return "\n".join(lines)


def _not_comparable(run: RecordedRun, recorded: Computed, here: Computed) -> list[str]:
    """Return warnings about conditions that may change digests by rounding, without an error."""
    own = {"device": here.device, **{k: v for k, v in environment(on_gpu=True).items() if k != "device"}}
    then: Mapping[str, str] = {"device": recorded.device, **_packages(run.environment)}
    other = [f"{name} {value} (here {own.get(name, 'none')})" for name, value in then.items() if own.get(name) != value]
    return [f"The run was computed with {', '.join(other)}: small differences may be rounding."] if other else []


def _packages(recorded: Mapping[str, str] | None) -> dict[str, str]:
    return {name: value for name, value in (recorded or {}).items() if name in {"machine", "torch", "transformers"}}


def first_difference(checks: Sequence[StepCheck]) -> str | None:
    """Return a sentence about the first step that differs from the recorded one."""
    for check in checks:
        if check.difference is not None:
            difference, start = (
                check.difference,
                f"the state of step {check.after}" if check.after else "the initial checkpoint",
            )
            return (
                f"Step {check.step}, computed again from {start}, is not what the run recorded: the {difference.kind} of its update "
                f"{difference.update} differs first in {difference.tensor} (gradient norm {check.recorded_grad_norm:.6g} then, "
                f"{check.grad_norm:.6g} now; logprobs up to {check.largest_logprob_difference:.1e} apart)."
            )
    return None
