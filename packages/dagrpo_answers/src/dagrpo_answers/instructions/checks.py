"""The 25 instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911) as functions of a text.

Words of the data are taken literally; the published program reads them as regular expressions. Sentences and words are counted as NLTK
does, without its learned model. Each function takes linear time.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dagrpo_answers.instructions.languages import CODES, language

_CLOSING = "\"')]}*_\u00bb\u201d\u2019"
_OPENING = "\"'([{*_\u00ab\u201c\u2018"
_TITLES = frozenset(  # and other abbreviations that end no sentence
    ("mr", "mrs", "ms", "dr", "prof", "rev", "gen", "sen", "rep", "gov", "capt", "lt", "col", "sgt", "st", "mt", "vs", "no", "fig",
     "vol", "e.g", "i.e", "cf", "al", "jan", "feb", "aug", "sept", "oct", "nov", "dec")
)  # fmt: skip
_ABBREVIATIONS = frozenset(  # that may end one
    ("inc", "ltd", "co", "corp", "jr", "sr", "u.s", "u.k", "u.n", "a.m", "p.m", "d.c", "ph.d", "etc")
)
_STARTERS = frozenset(
    ("the", "it", "he", "she", "they", "we", "i", "in", "this", "that", "these", "those", "but", "and", "however", "if", "when", "for",
     "as", "there", "you", "our", "my", "his", "her")
)  # fmt: skip
_BETWEEN = re.compile(r"[\s;@#$%&?!*\[\](){}<>\"\u201c\u201d\u00ab\u00bb]+|[:,](?![0-9])|--+|\.{2,}|\u2026")
_CONTRACTION = re.compile(r"(?<=\w)(?:'(?:S|M|D|LL|RE|VE)|N'T)\b")


def sentence_count(text: str) -> int:
    """Return the number of sentences: a full stop, ! or ? before a space ends one, but for abbreviations and initials."""
    words = text.split()
    ends = sum(_ends(word, following) for word, following in pairwise(words))
    return ends + bool(words)


def _ends(word: str, following: str) -> bool:
    bare = word.rstrip(_CLOSING)
    if not bare.endswith((".", "!", "?")):
        return False
    if bare.endswith(("!", "?")):
        return True
    stem, after = bare.rstrip(".").lstrip(_OPENING), following.lstrip(_OPENING)
    if bare.endswith(".."):
        return after[:1].isupper()
    if len(stem) == 1 and stem.isalpha():
        return not after[:1].isalpha()
    if stem.lower() in _TITLES:
        return False
    return stem.lower() not in _ABBREVIATIONS or (after.rstrip(",.'").lower() in _STARTERS and after[:1].isupper())


def capital_words(text: str) -> int:
    """Return the number of words, and contracted parts of words (`N'T`), without a small letter and with a capital one."""
    words = [word for word in _BETWEEN.split(text) if word.isupper()]
    return sum(1 + len(_CONTRACTION.findall(word)) for word in words)


RELATIONS = ("less than", "at least")
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_JSON_FENCES = ("```json", "```Json", "```JSON", "```")
_POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_DOUBLE = re.compile(r"\*\*([^\n*]*)\*\*")


def _related(count: int, threshold: int, relation: str) -> bool:
    return count < threshold if relation == RELATIONS[0] else count >= threshold


def _in_case(text: str, has_case: bool) -> bool:
    return has_case and language(text) in (None, "en")


def _paragraphs(text: str, number: int) -> bool:
    parts = [part.strip() for part in _DIVIDER.split(text)]
    if "" in parts[1:-1]:
        return False
    return len(parts) - (not parts[0]) - (len(parts) > 1 and not parts[-1]) == number


def _first_word(text: str, number: int, nth: int, first: str) -> bool:
    paragraphs = text.split("\n\n")
    filled = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    words = paragraphs[nth - 1].split() if nth <= filled else []
    if not words:
        return False
    word = re.split(r"[.,?!'\"]", words[0].lstrip("'").lstrip('"'), maxsplit=1)[0]
    return filled == number and word.lower() == first.lower()


def _placeholders(text: str) -> int:
    """Return the number of `[...]`, each on one line."""
    count = 0
    for line in text.split("\n"):
        at = line.find("[")
        while at >= 0 and (end := line.find("]", at)) >= 0:
            count, at = count + 1, line.find("[", end)
    return count


def _bullets(text: str) -> int:
    lines = [line.lstrip() for line in text.split("\n")]
    return sum(line.startswith("-") or (line[:1] == "*" and line[1:2] not in ("", "*")) for line in lines)


def _highlights(text: str) -> int:
    single = sum(bool(each.strip("*").strip()) for each in _HIGHLIGHT.findall(text))
    return single + sum(bool(each.strip()) for each in _DOUBLE.findall(text))


def _title(text: str) -> bool:
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def _json(text: str) -> bool:
    text = text.strip()
    for fence in _JSON_FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    filled = [part for part in parts if part]
    return "" not in parts[1:-1] and len(filled) == 2 and filled[0] != filled[1]


def _count(word: str, text: str) -> int:
    return text.lower().count(word.strip().lower())


def _absent(text: str, words: Sequence[str]) -> bool:
    lower = text.lower()
    found = (word for word in words if word.lower() in lower)  # in linear time, which the search alone would not take
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in found)


def _sections(text: str, mark: str) -> int:
    return len(re.findall(re.escape(mark.strip()) + r"\s?\d+", text))


def _postscript(text: str, marker: str) -> bool:
    return re.search(_POSTSCRIPTS.get(marker.strip(), re.escape(marker.strip().lower())), text.lower()) is not None


@dataclass(frozen=True, slots=True)
class Check:
    """An instruction: whether a text follows it, and the names of its parameters in the data."""

    follows: Callable[..., bool]  # of a text and the parameters
    parameters: tuple[str, ...] = ()


CHECKS: Mapping[str, Check] = {
    "change_case:capital_word_frequency": Check(
        lambda text, number, relation: _related(capital_words(text), number, relation),
        ("capital_frequency", "capital_relation"),
    ),
    "change_case:english_capital": Check(lambda text: _in_case(text, text.isupper())),
    "change_case:english_lowercase": Check(lambda text: _in_case(text, text.islower())),
    "combination:repeat_prompt": Check(
        lambda text, prompt: text.strip().lower().startswith(prompt.strip().lower()), ("prompt_to_repeat",)
    ),
    "combination:two_responses": Check(_two_responses),
    "detectable_content:number_placeholders": Check(
        lambda text, number: _placeholders(text) >= number, ("num_placeholders",)
    ),
    "detectable_content:postscript": Check(_postscript, ("postscript_marker",)),
    "detectable_format:constrained_response": Check(lambda text: any(option in text for option in OPTIONS)),
    "detectable_format:json_format": Check(_json),
    "detectable_format:multiple_sections": Check(
        lambda text, mark, number: _sections(text, mark) >= number, ("section_spliter", "num_sections")
    ),
    "detectable_format:number_bullet_lists": Check(lambda text, number: _bullets(text) == number, ("num_bullets",)),
    "detectable_format:number_highlighted_sections": Check(
        lambda text, number: _highlights(text) >= number, ("num_highlights",)
    ),
    "detectable_format:title": Check(_title),
    "keywords:existence": Check(lambda text, words: all(_count(word, text) for word in words), ("keywords",)),
    "keywords:forbidden_words": Check(_absent, ("forbidden_words",)),
    "keywords:frequency": Check(
        lambda text, word, number, relation: _related(_count(word, text), number, relation),
        ("keyword", "frequency", "relation"),
    ),
    "keywords:letter_frequency": Check(
        lambda text, letter, number, relation: _related(Counter(text.lower())[letter.lower()], number, relation),
        ("letter", "let_frequency", "let_relation"),
    ),
    "language:response_language": Check(lambda text, code: language(text) in (None, code), ("language",)),
    "length_constraints:nth_paragraph_first_word": Check(
        _first_word, ("num_paragraphs", "nth_paragraph", "first_word")
    ),
    "length_constraints:number_paragraphs": Check(_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_sentences": Check(
        lambda text, number, relation: _related(sentence_count(text), number, relation), ("num_sentences", "relation")
    ),
    "length_constraints:number_words": Check(
        lambda text, number, relation: _related(len(re.findall(r"\w+", text)), number, relation),
        ("num_words", "relation"),
    ),
    "punctuation:no_comma": Check(lambda text: "," not in text),
    "startend:end_checker": Check(
        lambda text, end: text.strip().strip('"').lower().endswith(end.strip().lower()), ("end_phrase",)
    ),
    "startend:quotation": Check(lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'),
}
MOST_INSTRUCTIONS = 50  # of a prompt, and words of an instruction
LONGEST_TEXT = 1_000  # characters of a text to search for
_LISTS = ("keywords", "forbidden_words")
_TEXTS = ("postscript_marker", "section_spliter", "keyword", "end_phrase")


def mistake(instruction: object, parameters: object) -> str:
    """Return what is wrong with an instruction and its parameters; "" if nothing is."""
    check = CHECKS.get(instruction) if isinstance(instruction, str) else None
    if check is None or not isinstance(parameters, Mapping):
        return f"{str(instruction)[:60]!r} is no instruction with its parameters"
    wrong = [name for name in check.parameters if not _is_valid(name, parameters.get(name))]
    if not wrong and "nth_paragraph" in check.parameters and parameters["nth_paragraph"] > parameters["num_paragraphs"]:
        wrong = ["nth_paragraph"]
    return f"{instruction} has no valid {', '.join(wrong)}" if wrong else ""


def _is_valid(name: str, value: Any) -> bool:
    if name.endswith("relation"):
        return value in RELATIONS
    if name in _LISTS:
        return isinstance(value, list) and 0 < len(value) <= MOST_INSTRUCTIONS and all(map(_is_text, value))
    if name == "letter":
        return isinstance(value, str) and len(value.strip()) == len(value) == 1
    if name == "language":
        return isinstance(value, str) and value in CODES
    if name == "first_word":
        return _is_text(value) and not re.search(r"[\s.,?!'\"]", value)
    if name == "prompt_to_repeat":  # compared with the beginning alone
        return isinstance(value, str) and bool(value.strip())
    if name in _TEXTS:
        return _is_text(value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= LONGEST_TEXT


def follows(text: str, instruction: str, parameters: Mapping[str, Any]) -> bool:
    """Return True if a text follows the instruction; a blank text follows none."""
    check = CHECKS[instruction]
    return bool(text.strip()) and check.follows(text, *(parameters[name] for name in check.parameters))


def loosened(text: str) -> list[str]:
    """Return the text with and without its first line, its last line and its asterisks: one has to follow an instruction, loosely."""
    lines = text.split("\n")
    texts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*texts, *(each.replace("*", "") for each in texts)]
