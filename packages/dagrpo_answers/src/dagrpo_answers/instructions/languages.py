"""The language of a text, by its script, letters and function words."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

# First and last letter of a script -> its language, or its name where several languages share it.
_SCRIPTS = (
    ("A", "\u024f", "Latin"), ("\u1e00", "\u1eff", "Latin"), ("\u0370", "\u03ff", "el"), ("\u0400", "\u052f", "Cyrillic"),
    ("\u0590", "\u05ff", "he"), ("\u0600", "\u06ff", "Arabic"), ("\u0900", "\u097f", "Devanagari"), ("\u0980", "\u09ff", "bn"),
    ("\u0a00", "\u0a7f", "pa"), ("\u0a80", "\u0aff", "gu"), ("\u0b80", "\u0bff", "ta"), ("\u0c00", "\u0c7f", "te"),
    ("\u0c80", "\u0cff", "kn"), ("\u0d00", "\u0d7f", "ml"), ("\u0e00", "\u0e7f", "th"), ("\u1100", "\u11ff", "ko"),
    ("\u3040", "\u30ff", "ja"), ("\u3130", "\u318f", "ko"), ("\u4e00", "\u9fff", "zh-cn"), ("\uac00", "\ud7af", "ko"),
)  # fmt: skip
_LETTERS = {  # that one language of a script has, and the others have not
    "Arabic": {"ur": "ٹڈڑںےہھ", "fa": "پچژگکی", "ar": "ةىيكأإ"},
    "Cyrillic": {"uk": "іїєґ", "ru": "ыэё", "bg": "ъ"},
    "Devanagari": {"mr": "ळ"},
}
_WORDS = {  # that are frequent in one language of a script
    "Latin": {
        "en": "the of and to is in that it for you with this are be on your as i have not can was will my",
        "de": "der die und das ist nicht ich ein eine zu den mit von für auf sie es wir auch dem sich werden",
        "fr": "le la les de et des est une un pour dans que qui pas vous nous sur avec au ce du je il",
        "es": "el la los las de y que en un una es por con para se del su no como lo al más",
        "pt": "o a os as de e que em um uma é do da para com não se por dos mais como seu na no",
        "it": "il la le di e che in un una è per con non del della sono si dei nel come più gli",
        "nl": "de het een en van ik is dat niet te in op zijn voor met die je er ook aan",
        "sv": "och att det i en som är på för av med den inte har jag till om ett vi",
        "pl": "i w nie na się z że do jest to jak o są dla przez po ale od co za",
        "fi": "ja on ei se että en hän oli ovat mutta kun myös niin joka ole kuin sen tai voi",
        "sw": "na ya wa kwa ni la katika za kuwa cha yake hii kama au hiyo vya pia sana ili watu",
        "vi": "và là của có không cho người được trong một các với này để những tôi đã khi bạn ở",
        "tr": "ve bir bu için ile de da çok olarak daha gibi en ne var olan kadar ben değil",
        "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada adalah saya ke kami bisa",
        "ro": "și de în la a cu nu este pe un o că din mai pentru se sunt care să",
        "tl": "ang ng sa na mga ay at ko mo hindi ito ako siya si para kung niya",
    },
    "Cyrillic": {
        "ru": "и в не на что я с как это по но из у за так же от для он мы",
        "uk": "і в не на що я з як це по але із у за так та від для він ми",
        "bg": "и в не на че аз с как това по но от у за да се е са ще съм",
    },
    "Arabic": {
        "ar": "في من على إلى أن هذا التي الذي مع عن كان لا هو هي ما",
        "fa": "در از به که و این را با است برای آن می یک خود های",
        "ur": "کے کی میں ہے اور سے کا کو پر نے یہ ہیں کہ بھی ایک",
    },
    "Devanagari": {
        "hi": "है के में और की का से को हैं पर यह ने कि भी एक नहीं हम मैं",
        "mr": "आहे आणि च्या ला हे या आहेत मी तो ती नाही होते केले असे तर एक",
        "ne": "छ र को मा छन् यो हो गर्न पनि लागि एक भएको हुन्छ म हामी छैन गर्ने",
    },
}  # fmt: skip
_SETS = {script: {code: frozenset(words.split()) for code, words in of.items()} for script, of in _WORDS.items()}
CODES = frozenset(
    [code for *_, code in _SCRIPTS if code not in _WORDS] + [code for of in _WORDS.values() for code in of]
)
_WORD = re.compile(r"[^\W\d_][^\W\d_\u200c\u200d]*")
_VIRAMA = "\u0900-\u0903\u093a-\u094f"  # vowel signs, which are no letters to Python
_DEVANAGARI = re.compile(r"[\u0904-\u0939" + _VIRAMA + r"\u0958-\u096f]+")


@lru_cache(maxsize=16)  # a prompt may ask for the language several times
def language(text: str) -> str | None:
    """Return the ISO 639-1 code of the language of most of a text; None without letters.

    A language has its own script, or the most of its letters and function words among those of its script. Latin text with none of these
    is English.
    """
    scripts = Counter(filter(None, map(_script, text)))
    if not scripts:
        return None
    if scripts["ja"]:  # with Chinese letters
        scripts["ja"] += scripts.pop("zh-cn", 0)
    script = scripts.most_common(1)[0][0]
    if script not in _SETS:
        return script
    found = _evidence(text.lower(), script)
    return max(found, key=lambda code: found[code]) if any(found.values()) else next(iter(_SETS[script]))


def _script(character: str) -> str | None:
    if character < "\u0080":
        return "Latin" if character.isalpha() else None
    return next((name for first, last, name in _SCRIPTS if first <= character <= last), None)


def _evidence(text: str, script: str) -> Mapping[str, int]:
    words = Counter((_DEVANAGARI if script == "Devanagari" else _WORD).findall(text))
    letters = Counter(text) if script in _LETTERS else Counter[str]()
    return {
        code: sum(words[word] for word in own) + sum(letters[each] for each in _LETTERS.get(script, {}).get(code, ""))
        for code, own in _SETS[script].items()
    }
