"""The terms that lexical search compares, and the times that a question names."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import threading
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import Stemmer
from numpy.typing import NDArray

# A run of letters and digits is a word; words of a script that one language writes are stemmed by that language's
# Snowball stemmer, Latin ones by the English one. What is written as one name (``snake_case``, ``camelCase``, a path,
# a UUID, an address) is a term as a whole and by its parts. Scripts that put no spaces between words (Chinese,
# Japanese, Korean syllables, Thai, Lao, Khmer, Burmese) give every pair of neighbouring characters. An ideograph or a
# Korean syllable is often a word of its own, and gives itself, too, unless it is one of grammar; and twice more between
# blanks or other scripts, where it is no part of a longer word.

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about all am an and any are as at be been but by can could did do does don for from had has have he her him
        his how i if in into is it its ll me my no not of on or our s she so t than that the their them then there these
        they this to us ve was we were what when where which who whom whose why will with would you your""",
    )
)
"""English words that say too little to search by; a query of nothing else keeps them."""
STOP_TERMS = frozenset(Stemmer.Stemmer("english").stemWords(STOP_WORDS)) | STOP_WORDS
_PARTICLES = frozenset(
    "的了在是我你您他她它们這这那哪谁誰什么麼吗嗎呢吧啊儿兒嘛哦有没沒不也就都很还還和与與及而但被把给給对對从從于於个個一些几幾多少怎"
    "样樣为為何時时候之其里裡去来來要会會能可以说說用做"
)
_SYLLABLES = frozenset(
    "은는이가을를에의도로와과한하고서지다요어여아야해있었했겠습니까게네데든라려면며만부터들나너저것수거뭐언누구디떻왜무슨예세죠"
)
"""Characters that are words of grammar in Chinese, and in Korean, and no term alone."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003ffff"
)
_SIGNS = "\u0300-\u036f\u0900-\u0963\u0971-\u0dff"
"""Accents, and the vowel signs of the scripts of India, which are no letters to Python but stand in words."""
_NAMED = rf"(?:(?![{_UNSPACED}])[\w{_SIGNS}])+"
_SPAN = re.compile(rf"(?P<run>[{_UNSPACED}]+)|(?P<name>{_NAMED}(?:[./\\:@#~-]+{_NAMED})*)")
_ASCII_NAME = re.compile(r"\w+(?:[./\\:@#~-]+\w+)*", re.ASCII)
"""What is a name of `_SPAN` in a text that is all ASCII, which has nothing else, and is read twice as fast by this."""
_WORD = re.compile(rf"(?:(?!_)[\w{_SIGNS}])+")
_PART = re.compile(rf"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|(?:(?![\dA-Za-z_])[\w{_SIGNS}])+")
_ALONE = re.compile("(?<![\u3400-\U0003ffff])[\u3400-\U0003ffff](?=[은는을를]?(?![\u3400-\U0003ffff]))")
_TELLING = re.compile(r"[\d_/\\@#]|[a-z][A-Z]|\w\.\w")
_HEX = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_LANGUAGES = (
    (re.compile(r"[a-zA-Z\u00c0-\u024f]"), "english"),
    (re.compile(r"[\u0400-\u04ff]"), "russian"),
    (re.compile(r"[\u0370-\u03ff]"), "greek"),
    (re.compile(r"[\u0600-\u06ff]"), "arabic"),
    (re.compile(r"[\u0900-\u097f]"), "hindi"),
    (re.compile(r"[\u0b80-\u0bff]"), "tamil"),
    (re.compile(r"[\u0530-\u058f]"), "armenian"),
)
_LONGEST_STEMMED = 40
_MOST_KEPT, _LONGEST_KEPT = 100_000, 100
"""Words whose hashes are kept, and the characters of the longest."""


_local = threading.local()


def terms(text: str) -> list[str]:
    """The terms of a text in its order, repeated as they are."""
    if text.isascii():
        return list(chain.from_iterable(map(_of_name, _ASCII_NAME.findall(text))))
    result: list[str] = []
    for run, name in _SPAN.findall(text):
        if name:
            result += _of_name(name)
        else:
            result += [first + second for first, second in pairwise(run)]
            result += [run] if len(run) == 1 else [character for character in run if _is_word(character)]
            result += 2 * list(filter(_is_word, _ALONE.findall(run)))
    return result


def _is_word(character: str) -> bool:
    """Tells whether a character is one that may be a word alone: an ideograph or a Korean syllable, not of grammar."""
    return character >= "\u3400" and character not in _PARTICLES and character not in _SYLLABLES


def hash_terms(text: str, speaker: str | None = None) -> bytes:
    """The terms of a text as an index stores them: a mark of its speaker, one of whether it ends in a question, and
    `hash_of` each term in its order."""
    ends = QUESTION if text.rstrip().endswith("?") else _MARK
    # No term reaches across a blank.
    return b"".join((hash_of(speaker_mark(speaker or "")), hash_of(ends), *map(_hashes.__getitem__, text.split())))


class _Hashes(dict[str, bytes]):
    """The hashes of the terms in a text without blanks, kept of short ones."""

    def __missing__(self, word: str) -> bytes:
        value = b"".join(map(hash_of, terms(word)))
        if len(word) <= _LONGEST_KEPT:
            if len(self) >= _MOST_KEPT:
                self.clear()
            self[word] = value
        return value


_hashes = _Hashes()


@lru_cache(maxsize=20_000)
def hash_of(term: str) -> bytes:
    """The hash of a term in an index: 32 bits, the lowest first."""
    return hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()[:4]


def hashes_of(words: Iterable[str]) -> NDArray[np.uint32]:
    """The hashes of several terms, in their order."""
    return np.frombuffer(b"".join(map(hash_of, words)), dtype="<u4")


# Speakers. No term begins with the character of a mark, so that none has a mark's hash but by chance.

USER = "user"
_MARK = "\n"
QUESTION = f"{_MARK}?"
_NAME = re.compile(r"\w+")
_NAME_IN_QUERY = re.compile(r"(\w+)(?:['\u2019]s\b)?")
_SELF = re.compile(r"\b(?:i|my|mine|myself)\b", re.I)


def speaker_mark(speaker: str) -> str:
    """A mark of those who may be meant in a question: the user, and whoever has a name that is no plain word, since
    agents are called ``search`` or ``booking``."""
    name = _NAME.search(speaker)
    is_name = speaker == USER or (name and (name[0][0].isupper() or "_" in name[0]))
    return f"{_MARK}{name[0].casefold()}" if name and is_name else _MARK


def without_names(query: str, speakers: Container[bytes]) -> tuple[str, list[bytes]]:
    """A query without the names of speakers that are known, unless it is nothing else, and the marks of those it means.

    Args:
        speakers: `hash_of` the marks of the speakers.
    """
    marks: list[bytes] = []

    def remove_name(match: re.Match[str]) -> str:
        mark = hash_of(_MARK + match[1].casefold())
        if match[1].casefold() == USER or mark not in speakers:
            return match[0]
        marks.append(mark)
        return " "

    text = _NAME_IN_QUERY.sub(remove_name, query)
    if _SELF.search(query):
        marks.append(hash_of(_MARK + USER))
    return text if text.strip() else query, marks


def query_terms(text: str) -> list[str]:
    """The terms of a query, sorted, as often as they are said, without stop words unless there are no others."""
    every = sorted(terms(text))
    return [term for term in every if term not in GRAMMAR and not _PARTICLES.issuperset(term)] or every


_NUMBERED = re.compile(r"\b([^\W\d_]{3,})[ #]{1,2}(\d{1,5})\b(?![.,:/-]?\d|\s*[%$€£])(?:\s+(\w+))?")
_NTH = re.compile(r"[第제] ?(\d{1,5}) ?([\u3400-\ud7a3])")
"""A number with its noun in Chinese, Japanese and Korean."""
_FOLLOWING = STOP_WORDS | frozenset(
    re.findall(
        r"\w+",
        """am auf aus bei das dem den der des die für im ist nach oder und vom von war zum zur au aux dans de du en est
        et ou sur à del el la las los o sobre y da das di do dos e em na no della delle nel per het op over van в во для
        и из к на о об по с""",
    )
)
"""Words behind a number of which none is its unit."""
_LONGEST_ENDING = 2


def numbered(query: str) -> re.Pattern[str] | None:
    """A pattern of the nouns that a query numbers, as in "clause 29", with their numbers; None of a query without any.

    The number of a unit ("29 days"), a year and the day of a month are none. Nouns may have other endings.
    """
    pairs = [
        rf"\b{noun[: max(4, len(noun) - _LONGEST_ENDING)]}\w{{0,3}}\W{{1,2}}{number}\b"
        for noun, number, following in _NUMBERED.findall(query.casefold())
        if noun not in STOP_WORDS and not noun.startswith(_MONTHS_SHORT) and not re.fullmatch(r"(?:19|20)\d\d", number)
        if not following or following in _FOLLOWING
    ]
    pairs += [rf"[第제] ?{number} ?{noun}" for number, noun in _NTH.findall(query)]
    return re.compile("|".join(pairs), re.IGNORECASE) if pairs else None


def is_latin(text: str) -> bool:
    """Tells whether at least half of a text's letters are Latin: of others the packaged table of words knows noise."""
    letters = [character for character in text if character.isalpha()]
    return 2 * sum(letter < "\u0250" for letter in letters) >= len(letters)


