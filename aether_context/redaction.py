"""Masks secrets and personal data: keys, passwords, e-mail addresses, numbers of phones, cards and accounts.

mask = masker(("secrets", "email", r"ACME-\\d+"))
mask("write to ann@example.com")     # "write to [email]"

What is masked stands in redaction_rules.toml.
"""

from __future__ import annotations

import ipaddress
import logging
import operator
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from aether_context.canonical import JSON, hash_json
from aether_context.errors import PolicyError

GROUPS: Mapping[str, tuple[str, ...]] = {
    "secrets": ("key", "authorization", "password"),
    "personal": ("email", "iban", "card", "ip", "phone"),
}
"""The rules that a policy may name, by the names of their groups, in the order in which they are carried out."""
RULES = tuple(rule for group in GROUPS.values() for rule in group)

_KEPT_CHARACTERS, _LEAST_KEPT = 4_000_000, 200
"""Texts whose masked form is kept, in characters of all of them; and how long the shortest of them is."""
_LEAST_NUMBER = 7
"""Digits of the shortest number that is looked at."""
_ESCAPES = ("\\n", "\\r", "\\t")
_TOKEN_END = re.compile(r"[\w-]*+")


@dataclass(frozen=True, slots=True)
class _Rule:
    """Masks what a pattern finds.

    ``near`` are the patterns by what stands where they begin; None where they may begin anywhere.
    """

    mask: str
    pattern: str = ""
    near: Mapping[str, Sequence[str]] | None = None
    needs: str = ""
    check: Callable[[str], int] = len
    is_token: bool = False

    def __call__(self, text: str) -> str:
        if self.needs not in text:
            return text
        if self.near is None:
            return _compiled(self.pattern).sub(self._masked, text)
        searched = text if self.is_token else text.lower()
        near = tuple(begin for begin in self.near if begin in searched)
        pieces: list[str] = []
        end = 0
        for near_match in _any_of(near, self.is_token).finditer(text) if near else ():
            at = near_match.start()
            # A letter before a token makes it a part of a word, but for that of a line's end written as ``\\n``.
            is_inside = self.is_token and at and text[at - 1].isalnum() and text[max(0, at - 2) : at] not in _ESCAPES
            if at < end or is_inside:
                continue
            for pattern in self.near[near_match[0] if self.is_token else near_match[0].lower()]:
                if (match := _compiled(pattern).match(text, at)) is not None:
                    pieces += (text[end:at], self._masked(match))
                    token_end = _TOKEN_END.match(text, match.end()) if self.is_token else None
                    end = match.end() if token_end is None else token_end.end()
                    break
        return "".join((*pieces, text[end:])) if pieces else text

    def _masked(self, match: re.Match[str]) -> str:
        """A match with its mask; what its groups hold stays before that."""
        if self.check is len:
            return "".join((*filter(None, match.groups()), self.mask))
        size = self.check(match[0])
        return f"{self.mask}{match[0][size:]}" if size else match[0]


@cache
def _data() -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("redaction_rules.toml").read_text(encoding="utf-8"))


@cache
def _rules() -> Mapping[str, Sequence[_Rule]]:
    rules: dict[str, list[_Rule]] = {name: [] for name in RULES}
    for rule in _data()["rules"]:
        pattern = rule["pattern"]
        for name, part in _data()["parts"].items():
            pattern = pattern.replace(name.upper(), part)
        near = dict.fromkeys(rule["near"], (pattern,)) if "near" in rule else None
        check = _CHECKS.get(rule.get("check", ""), len)
        rules[rule["name"]].append(_Rule(f"[{rule['name']}]", pattern, near, rule.get("needs", ""), check))
    tokens: dict[str, list[str]] = {}
    token_rules = _data()["tokens"]
    kept_rules = token_rules["betterleaks"].values()
    for begins, pattern in [*kept_rules, *(token for name, token in token_rules.items() if name != "betterleaks")]:
        for begin in begins:
            tokens.setdefault(begin, []).append(pattern)
    # A longer beginning has the patterns of the shorter ones that it begins with, too.
    shorter = {
        begin: [pattern for size in range(len(begin), 0, -1) for pattern in tokens.get(begin[:size], ())]
        for begin in tokens
    }
    rules["key"].append(_Rule("[key]", near=shorter, is_token=True))
    return rules


_compiled: Callable[[str], re.Pattern[str]] = cache(re.compile)


def _part(name: str) -> re.Pattern[str]:
    """A part of the rules for passwords, for keys and values of JSON."""
    return _compiled(f"(?x){_data()['parts'][name]}")


@lru_cache(maxsize=64)
def _any_of(begins: Sequence[str], exactly: bool) -> re.Pattern[str]:
    """A pattern that finds beginnings, the longest of those that stand at a place; their first letters are told apart
    first."""
    longest_first = sorted(begins, key=len, reverse=True)
    if exactly:
        return re.compile("|".join(map(re.escape, longest_first)))
    return re.compile("|".join(f"[{word[0]}{word[0].upper()}](?i:{re.escape(word[1:])})" for word in longest_first))


# What looks at a match once more gives the number of its characters that are masked, 0 for none.


