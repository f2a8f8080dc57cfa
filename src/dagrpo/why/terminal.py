"""An explanation on a terminal or in a pipe."""

from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from dagrpo.visible import one_line
from dagrpo.why.explanation import Explanation, Reason

MOST_LINES = 12  # of one file of code
LONGEST = 200


def shown(explanation: Explanation) -> Group:
    """All of it."""
    return Group(*_lines(explanation))


def _lines(explanation: Explanation) -> Iterator[Text]:
    made_by = f"{one_line(explanation.file, LONGEST)} is made by {explanation.made_by}"
    if explanation.is_up_to_date:
        yield Text(f"{made_by}, which has nothing to do: no parameter, input, output or line of its code has changed.")
        return
    if explanation.own is None:
        yield Text(f"{made_by}. Nothing of its own has changed, but what comes before it would run again:")
    else:
        yield Text(f"{made_by}, which would run again:", style="bold")
        yield from _reason(explanation.own)
    for reason in explanation.before:
        yield Text(f"{reason.what} comes before it and would run again:", style="bold")
        yield from _reason(reason)


def _reason(reason: Reason) -> Iterator[Text]:
    yield from (Text(f"  {note}", style="yellow") for note in reason.notes)
    for change in reason.changes:
        yield Text(f"  {change.kind}: {one_line(str(change), LONGEST)}", style="yellow")
        lines = reason.lines.get(change.name, ())
        yield from (_line(line) for line in lines[:MOST_LINES])
        if len(lines) > MOST_LINES:
            yield Text(f"    and {len(lines) - MOST_LINES} more lines", style="dim")


def _line(line: str) -> Text:
    is_new = line.partition(": ")[2].startswith("+")
    return Text(f"    line {one_line(line, LONGEST)}", style="green" if is_new else "red")