def identifiers(text: str) -> list[str]:
    """The identifiers of a text: what is written as a name rather than as words, as it stands."""
    return [span["name"] for span in _SPAN.finditer(text) if span["name"] and _is_identifier(span["name"])]


def _is_identifier(name: str) -> bool:
    return bool(_TELLING.search(name)) and not name.isdigit()


def _of_name(name: str) -> tuple[str, ...]:
    """The terms of one name: the whole where it is an identifier, its words, and the parts of those."""
    words = _WORD.findall(name)
    result = [name.casefold()] if len(words) > 1 and _is_identifier(name) else []
    for word in words:
        parts = [] if _HEX.fullmatch(name) else _PART.findall(word)
        if len(parts) > 1:
            result.append(word.casefold())
            result += [_stem(part.casefold()) for part in parts if len(part) > 1 or part.isdigit()]
        else:
            result.append(_stem(word.casefold()))
    return tuple(result)


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    """The stem of a lower-case word, by the language that its script tells; the word itself where none does."""
    if word.isascii() and word.isdigit():
        return word
    language = next((language for script, language in _LANGUAGES if script.match(word)), None)
    return word if language is None else stem(word, language)


def stem(word: str, language: str) -> str:
    """The stem of a lower-case word in a language, by the name of its Snowball stemmer."""
    if len(word) > _LONGEST_STEMMED:
        return word
    # Each thread has its own stemmers, since one holds the word that it works on.
    stemmers: dict[str, Any] = _local.__dict__.setdefault("stemmers", {})
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(language)
    return str(stemmers[language].stemWord(word))


