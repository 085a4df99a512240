"""Secrets and ordinary lines, masked here and found by a scanner of the field, `detect-secrets`; each difference is
named."""

from __future__ import annotations

import base64
import random
import re
import string

import pytest

from aether_context.redaction import masker

MASK = masker(("secrets",))
_random = random.Random(55)


def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(_random.choices(alphabet, k=count))


HEX, DIGITS, UPPER = "0123456789abcdef", string.digits, string.ascii_uppercase + string.digits
JWT = ".".join(
    base64.urlsafe_b64encode(text).decode().rstrip("=")
    for text in (
        b'{"alg":"HS256","typ":"JWT"}',
        b'{"sub":"1234567890","name":"Ann"}',
        b"signature-of-32-bytes-and-more",
    )
)
SECRETS = {
    "artifactory": f"AKC{letters(12)}",
    "artifactory, new": f"AKCp{letters(69)}",
    "aws id": f"AKIA{letters(16, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567')}",
    "aws secret": f'aws_secret_access_key = "{letters(40)}"',
    "azure storage": f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={letters(86)}==",
    "url": f"postgres://ann:{letters(12)}@db.internal/shop",
    "cloudant": f"cloudant_password = '{letters(64, HEX)}'",
    "discord": f"M{letters(23)}.{letters(6)}.{letters(27)}",
    "github": f"ghp_{letters(36)}",
    "gitlab": f"glpat-{letters(20)}",
    "ibm cos": f'{{"secret_access_key": "{letters(48, HEX)}"}}',
    "jwt": JWT,
    "mailchimp": f"{letters(32, HEX)}-us12",
    "npm": f"//registry.npmjs.org/:_authToken=npm_{letters(36)}",
    "openai": f"sk-{letters(20)}T3BlbkFJ{letters(20)}",
    "private key": "-----BEGIN RSA PRIVATE KEY-----",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{letters(70)}",
    "sendgrid": f"SG.{letters(22)}.{letters(43)}",
    "slack": f"xoxb-{letters(12, DIGITS)}-{letters(12, DIGITS)}-{letters(24)}",
    "slack hook": f"https://hooks.slack.com/services/T{letters(8, UPPER)}/B{letters(8, UPPER)}/{letters(24)}",
    "softlayer": f'softlayer_api_key = "{letters(64, HEX)}"',
    "square": f"sq0csp-{letters(43)}",
    "stripe": f"sk_live_{letters(24)}",
    "telegram": f"{letters(10, DIGITS)}:AA{letters(33)}",
    "twilio": f"SK{letters(32, HEX)}",
    "assigned": f'password = "{letters(14)}"',
    "assigned to a key": f"api_key: {letters(24)}",
    "in JSON": f'{{"client_secret": "{letters(30)}"}}',
    "assigned to a token": f'TOKEN = "{letters(40)}"',
    "a word": 'password = "swordfish"',
    "behind a placeholder": f"DB_PASSWORD=${{x}}{letters(10)}",
    "in words": "password: hunter22",
    "of a variable": "DB_PASS=hunter22",
    "by default": "password=${X:-hunter22}",
}
ORDINARY = [
    "key = os.environ['API_KEY']",
    "api_key = os.environ['API_KEY']",
    'password: "${DB_PASSWORD}"',
    "DB_PASSWORD=${DB_PASSWORD}",
    "api_key_header: X-Api-Key",
    '{"api_key_header": "X-Api-Key"}',
    '{"password": "<your password>"}',
    '{"password": "string"}',
    "Das Passwort: bitte",
    "Password: required",
    "The password policy: 12 characters or more.",
    "client_secret: ${{ secrets.CLIENT_SECRET }}",
    "password = getpass()",
    "api_key: process.env.API_KEY,",
    "max_tokens = 4096",
    "tokens: 1234, cost: 0.02",
    "commit 3a5b0189 of the branch",
    "https://example.com/reset-password?step=2",
    "The secret of a good soup: time.",
    "Wrong password: try again",
    "session = requests.Session()",
    "def login(user: str, password: str) -> Token:",
    "if not password: raise ValueError('no password')",
    "version 1.2.3-rc.4, built 2026-11-28T20:55:01Z",
    "id: 5f0c7c1e-4f1b-4b8e-9f0e-5b0a3c2d1e4f",
]
ACCEPTED = {
    "artifactory": "masked only under a name: an old key has 13 characters and begins as words do",
    "assigned to a key": "found only in quotation marks",
    "assigned to a token": "found under fewer names",
    **dict.fromkeys(
        ("behind a placeholder", "in words", "of a variable", "by default"), "found only in quotation marks"
    ),
    '{"api_key_header": "X-Api-Key"}': "not masked: the name of a header",
    '{"password": "string"}': "not masked: a type, as schemas have it",
}
"""Where both differ, with the reason."""


def test_secrets_are_masked_and_ordinary_lines_are_not() -> None:
    masked = {name: MASK(f"It is {line} as of today") for name, line in SECRETS.items() if name != "artifactory"}
    words = {name: re.split(r"[ =]", SECRETS[name].rstrip("="))[-1].strip("'\"}") for name in masked}
    assert [name for name, text in masked.items() if words[name] in text] == []
    assert [line for line in ORDINARY if MASK(line) != line] == []


def is_found(line: str) -> bool:
    """Tells whether the scanner finds a secret by a rule; by its entropy it finds one in most lines."""
    from detect_secrets.core.scan import scan_line

    return any(not secret.type.endswith("High Entropy String") for secret in scan_line(line))


def test_a_scanner_finds_what_is_masked_and_no_more() -> None:
    pytest.importorskip("detect_secrets", reason="the extra dev brings detect-secrets")
    from detect_secrets.settings import default_settings

    lines = SECRETS | {line: line for line in ORDINARY}
    with default_settings():
        differing = {name for name, line in lines.items() if is_found(line) is not (MASK(line) != line)}
    assert differing == ACCEPTED.keys(), differing ^ ACCEPTED.keys()