def _account(text: str) -> int:
    length = _data()["iban"].get(text[:2], 0)
    match = re.match(rf"(?: *[^ ]){{{length}}}", text) if length else None
    if match is None or text[match.end() : match.end() + 1].isalnum():
        return 0
    number, end = match[0].replace(" ", ""), match.end()
    digits = "".join(str(int(letter, 36)) for letter in number[4:] + number[:4])
    return end if int(digits) % 97 == 1 else 0


def _luhn(text: str) -> int:
    digits = [int(digit) for digit in text if digit.isdecimal()][::-1]
    total = sum(digits[::2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return 0 if total % 10 else len(text)


def _address(text: str) -> int:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return 0
    return len(text)


_CHECKS: Mapping[str, Callable[[str], int]] = {
    "account": _account,
    "luhn": _luhn,
    "address": _address,
    "digits": lambda text: len(text) if 7 <= sum(map(str.isdecimal, text)) <= 17 else 0,
}
_OTHER_NAMES = re.compile(r"(?i)token|secret|authorization|cookie|session")
_IS_RANDOM = re.compile(r"(?=\D{0,60}\d)(?=[^A-Za-z]{0,60}[A-Za-z])\S{8,}")


class Masker:
    """Masks texts: each match becomes the rule's name in brackets, ``[redacted]`` where it has none. False where it
    masks nothing. To mask a masked text changes nothing.

    Args:
        patterns: names of `RULES` or `GROUPS`, or regular expressions.

    Raises:
        PolicyError: one of them is neither.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        names = {name for pattern in patterns for name in GROUPS.get(pattern, (pattern,))}
        custom = [_expression(pattern) for pattern in patterns if pattern not in RULES and pattern not in GROUPS]
        self._rules: list[Callable[[str], str]] = [partial(pattern.sub, "[redacted]") for pattern in custom]
        self._rules += [rule for name in RULES if name in names for rule in _rules()[name]]
        self._masks_passwords = "password" in names
        self.name = hash_json(sorted(names))
        """Equal names mask alike."""
        self._known: LRUCache[str, str] = LRUCache(_KEPT_CHARACTERS, len)
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __call__(self, text: str) -> str:
        """The masked text; the same object where nothing is masked."""
        if not self._rules:
            return text
        with self._lock:
            masked = self._known.get(text)
        if masked is not None:
            return masked
        masked = text
        for rule in self._rules:
            masked = rule(masked)
        if masked == text:
            masked = text
        if _LEAST_KEPT <= len(text) <= _KEPT_CHARACTERS:
            with self._lock:
                self._known[text] = masked
        return masked

    def json(self, value: JSON) -> JSON:
        """A JSON value with its texts masked, keys included, and what stands under the name of a password; the same
        object where nothing is masked."""
        if not self._rules:
            return value
        if isinstance(value, str):
            return self(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = str(value)
            masked = self(text) if len(text) >= _LEAST_NUMBER else text
            return value if masked == text else masked
        if isinstance(value, dict):
            members: dict[str, JSON] = {}
            for key, item in value.items():
                name = self(str(key))  # tools give numbers as keys, too
                while name in members:  # two keys with one mask
                    name += "_"
                members[name] = "[password]" if self._is_password(key, item) else self.json(item)
            same = all(members.get(key) is item for key, item in value.items())
            return value if same else members
        if isinstance(value, (list, tuple)):
            items = [self.json(item) for item in value]
            return value if all(map(operator.is_, items, value)) else items
        return value

    def _is_password(self, name: str, value: JSON) -> bool:
        if not self._masks_passwords or not isinstance(value, (str, int, float)) or value in ("", True, False):
            return False
        if _part("placeholders").fullmatch(str(value)) or _part("ordinary").fullmatch(str(value)):
            return False
        is_named = name == "secret" or _part("names").search(name)
        return bool(is_named or (_OTHER_NAMES.search(name) and _IS_RANDOM.fullmatch(str(value))))


def _expression(pattern: str) -> re.Pattern[str]:
    names = f"the groups are {', '.join(GROUPS)}, the rules {', '.join(RULES)}"
    if re.fullmatch(r"[a-z_]+", pattern):
        cure = f"write a word that is to be masked as \\b{pattern}\\b"
        raise PolicyError(f"redact = {pattern!r} is no name: {names}; {cure}", field="redact")
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        fault = f"is neither a name nor a regular expression ({error})"
        raise PolicyError(f"redact = {pattern!r:.200} {fault}: {names}", field="redact") from error
    if expression.match(""):
        raise PolicyError(f"redact = {pattern!r} matches the empty text: mask one character or more", field="redact")
    return expression


def masker(patterns: Sequence[str]) -> Masker:
    """The masker of these patterns; what it has masked is kept with it."""
    return _masker(tuple(patterns))


_masker = lru_cache(maxsize=16)(Masker)


class MaskedLogs(logging.Filter):
    """Masks the messages of a logger, tracebacks included."""

    def __init__(self, mask: Masker) -> None:
        super().__init__()
        self.mask = mask

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.mask(record.getMessage()), ()
        # Another policy's filter may have come first.
        raised = logging.Formatter().formatException(record.exc_info) if record.exc_info else record.exc_text
        record.exc_text, record.exc_info = raised and self.mask(raised), None
        return True