_QUESTION_WORDS = frozenset(
    terms(
        """どこ なに なん いつ だれ どう どれ です ます した して いる ある てい すか ませ こに こで はど
        はな はい いう 何で 어디 누구 언제 무슨 뭐예 예요 에요 이에 있어 있지 어요 해요
        где кто что как когда какой какая какого мой моя мои мне меня мою у в на с и я мы
        أين ما من هل متى كيف في πού πώς ποιος πότε ο η το τα μου στο στη είναι
        का की के है क्या कहाँ कब कौन मेरा मेरे में wo ist sind wer wie wann der das mein meine
        où est sont qui quand comment mon dónde está están quién cómo cuándo qué el los mi onde quem quando meu minha"""
    )
)
"""Words, and pairs of characters, that ask or are grammar in other languages and mean nothing in English."""
GRAMMAR = STOP_TERMS | _QUESTION_WORDS
"""Terms that say too little to search by, of all languages."""


# The times that a question names, as spans to hold against the times of what is remembered.
#
# All times are seconds since 1970 UTC. Understood are ISO dates, days and months in English words with or without
# their year, bare years, seasons, and spans counted back from the time of asking ("yesterday", "two weeks ago", "last
# month").

DAY_SECONDS = 86_400.0
TOLD_WITHIN_DAYS = 14.0
"""People speak of a thing when it happens or soon after: so many days later the match has fallen to one half."""
_HALF_LIFE_DAYS = 30.0

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTHS_SHORT = tuple(month[:3] for month in _MONTHS)
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "few": 3}
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_MONTH = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec|" + "|".join(_MONTHS) + r")\b\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_FORMS = tuple(
    re.compile(rf"\b{form}\b", re.IGNORECASE)
    for form in (
        rf"{_YEAR}-(?P<number>\d\d)-(?P<day>\d\d)",
        rf"{_DAY}\s+(?:of\s+)?{_MONTH},?\s*{_YEAR}",
        rf"{_MONTH}\s+{_DAY},?\s*{_YEAR}",
        rf"{_MONTH},?\s+(?:of\s+)?{_YEAR}",
        rf"{_DAY}\s+(?:of\s+)?{_MONTH}(?=\W|$)",
        rf"{_MONTH}\s+{_DAY}",
        rf"(?P<season>spring|summer|autumn|fall|winter)\s+(?:of\s+)?{_YEAR}",
        rf"(?:in|of|since|during|last|early|late|mid|this|by)[\s-]+{_MONTH}(?=\W|$)",
        _YEAR,
    )
)
_ALSO_WORDS = frozenset({"may", "march", "mar", "dec"})
_NO_VERB_NEXT = re.compile(
    r"\W*$|\s*[^\w\s]|\s+(?:after|and|at|before|did|during|for|from|in|on|or|than|that|this|to|until|was|were|when|with)\b",
    re.I,
)
_AGO = re.compile(
    r"\b(?P<many>\d{1,9}|" + "|".join(_NUMBERS) + r")\s+(?P<unit>day|week|month|year)s?\s+(?:ago|back|earlier)\b", re.I
)
_LAST = re.compile(r"\b(?:last|past|previous)\s+(?P<unit>week|month|year)\b", re.I)
ASKS_WHEN = re.compile(
    r"\bwhen (?:are|can|could|did|do|does|had|has|have|is|should|was|were|will|would)\b"
    r"|\b(?:what|which) (?:date|day|month|time|year)\b|\bhow (?:long|often)\b",
    re.I,
)
DATED = hashes_of(
    query_terms(
        " ".join((*_MONTHS, *_SEASONS, *map(str, range(1950, 2051))))
        + """ monday tuesday wednesday thursday friday saturday sunday yesterday today tomorrow tonight morning
        day week weekend month year last next ago since"""
    )
)
"""Hashes of terms that texts tell a time by."""
CHANGE_TERMS = hashes_of(
    query_terms(
        """now nowadays anymore longer since moved changed switched stopped quit instead became jetzt inzwischen
        mittlerweile seit mehr maintenant désormais depuis plus ahora desde ya ora adesso agora"""
    )
)
"""Hashes of terms that texts tell by what is not any more as it was."""
_TELLS_CHANGE = re.compile(
    r"\b(?:now|nowadays|any ?more|no longer|since|moved|changed|switched|stopped|quit|instead|became|jetzt|inzwischen"
    r"|mittlerweile|seit|(?:nicht|nie|kein\w*)\b.{0,40}\bmehr|maintenant|désormais|depuis|n(?:e |').{1,40}\bplus"
    r"|ahora|desde|ya no|adesso|non .{1,40} più|agora)\b",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"\b(?:not?|never|stopped|quit|instead of|nicht|nie|kein\w*|aufgehört|ne|jamais|nunca|non)\b|n['’]t\b",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"\b(?:also|too|still|even|again|besides|auch|noch|wieder|weiterhin|sogar|aussi|encore|toujours|también|todavía|aún"
    r"|sigo|anche|ancora|ainda|também"
    r"|(?:not|never|\w+n['’]t)(?: \w+){0,2} (?:moved|changed|switched|stopped|quit))\b|[?？]",
    re.IGNORECASE,
)


