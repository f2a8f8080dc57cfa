r"""Texts that were once paid wrongly or refused wrongly, one by one; test_notations.py has the classes they stand for."""

import pytest

from dagrpo_answers import Judge
from dagrpo_answers.verifier import Extractor

# an answer -> the numbers it is right for, and those it must not be right for, in `\boxed{...}` and on a line `Answer:`
FORMULAS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("7 1/2", ("7.5", "15/2"), ("4", "3.5", "7")),
    ("7\\frac{1}{2}", ("7.5", "15/2"), ("3.5",)),
    ("7\u00bd", ("7.5",), ("7",)),
    ("> \\frac{1}{2}", (), ("1/2", "\\frac{1}{2}")),
    ("\\neq \\frac{1}{2}", (), ("1/2", "\\frac{1}{2}")),
    ("I do not know, \\frac{1}{2}?", (), ("1/2", "\\frac{1}{2}")),
    ("34\\text{ or $\\frac{3}{4}$}", (), ("34", "3/4")),
    ("1, 234", ("\\{1, 234\\}", "1,  234"), ("1234", "1,234", "1")),
    ("\\frac 1 2", ("1/2", "0.5"), ("1", "2", "12")),
    ("\\dfrac 3 4", ("3/4", "0.75"), ("3", "4", "34")),
    ("\\binom 5 2", ("10",), ("5", "2", "52")),
    ("\\log_2 8", ("3",), ("8", "2")),
    ("2^3 3^2", ("72",), ("8", "9", "2", "17")),
    ("x=3 or y=34", (), ("3", "34")),
    ("definitely not $34$", (), ("34",)),
    ("34\\text{ is wrong}", (), ("34",)),
    ("34\\text{ or 35}", (), ("34", "35")),
    ("35 or $34$", (), ("34", "35")),
    ("0.\\overline{3}", ("1/3", "\\frac{1}{3}"), ("0.3", "3")),
    ("seat", ("seat", "\\text{seat}"), ("east", "teas")),
    ("on", ("on",), ("no",)),
    ("34\u00b0", ("34",), ()),
    ("34\u3002", ("34",), ()),
    ("1\u202f234", ("1234",), ("1", "234")),
    ("72\u3002", ("72",), ()),
    ("1e3", ("1000",), ("1", "3")),
    ("3, 125", (), ("3125", "3", "125")),
    ("3\\;4", (), ("34", "3", "4")),
    ("3\\!4", (), ("34", "3", "4")),
    ("3\\;400", ("3400",), ("3", "400")),
    ("(1,234)", ("(1, 234)",), ("1234", "1,234")),
    ("0.\\bar3", ("1/3",), ("0.3",)),
    ("0.3 repeating", (), ("0.3",)),
    ("0.333\\ldots", (), ("0.333", "1/3")),
    ("7 3/2", (), ("8.5", "10.5")),
    ("34\u2103", ("34",), ()),
    ("50\\%", ("50", "50\\%"), ("0.5", "1/2")),
    ("5 \\text{ cm}", ("5", "5\\text{ cm}"), ("5\\text{ m}",)),
    ("x=3, y=34", ("x = 3, y = 34",), ("34", "3")),
    ("34=35", (), ("34", "35")),
    ("18+2=20", ("20",), ("18", "2", "21")),
    ("$34$ $35$", (), ("34", "35", "3435")),
    ("34,", ("34",), ()),
    ("{3}{4}", (), ("34", "12")),
    ("34_8", ("34_{8}",), ("34", "28")),
    ("\\pm 34", ("\\pm 34",), ("34", "-34")),
    ("5 million", (), ("5", "5000000")),
]
# a ground truth -> the boxes that are right for it, and those that are not
SETS_AND_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "-2<x<2": (("(-2,2)", "x>-2, x<2", "|x|<2"), ("|x|\\le 2", "|x|<-2", "-2,2", "\\pm 2", "x>-2 or x<2")),
    "|x|<2": (("(-2,2)", "2>x>-2"), ("\\pm 2", "-2,2", "x<2")),
    "|x|\\ge\\frac{1}{2}": (("x\\le-0.5\\text{ or }x\\ge0.5",), ("x\\ge 0.5", "|x|>0.5")),
    "x\\ne 1": (
        ("x<1\\text{ or }1<x", "(-\\infty,1)\\cup(1,\\infty)", "x\\neq 1"),
        ("1", "x=1", "x\\ne 2", "x\\ne 1, x\\ne 2"),
    ),
    "0<x<5": (("(0,5)", "x<5\\text{ and }x>0"), ("x=0,x=5", "\\{0,5\\}", "x\\ge 0, x<5")),
    "x\\in(0,5)": (("(0,5)",), ("0 or 5", "\\{0,5\\}")),
    "x\\in\\{0,5\\}": (("\\{0,5\\}", "0,5", "x=0 or x=5"), ("0<x<5",)),
    "\\pm 2": (("-2, 2", "x=2 or x=-2"), ("|x|<2", "-2<x<2")),
    "[0,5]": (("0\\le x\\le 5", "x\\ge 0, x\\le 5"), ("0 or 5", "0, 5", "\\{0,5\\}")),
    "[0,5)": ((), ("0 or 5", "0, 5")),
    "(0,5)": (("0, 5", "x=0 \\text{ and } y=5"), ("0 or 5", "0 and 5", "0 \\text{ and } 5", "0} or \\boxed{5")),
    "(2,1]": ((), ("2 or 1", "2, 1")),
    "\\{0,5\\}": (("0 or 5", "5 and 0", "5, 0", "x=5, x=0"), ("(0,5)", "[0,5]")),
    "(1,2)": (("1, 2", "x=1, y=2", "(x,y)=(1,2)", "y=2\\text{ and }x=1"), ("x=1, x=2", "x = 1, 2", "x=1 or y=2")),
    "(x,y)=(1,2)": (("(1,2)", "(x,y)=(1,2)", "(y,x)=(2,1)", "y=2, x=1"), ("(y,x)=(1,2)", "y=1, x=2", "x=1 or y=2")),
    "(x,y)=(\\sqrt{8},3\\sqrt{3})": (("(2\\sqrt{2},\\sqrt{27})",), ("(y,x)=(2\\sqrt{2},\\sqrt{27})",)),
    "x=1, y=2": (("(y,x)=(2,1)", "1, 2"), ("(y,x)=(1,2)", "x=1 or y=2")),
    "x=0 or y=0": (("y=0 or x=0",), ("x=0, y=0", "(0,0)")),
    "(r,\\theta)=(3,\\pi)": (("(3,\\pi)", "\\theta=\\pi, r=3"), ("(\\pi,3)",)),
    "f(3)=3": (("3", "f( 3 )=3", "x=3"), ("f(2)=3", "g(3)=3")),
    "\\cos A=\\frac{1}{2}": (("\\cos(A)=0.5", "1/2"), ("\\sin A=\\frac{1}{2}", "\\cos B=\\frac{1}{2}")),
    "\\angle B=30": (("m\\angle B=30^\\circ", "\\angle ABC=30", "B=30", "30"), ("\\angle A=30", "\\angle BCA=30")),
    "n = 7, k = 3": (
        ("7, 3", "(7, 3)", "k = 3, n = 7", "(k,n)=(3,7)", "a=7, b=3"),
        ("3, 7", "3 and 7", "\\{3, 7\\}", "k=7, n=3", "(k,n)=(7,3)", "n=7, m=3, k=3", "k=7, m=3"),
    ),
    "7, 3": (("3, 7", "n=7, k=3"), ("n=3, k=7",)),
    "c=1, a=2, b=3": (("1, 2, 3", "a=2, b=3, c=1", "(a,b,c)=(2,3,1)"), ("2, 3, 1", "(2,3,1)", "a=1, b=2, c=3")),
    "y=2, x=1": (("(1,2)", "2, 1"), ("1, 2", "(2,1)")),
    "\\sqrt{13}": (("\u221a13", "\u221a 13", "\u221a(13)", "sqrt13", "sqrt(13)"), ("\\sqrt13", "3", "\u221a1 3")),
    "\\sqrt{2.5}": (("\u221a2.5",), ("\u221a2 .5",)),
    "4": (("\u221a16", "\u221a\u221a256"), ()),
    "6": (("\u221a36",), ("\u221a16", "sqrt16")),
    "\\sqrt[3]{10}": (("\u221b10", "\u221b(10)"), ("\u221b1 0",)),
    "\\frac{\\sqrt{21}}{5}": (("\u221a21/5", "(\u221a21)/5"), ("\u221a(21/5)",)),
    "10\\sqrt{10}": (("\u221a1000", "\u221a1,000", "10\u221a10"), ("10\u221a1 0",)),
    "11,\\! 111,\\! 100": (
        ("11111100", "11,111,100", "11{,} 111{,} 100", "11\\,111\\,100", "11\u2009111\u2009100"),
        ("11, 111, 100", "11,\\,111,\\,100"),
    ),
    "x_{1}=1, x_{2}=-2": (
        ("x_1=1, x_2=-2", "x_2=-2, x_1=1", "x\u2081=1, x\u2082=-2", "1, -2"),
        ("x_1=-2, x_2=1", "-2, 1"),
    ),
    "x_{\\text{max}}=3, x_{\\min}=1": (("x_{min}=1, x_{max}=3",), ("x_{min}=3, x_{max}=1",)),
    "f_1(2)=3": (("f_{1}(2)=3",), ("f_{2}(2)=3",)),
    "\\frac{1}{50!}": (("\\frac{51}{51!}",), ("\\frac{1}{51!}", "\\frac{2}{50!}", "0")),
    "\\sqrt{2}\\cdot 10^{-60}": (
        ("\\frac{2}{\\sqrt{2}\\cdot 10^{60}}",),
        ("\\sqrt{3}\\cdot 10^{-60}", "0", "\\sqrt{2}\\cdot 10^{-60}+10^{-120}"),
    ),
    "0.5\\pi\\cdot 10^{-60}": (("\\frac{\\pi}{2}\\cdot 10^{-60}",), ("0.6\\pi\\cdot 10^{-60}",)),
    "e^{-200}": (("\\frac{1}{e^{200}}",), ("e^{-201}", "0")),
    "\\sqrt{2}\\cdot 10^{60}": (("\\sqrt{8}\\cdot 5\\cdot 10^{59}",), ("\\sqrt{2}\\cdot 10^{60}+1",)),
    "y=2x": (("f(x)=2x", "2x", "y-2x=0"), ("y'=2x", "f'(x)=2x", "\\frac{dy}{dx}=2x")),
    "y'=2x": (("2x",), ("y=2x",)),
    "36": (("$\\$36$", "$\\$ 36.00$", "\\$36", "$\\$36$."), ("$\\$3$6", "\\$36k")),
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}": (
        ("\\begin{pmatrix}1\\\\2\\\\\\end{pmatrix}", "\\begin{bmatrix}1\\\\ 2 \\\\ \\end{bmatrix}"),
        ("\\begin{pmatrix}1\\\\2\\\\0\\end{pmatrix}",),
    ),
    "2 \\pm \\sqrt3": (
        (
            *("2+\\sqrt3, 2-\\sqrt3", "\\{2-\\sqrt3, 2+\\sqrt3\\}", "x=2+\\sqrt3\\text{ or }x=2-\\sqrt3"),
            *("2+/-sqrt(3)", "x=2\u00b1\u221a3"),
        ),
        ("2+\\sqrt3", "(2+\\sqrt3, 2-\\sqrt3)", "2\\pm\\sqrt2", "3\\pm\\sqrt3"),
    ),
    "\\frac{1+\\sqrt5}{2}, \\frac{1-\\sqrt5}{2}": (
        ("\\frac{1\\pm\\sqrt5}{2}", "x = \\frac{1 \\pm \\sqrt{5}}{2}"),
        ("\\frac{-1\\pm\\sqrt5}{2}",),
    ),
    "-1, 0, 1": (("0, \\pm 1", "\\pm1, 0", "\\{0, \\pm 1\\}"), ("\\pm 1", "(0, \\pm 1)")),
    "(1,2), (-1,2)": (("(\\pm 1, 2)",), ("(1, \\pm 2)", "(\\pm 1, \\pm 2)")),
    "(1,-2), (-1,2)": (("(\\pm 1, \\mp 2)",), ("(\\pm 1, 2)",)),
    "\\{x \\mid 0<x<5\\}": (
        ("(0,5)", "0<x<5", "\\{x : 0<x<5\\}", "\\{x \\in \\mathbb{R} \\mid x>0, x<5\\}"),
        ("[0,5]", "\\{0,5\\}"),
    ),
    "(2,\\infty)": (
        ("\\{x \\mid x>2\\}", "\\{ x\\in\\mathbb R : x > 2 \\}", "{x | x>2}"),
        ("\\{x \\mid x\\ge2\\}", "\\{x \\mid x=2\\}"),
    ),
    "5\\text{ miles}": (("5", "5\\textnormal{ miles}", "5 mi"), ("5\\textnormal{ km}",)),
    "300": (
        (
            *(
                "300\\text{ K}",
                "300\\,\\mathrm{K}",
                "300 kelvins",
                "300 Hz",
                "300 kHz",
                "300\\text{ kJ/mol}",
                "300 kJ/mol",
            ),
            "300 eV",
        ),
        ("300K", "300 MN"),
    ),
    "300\\text{ mJ}": (("300 millijoules", "300"), ("300\\text{ MJ}", "300\\text{ J}", "300 kJ")),
    "15 cm^2": (
        ("15 cm2", "15 square cm", "15 sq. cm", "15\\text{ cm}^2", "15 \u5e73\u65b9\u5398\u7c73", "15"),
        ("15 cm^3", "15 cm", "15 m^2", "15 \u7acb\u65b9\u5398\u7c73", "15 cubic centimeters"),
    ),
    "9.8\\text{ m/s}^2": (("9.8 m/s^2", "9.8 meters per second^2", "9.8"), ("9.8\\text{ m/s}", "9.8 km/s^2")),
    "60 mph": (("60 miles per hour", "60 mi/h"), ("60 km/h", "60 miles per minute")),
    "34": (
        (
            "m+n=34",
            "p + q + r = 34",
            "m+n = 25+9 = 34",
            "The final answer is $34$. I hope it is correct.",
            "34 units^2",
        ),
        ("m+n", "2m=34", "x+y=34", "mn=34", "m+m=34", "m+n=35"),
    ),
    "m+n=34": (("34", "n+m=34"), ("m=34", "m+n+p=34")),
    "5": (("2+3=5\\text{ kg}", "5\\text{ kg}=5\\text{ kg}"), ("5\\text{ kg}=5\\text{ g}", "5\\%=5")),
    "7": (("7 (seven)",), ("7 (three four)", "7 (seven and)")),
    "125": (("125 (one hundred and twenty-five)",), ("125 (one hundred twenty and five)",)),
    "50000": (("50000 (fifty thousand)",), ("50000 (five hundred hundred)",)),
}
EVERY: tuple[Extractor, ...] = ("strict", "flexible", "exact")
# text, ground truth, verifier, extractor, whether it is right
TEXTS: list[tuple[str, str, str, Extractor, bool]] = [
    ("#### 18\u00bd", "18", "gsm8k", "strict", False),
    ("#### 5 thousand", "5", "gsm8k", "strict", False),
    ("#### 5 million dollars", "5", "gsm8k", "strict", False),
    ("#### 10\u00b2", "10", "gsm8k", "strict", False),
    ("#### 3 \u00d7 10^4", "3", "gsm8k", "strict", False),
    ("#### 9*2", "9", "gsm8k", "strict", False),
    ("#### 20 (twenty of them)", "20", "gsm8k", "strict", True),
    ("#### 20 (twenty ten)", "20", "gsm8k", "strict", False),
    ("#### 7 (three four)", "7", "gsm8k", "strict", False),
    *(
        (f"#### 18\n\n{following} How many are 2 + 5?\n#### 7", truth, "gsm8k", extractor, truth == "18")
        for following in ("Question:", "Q:", "**Problem 2:**", "User:", "Question 2.")
        for extractor in EVERY
        for truth in ("18", "7")
    ),
    ("Question: How many?\n#### 7\nSo:\n#### 18", "18", "gsm8k", "strict", True),
    ("Final Answer: The final answer is $\\frac{1}{2}$. I hope it is correct.", "1/2", "math", "flexible", True),
    ("Answer: The final answer is $7$. I hope it is not.", "7", "math_dapo", "strict", False),
    *(
        (text, truth, "choice", "strict", truth == "C")
        for text in ("答案：C", "答案: **C**。", "正确答案是C", "答案为：（C）。", "故选：C", "因此答案选 C 项")
        for truth in ("C", "B")
    ),
    *((text, "C", "choice", "strict", False) for text in ("答案：C或D", "答案不是C", "答案是CD", "答案：C、D")),
    ("#### 18 + 2 = 20", "18", "gsm8k", "strict", False),
    ("#### 1 234", "1", "gsm8k", "strict", False),
    ("#### 1 234", "1234", "gsm8k", "strict", True),
    ("#### 34 or 35", "34", "gsm8k", "strict", False),
    ("#### 34 is wrong", "34", "gsm8k", "strict", False),
    ("#### 0.3 repeating", "0.3", "gsm8k", "strict", False),
    ("#### 5 mln", "5", "gsm8k", "strict", False),
    ("#### 5k", "5", "gsm8k", "strict", False),
    ("#### 34\u00b0", "34", "gsm8k", "strict", True),
    ("#### 72\u3002", "72", "gsm8k", "strict", True),
    ("#### 1\u202f234", "1234", "gsm8k", "strict", True),
    ("It is 1/2", "2", "gsm8k", "flexible", False),
    ("It is 2^10", "10", "gsm8k", "flexible", False),
    ("It is 1e5", "5", "gsm8k", "flexible", False),
    ("at 12:30", "30", "gsm8k", "flexible", False),
    ("It is 5 million dollars", "5", "gsm8k", "flexible", False),
    ("It is 1/2", "2", "math", "flexible", False),
    ("It is 1/2", "0.5", "math", "flexible", True),
    ("It is 2^10", "10", "math", "flexible", False),
    ("It is 2^10", "1024", "math", "flexible", True),
    ("at 12:30", "30", "math", "flexible", False),
    ("<answer>3/5</answer>", '["35"]', "exact_match", "strict", False),
    ("<answer>1+2</answer>", '["12"]', "exact_match", "strict", False),
    ("<answer>2^3</answer>", '["23"]', "exact_match", "strict", False),
    ("<answer>Paris,France</answer>", '["Paris"]', "substring_match", "strict", True),
    ("<answer><b>Paris</b></answer>", '["Paris"]', "substring_match", "strict", True),
    ("<answer>\\boxed{Paris}</answer>", '["Paris"]', "substring_match", "strict", True),
    ("<answer><answer>Paris</answer></answer>", '["Paris"]', "exact_match", "strict", True),
    ("\\boxed{1e3}", "1000", "geo3k", "strict", True),
    ("\\boxed34", "34", "math", "strict", True),
    ("\\boxed(34) it is", "34", "math", "strict", True),
    ("\\boxed\\text{34}", "34", "math", "strict", True),
    ("\\boxed 34", "34", "math", "strict", True),
    ("$\\boxed 34$", "34", "math", "flexible", True),
    ("Answer: 34 dollars", "34", "math", "flexible", True),
    ("Answer: 34 km/h", "34", "math", "flexible", True),
    ("Answer: 34%", "34", "math", "flexible", True),
    ("Answer: 34</s>", "34", "math", "flexible", True),
]


