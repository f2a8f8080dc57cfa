"""IFEval's instructions by hand, strictly and loosely; shares as a reward; any text in linear time."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages.dagrpo_answers.tests.conftest import FACTOR, Growth

from dagrpo_answers.errors import UserError
from dagrpo_answers.instructions.checks import CHECKS, capital_words, follows, loosened, sentence_count
from dagrpo_answers.instructions.languages import language
from dagrpo_answers.verifiers.ifeval import VERIFIER

AT_LEAST, LESS = "at least", "less than"
# Instruction, parameters, a text that follows it, one that does not.
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("change_case:capital_word_frequency", {"capital_relation": AT_LEAST, "capital_frequency": 2}, "GO NOW", "GO now"),
    ("change_case:english_capital", {}, "THIS IS IT.", "THIS is it."),
    ("change_case:english_lowercase", {}, "this is it.", "This is it."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say Hi."}, " say hi. Hi!", "Hi! Say Hi."),
    ("combination:two_responses", {}, "a\n******\nb", "a ****** a"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] b [c]", "[a] [b\n]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\nP. S. y", "PS y"),
    ("detectable_format:constrained_response", {}, "Well: My answer is no.", "No."),
    ("detectable_format:json_format", {}, "```json\n{\"a\": 1}\n```", "{a: 1}"),
    ("detectable_format:multiple_sections", {"section_spliter": "Part", "num_sections": 2}, "Part 1 a Part 2 b", "Part 1"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n** b"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "*a* and **"),
    ("detectable_format:title", {}, "<<a>>\nb", "<< >>\nb"),
    ("keywords:existence", {"keywords": ["sun", "a.b"]}, "SUN a.b", "sun axb"),
    ("keywords:forbidden_words", {"forbidden_words": ["sun"]}, "sunny", "the Sun"),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": AT_LEAST}, "sun Sunny", "sun"),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": LESS}, "#", "##"),
    ("language:response_language", {"language": "de"}, "Das ist nicht gut.", "This is not good."),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
     "a\n\nSo, b", "so\n\na"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a *** b *** c"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": AT_LEAST}, "Yes. No.", "Yes, Mr. No."),
    ("length_constraints:number_words", {"num_words": 3, "relation": LESS}, "one two", "one two three"),
    ("punctuation:no_comma", {}, "a; b", "a, b"),
    ("startend:end_checker", {"end_phrase": "The End."}, '"... the end."', "The End. Bye."),
    ("startend:quotation", {}, ' "a" ', '"a'),
]  # fmt: skip
LANGUAGES = {
    "en": "Everyone has the right to life and this is not a joke.",
    "de": "Alle Menschen sind frei und gleich an Würde geboren.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad.",
    "sw": "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa.",
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng.",
    "fi": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina, kun he ovat",
    "pl": "Wszyscy ludzie rodzą się wolni i równi, ale to nie jest wszystko.",
    "ru": "Все люди рождаются свободными и равными в своём достоинстве.",
    "bg": "Всички хора се раждат свободни и равни по достойнство и права.",
    "uk": "Всі люди народжуються вільними і рівними у своїй гідності.",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق",
    "fa": "تمام افراد بشر آزاد به دنیا می آیند و از لحاظ حیثیت با هم برابرند",
    "ur": "تمام انسان آزاد اور حقوق و عزت کے اعتبار سے برابر پیدا ہوئے ہیں",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है",
    "mr": "सर्व मानवी व्यक्ती जन्मतःच स्वतंत्र आहेत आणि त्यांना समान प्रतिष्ठा आहे",
    "ne": "सबै व्यक्तिहरू जन्मजात स्वतन्त्र हुन् र तिनीहरूको समान अधिकार छ",
    "bn": "সমস্ত মানুষ স্বাধীনভাবে জন্মগ্রহণ করে",
    "pa": "ਸਾਰੇ ਮਨੁੱਖ ਆਜ਼ਾਦ ਪੈਦਾ ਹੁੰਦੇ ਹਨ",
    "gu": "બધા મનુષ્યો સ્વતંત્ર જન્મે છે",
    "ta": "மனிதர்கள் சுதந்திரமாக பிறக்கின்றனர்",
    "te": "మనుషులందరూ స్వేచ్ఛగా జన్మించారు",
    "kn": "ಎಲ್ಲ ಮಾನವರು ಸ್ವತಂತ್ರರು",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระ",
    "ko": "모든 인간은 자유롭게 태어났다",
    "ja": "すべての人間は自由である",
    "ml": "എല്ലാ മനുഷ്യരും സ്വതന്ത്രരാണ്",
    "he": "כל בני אדם נולדו בני חורין",
}  # fmt: skip


def test_every_instruction_has_a_case() -> None:
    assert [name for name, *_ in CASES] == sorted(CHECKS)
    assert len(CHECKS) == 25


@pytest.mark.parametrize(("name", "parameters", "good", "bad"), CASES, ids=lambda value: str(value)[:30])
def test_a_text_follows_the_instruction_or_not(name: str, parameters: dict[str, Any], good: str, bad: str) -> None:
    VERIFIER.check(json.dumps([[name, parameters]]))
    assert follows(good, name, parameters)
    assert not follows(bad, name, parameters)


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_languages_of_ifeval_are_told_apart(code: str) -> None:
    assert language(LANGUAGES[code]) == code


def test_sentences_and_capital_words_are_counted_as_nltk_does() -> None:
    assert sentence_count("Dr. Lee (b. 1950) met J. Doe at 3.5 p.m. yesterday. Why? 'Hm!' It ended...") == 5
    assert sentence_count("") == 0
    assert capital_words("DON'T use COVID-19 or U.S. A/B, **NOW**") == 6


def test_loosely_the_first_line_the_last_and_asterisks_do_not_count() -> None:
    text = 'Sure, here it is:\n"*so*"\nBye, then'
    assert '"so"' in loosened(text)
    truth = json.dumps(
        [["startend:quotation", {}], ["punctuation:no_comma", {}], ["keywords:existence", {"keywords": ["x"]}]]
    )
    assert VERIFIER.parts is not None
    assert [has for _, has in VERIFIER.parts(text, truth, "strict")] == [False, False, False]
    assert [has for _, has in VERIFIER.parts(text, truth, "flexible")] == [True, True, False]


@pytest.mark.parametrize(
    "truth",
    ["", "[]", "{}", "[1]", '[["punctuation:no_dots", {}]]', '[["punctuation:no_comma", 1]]', '[["length_constraints:number_words", {}]]',
     '[["length_constraints:number_words", {"num_words": 3, "relation": "about"}]]',
     '[["keywords:existence", {"keywords": "x"}]]', "[" * 100_000,
     json.dumps([["punctuation:no_comma", {}]] * 51), json.dumps([["startend:end_checker", {"end_phrase": "a" * 1001}]]),
     json.dumps([["keywords:existence", {"keywords": ["a"] * 51}]]), json.dumps([["keywords:existence", {"keywords": ["a" * 1001]}]]),
     '[["length_constraints:number_paragraphs", {"num_paragraphs": 300.0}]]', '[["language:response_language", {"language": "zh"}]]',
     '[["language:response_language", {"language": "Latin"}]]', '[["language:response_language", {"language": ["en"]}]]',
     '[["keywords:letter_frequency", {"letter": "ab", "let_frequency": 1, "let_relation": "at least"}]]',
     '[["length_constraints:nth_paragraph_first_word", {"num_paragraphs": 1, "nth_paragraph": 5, "first_word": "so"}]]',
     '[["length_constraints:nth_paragraph_first_word", {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "two words"}]]'],
)  # fmt: skip
def test_instructions_that_cannot_be_read_are_refused(truth: str) -> None:
    with pytest.raises(UserError, match="the instructions cannot be read"):
        VERIFIER.check(truth)


@given(st.text(alphabet="*[]<>-\n \"'.aA,P.S#{}:1```json", max_size=300))
def test_no_text_makes_a_check_fail(text: str) -> None:
    for name, parameters, *_ in CASES:
        assert follows(text, name, parameters) in (True, False)


@pytest.mark.parametrize("piece", ["[", "<", "*", "\n", " ", "Section ", "p. ", "A.", "-\n", '"', "```", "a "])
def test_checks_take_linear_time(piece: str, growth: Growth) -> None:
    def check(text: str) -> None:
        for name, parameters, *_ in CASES:
            follows(text, name, parameters)

    assert growth(check, lambda length: piece * (length // len(piece))) < 3 * FACTOR