def corrects(later: str, older: str) -> bool:
    """Tells whether a statement may end an older one: it tells of a change, asks nothing, and neither goes on with the
    older nor holds all of it."""
    if not _TELLS_CHANGE.search(later) or _GOES_ON.search(later) or older.rstrip().endswith(("?", "？")):
        return False
    return bool(_DENIES.search(later)) or not set(query_terms(older)) <= set(terms(later))


SELF = hashes_of(("i", "ich", "je", "yo", "io", "eu"))
"""Hashes of terms by which speakers tell of themselves."""
ASKS_FOR_RECENT = re.compile(
    r"\b(?:latest|newest|most recent|recently|currently|right now|these days|nowadays|at the moment)\b", re.I
)


class TimeSpan(NamedTuple):
    """From ``start`` up to, but not including, ``end``."""

    start: float
    end: float


def named_times(question: str, *, now: float) -> tuple[TimeSpan, ...]:
    """The spans that a question names, each once, in the order of their beginnings.

    Args:
        now: when it was asked; a day or a month without its year is the last one before that.
    """
    spans: set[TimeSpan] = set()

    def read_span(match: re.Match[str]) -> str:
        span = _span(match, now) if _names_month(match) else None
        if span is None:
            return match[0]
        spans.add(span)
        return " " * len(match[0])  # what a longer form has read is not read again by a shorter one

    text = question
    for form in _FORMS:
        text = form.sub(read_span, text)
    today = math.floor(now / DAY_SECONDS) * DAY_SECONDS
    if re.search(r"\byesterday\b", question, re.I):
        spans.add(TimeSpan(today - DAY_SECONDS, today))
    if re.search(r"\btoday\b", question, re.I):
        spans.add(TimeSpan(today, today + DAY_SECONDS))
    for match in _LAST.finditer(question):
        spans.add(TimeSpan(today - _UNIT_DAYS[match["unit"].lower()] * DAY_SECONDS, today))
    for match in _AGO.finditer(question):
        length = _UNIT_DAYS[match["unit"].lower()] * DAY_SECONDS
        many = _NUMBERS.get(match["many"].lower()) or int(match["many"])
        middle = today - min(many, 10_000) * length
        spans.add(TimeSpan(middle - length / 2, middle + length / 2 + DAY_SECONDS))
    return tuple(sorted(spans))


