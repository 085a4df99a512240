"""The stems of English words, by Porter's second algorithm in the form of Snowball 3.1 (snowballstem.org).

It is written out here since the stemmer that Snowball generates takes ten times as long, and since its versions give
some words other stems, which an index that one process keeps and another reads must not have.
"""

from __future__ import annotations

import re

_VOWELS = "aeiouy"
_CONSONANT_Y = re.compile(rf"([{_VOWELS}])y")
_VOWEL = re.compile(rf"[{_VOWELS}]")
_REGIONS = re.compile(
    rf"(arsen|commun|emerg|gener|inter|later|organ|past|univers|[^{_VOWELS}]*[{_VOWELS}]+[^{_VOWELS}])"
    rf"(?:[^{_VOWELS}]*[{_VOWELS}]+([^{_VOWELS}]))?"
)
"""What stands before the first region, and with it what stands before the second."""
_SHORT = re.compile(rf"[^{_VOWELS}][{_VOWELS}][^{_VOWELS}wxY]\Z|\A[{_VOWELS}][^{_VOWELS}]\Z|past\Z")
"""The end of a word that is a short syllable."""
_IRREGULAR = {
    "skis": "ski", "skies": "sky", "idly": "idl", "gently": "gentl", "ugly": "ugli", "early": "earli", "only": "onli",
    "singly": "singl",
} | {word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")}  # fmt: skip
_DOUBLES = frozenset(("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt"))
_SECOND = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize", "ization": "ize",
    "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful",
    "ousli": "ous", "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble", "ogist": "og",
    "fulli": "ful", "lessli": "less", "ogi": "og", "li": "",
}  # fmt: skip
_THIRD = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic", "ful": "",
    "ness": "", "ative": "",
}  # fmt: skip
_FOURTH = {
    "ement": "", "ment": "", "able": "", "ance": "", "ence": "", "ible": "", "ant": "", "ate": "", "ent": "", "ion": "",
    "ism": "", "iti": "", "ive": "", "ize": "", "ous": "", "al": "", "er": "", "ic": "",
}  # fmt: skip
_AFTER = {"ogi": "l", "li": "cdeghkmnrt", "ion": "st"}
"""The letters after which alone an ending is one."""
_LAST_LETTERS = frozenset(ending[-1] for ending in (*_SECOND, *_THIRD, *_FOURTH))


def stem(word: str) -> str:
    """The stem of a word in lower case without apostrophes."""
    if len(word) < 3:
        return word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if has_y := "y" in word:
        # A capital is a consonant.
        word = _CONSONANT_Y.sub(r"\1Y", f"Y{word[1:]}" if word[0] == "y" else word)
    found = _REGIONS.match(word)
    first = found.end(1) if found else len(word)
    second = found.end(2) if found and found[2] else len(word)
    word = _without_inflection(word, first)
    if word[-1] in "yY" and len(word) > 2 and word[-2] not in _VOWELS:
        word = f"{word[:-1]}i"
    if len(word) > first:
        word = _without_derivation(word, first, second)
    return word.replace("Y", "y") if has_y else word


def _without_inflection(word: str, first: int) -> str:
    """A word without the endings of number, person and tense."""
    if word.endswith(("ied", "ies")):
        word = word[: -2 if len(word) > 4 else -1]
    elif word.endswith("sses"):
        word = word[:-2]
    elif word[-1] == "s" and word[-2] not in "su" and _VOWEL.search(word, 0, len(word) - 2):
        word = word[:-1]

    base = word.removesuffix("ly")
    if base.endswith("eed"):
        return base[:-1] if len(base) - 3 >= first and base[:-3] not in ("succ", "proc", "exc") else word
    if base.endswith("ing"):
        rest = base[:-3]
        if base is word and len(rest) == 2 and rest[1] == "y" and rest[0] not in _VOWELS:
            return f"{rest[0]}ie"
        if base is word and rest in ("even", "cann", "inn", "earr", "herr", "out"):
            return word
    elif base.endswith("ed"):
        rest = base[:-2]
    else:
        return word
    if not _VOWEL.search(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return f"{rest}e"
    if rest[-2:] in _DOUBLES:
        return rest if len(rest) == 3 and rest[0] in "aeo" else rest[:-1]
    return f"{rest}e" if len(rest) == first and _SHORT.search(rest) else rest


def _without_derivation(word: str, first: int, second: int) -> str:
    """A word without the endings that make a word of another one."""
    for endings, region in ((_SECOND, first), (_THIRD, first), (_FOURTH, second)):
        for length in range(7, 1, -1) if word[-1] in _LAST_LETTERS else ():
            ending = word[-length:]
            if ending in endings:  # the longest one; where that stays, no shorter one goes
                end = len(word) - length
                if end >= (second if ending == "ative" else region) and word[end - 1] in _AFTER.get(ending, word):
                    word = word[:end] + endings[ending]
                break
    last = len(word) - 1
    if word[-1] == "e":
        if last >= second or (last >= first and not _SHORT.search(word[:-1])):
            return word[:-1]
    elif word[-1] == "l" and last >= second and word[-2] == "l":
        return word[:-1]
    return word