@pytest.mark.parametrize(("answer", "right", "wrong"), FORMULAS)
def test_a_formula_is_right_for_one_number_at_most(
    answer: str, right: tuple[str, ...], wrong: tuple[str, ...], judge: Judge
) -> None:
    truths = [*right, *wrong]
    for verifier, form in (("math", "\\boxed{{{}}}"), ("math_dapo", "Answer: {}"), ("geo3k", "\\boxed{{{}}}")):
        judged = judge.judge([form.format(answer)] * len(truths), truths, [verifier] * len(truths), "strict")
        assert [judgement.verdict == "right" for judgement in judged] == [True] * len(right) + [False] * len(wrong)


@pytest.mark.parametrize("truth", SETS_AND_NAMES)
def test_a_range_a_set_a_pair_and_a_name_are_not_taken_for_one_another(truth: str, judge: Judge) -> None:
    right, wrong = SETS_AND_NAMES[truth]
    texts = [f"\\boxed{{{answer}}}" for answer in (*right, *wrong)]
    judged = judge.judge(texts, [truth] * len(texts), ["math"] * len(texts), "strict")
    assert [text for text, judgement in zip(texts, judged, strict=True) if judgement.verdict == "right"] == texts[
        : len(right)
    ]


@pytest.mark.parametrize(("text", "truth", "verifier", "extractor", "right"), TEXTS)
def test_a_text_is_right_or_not(
    text: str, truth: str, verifier: str, extractor: Extractor, right: bool, judge: Judge
) -> None:
    (judged,) = judge.judge([text], [truth], [verifier], extractor)
    assert (judged.verdict == "right") is right