def closeness(times: NDArray[np.float64], spans: Sequence[TimeSpan]) -> NDArray[np.float64]:
    """Scores how well times agree with any of the spans: 1 inside, less the later they are after one, 0 before it.

    NaN is an unknown time and agrees with nothing.
    """
    best = np.zeros(len(times))
    for span in spans:
        delay = np.maximum(0.0, times - span.end) / (DAY_SECONDS * TOLD_WITHIN_DAYS)
        near = np.where(times >= span.start, np.exp2(-delay), 0.0)
        best = np.maximum(best, np.nan_to_num(near))
    return best


def freshness(times: NDArray[np.float64], *, now: float) -> NDArray[np.float64]:
    """1 for what is of now, one half for what is 30 days old; unknown times 0."""
    age = np.maximum(0.0, now - times) / DAY_SECONDS
    return np.nan_to_num(np.exp2(-age / _HALF_LIFE_DAYS))


def _names_month(match: re.Match[str]) -> bool:
    """Tells whether a word in the place of a month is one; "may" and the like are where no verb is read out of them.

    That is with a year or a day as in "5th", with a capital letter inside a sentence, and where no verb follows.
    """
    named = match.groupdict()
    word, text = named.get("month") or "", match.string
    if word.lower() not in _ALSO_WORDS or named.get("year") or re.search(r"\d(?:st|nd|rd|th)\b", match[0], re.I):
        return True
    start = match.start("month")
    inside = re.fullmatch(r"[\w,][\s-]", text[max(0, start - 2) : start])
    return bool(word.istitle() and inside) or _NO_VERB_NEXT.match(text, match.end()) is not None


def _span(match: re.Match[str], now: float) -> TimeSpan | None:
    """The span of time that one of the forms names; None where there is no such day."""
    named = {name: text for name, text in match.groupdict().items() if text}
    day = int(named["day"]) if "day" in named else None
    months = 1
    month: int | None = None
    if "number" in named:
        month = int(named["number"])
    elif "season" in named:
        month, months = _SEASONS[named["season"].lower()], 3
    elif "month" in named:
        month = next(number for number, name in enumerate(_MONTHS, 1) if name.startswith(named["month"].lower()[:3]))

    def dated(year: int) -> TimeSpan | None:
        try:
            start = datetime.datetime(year, month or 1, day or 1, tzinfo=datetime.UTC)
        except ValueError:
            return None
        if day is not None:
            end = start + datetime.timedelta(days=1)
        elif month is None:
            end = start.replace(year=year + 1)
        else:
            later = month - 1 + months
            end = start.replace(year=year + later // 12, month=later % 12 + 1)
        return TimeSpan(start.timestamp(), end.timestamp())

    if "year" in named:
        return dated(int(named["year"]))
    year = datetime.datetime.fromtimestamp(now, datetime.UTC).year
    span = dated(year)
    return span if span is None or span.start <= now else dated(year - 1)
