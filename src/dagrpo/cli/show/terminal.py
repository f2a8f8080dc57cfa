"""Attempts on a terminal or in a pipe, escaped: none controls it."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dagrpo.checkpoints.tokenizers import Decode, decoder_of
from dagrpo.cli.show.attempts import Chosen
from dagrpo.cli.show.command import Place
from dagrpo.core.escape import one_line, visible
from dagrpo.report.attempt import Attempt
from dagrpo.report.format import plural
from dagrpo.rollout.transcript import Call, Segment, Transcript, Utterance, segments

WRITTEN, CONTEXT, LABEL = "green", "dim", "bold"
STYLES = {
    "right": "bold green",
    "wrong": "bold red",
    "missing": "bold red",
    "unverifiable": "bold yellow",
    "excluded": "bold yellow",
    "ok": "green",
}
LEFT_OUT = "texts and tokens of {:,} left out (runtime.keep_rollouts)"
FOLDED_LINE = 160  # characters of arguments or a result, on one line
WITH_TOKENIZER = ("exported", "initial", "sft", "policy")  # checkpoints of a run, all with the same tokenizer
REMEDY = "restore it, or leave out --tokens"


def heading(chosen: Chosen, source: str, *, coloured: bool) -> RenderableType:
    """Return the heading: the source of the attempts, and the meaning of the colours."""
    facts = [plural(chosen.attempts, "attempt")]
    facts += [f"step {chosen.step}"] if chosen.step is not None else []
    label = "mean reward" if chosen.step is not None else "correct"
    of_tasks = ", ".join(f"{one_line(task, 40)} {mean:.3f}" for task, mean in chosen.means)
    mixture = f" ({of_tasks})" if of_tasks else ""
    facts += [f"{label} {chosen.mean:.3f}{mixture}"] if chosen.mean is not None else ["not graded"]
    facts += [LEFT_OUT.format(chosen.left_out)] if chosen.left_out else []
    legend = [Text.assemble(("what the policy wrote", WRITTEN), (", what it was given", CONTEXT))] if coloured else []
    return Group(Text(source, style=LABEL), Text(", ".join(facts)), *legend)


def render(
    title: str, attempt: Attempt, *, full: bool, decode: Decode | None, pictures: str | None = None
) -> RenderableType:
    """Render one attempt: its facts, then its messages turn by turn, or with `decode` the tokens themselves.

    `pictures`: number and location of the problem's pictures.
    """
    body = _tokens(segments(attempt.row), decode) if decode else _conversation(attempt.read, full=full)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    if pictures is not None:
        grid.add_row(Text("pictures", style=LABEL), Text(pictures, style=CONTEXT))
    for label, text in body:
        grid.add_row(Text(label, style=LABEL), text)
    sample = "greedy" if attempt.read.is_greedy else f"sample {attempt.read.sample_index}"
    heading = f"{title}: {one_line(attempt.read.task, 40)}, problem {attempt.read.problem_index}, {sample}"
    return Group(Rule(style=CONTEXT), Text(heading, style=LABEL), *_outcome(attempt), grid)


def _outcome(attempt: Attempt) -> Iterator[Text]:
    line = Text()
    if attempt.worth:
        line.append(f"{attempt.worth}  ", style=LABEL)
    if attempt.verdict:
        line.append(f"{one_line(attempt.verdict, 20)}  ", style=STYLES.get(attempt.verdict, LABEL))
    line.append(f"ended: {one_line(attempt.end, 60)}  {attempt.size}")
    yield line
    if attempt.read.components:
        parts = (f"{one_line(name, 30)} {value:.3g}" for name, value in attempt.read.components.items())
        yield Text(f"components: {', '.join(parts)}", style=CONTEXT)
    if attempt.read.fault:
        yield Text(f"fault: {one_line(attempt.read.fault, 400)}", style="red")


def _conversation(read: Transcript, *, full: bool) -> Iterator[tuple[str, RenderableType]]:
    yield ("prompt", Text(read.prompt, style=CONTEXT)) if full else ("problem", Text(read.question, style=CONTEXT))
    turn = 0
    for utterance in read.utterances:
        turn += utterance.speaker == "policy"
        label = f"turn {turn}" if utterance.speaker == "policy" else utterance.speaker
        yield from _utterance(label, utterance, full=full)
    if read.verdict is not None:
        answer = "none found" if read.extracted is None else one_line(read.extracted, FOLDED_LINE)
        yield "answer", Text(f"{answer} (truth {one_line(read.ground_truth, FOLDED_LINE)})")


def _utterance(label: str, utterance: Utterance, *, full: bool) -> Iterator[tuple[str, RenderableType]]:
    style = WRITTEN if utterance.speaker == "policy" else CONTEXT
    if utterance.thinking:
        thinking = utterance.thinking if full else one_line(utterance.thinking, FOLDED_LINE)
        yield label, Text(f"(thinking) {thinking}", style=f"italic {WRITTEN}")
        label = ""
    if utterance.text or not (utterance.thinking or utterance.calls):
        yield label, Text(utterance.text.strip(), style=style)
        label = ""
    for call in utterance.calls:
        yield label, _call(call, full=full)
        label = ""


def _call(call: Call, *, full: bool) -> Text:
    name = one_line(call.name, 60) or "?"
    arguments = call.arguments if full else one_line(call.arguments, FOLDED_LINE)
    line = Text.assemble(("\N{RIGHTWARDS ARROW} ", LABEL), (f"{name} {arguments}", WRITTEN))
    if call.status:
        line.append(f"\n  {one_line(call.status, 20)}", style=STYLES.get(call.status, "red"))
        result = call.result if full else one_line(call.result, FOLDED_LINE)
        line.append(f": {result}" if result else "", style=CONTEXT)
    return line


def _tokens(samples: Sequence[Sequence[Segment]], decode: Decode) -> Iterator[tuple[str, RenderableType]]:
    for number, sample in enumerate(samples, start=1):
        tokens = sum(len(segment.token_ids) for segment in sample)
        trained = sum(len(segment.token_ids) for segment in sample if segment.written)
        yield f"tokens {number}", Text(f"{tokens:,} tokens, {trained:,} of them trained on", style=LABEL)
        for segment in sample:
            label, style = ("wrote", WRITTEN) if segment.written else ("given", CONTEXT)
            yield label, Text(visible(decode(segment.token_ids)), style=style)


def decoder(place: Place) -> Decode | None:
    """Return a decoder for the run's policy; None if no tokenizer is found. Raises UserError if its file cannot be read."""
    folders = [place.run / name for name in WITH_TOKENIZER] if place.run else []
    found = next((path for folder in folders if (path := folder / "tokenizer.json").is_file()), None)
    return None if found is None else decoder_of(found, REMEDY)
