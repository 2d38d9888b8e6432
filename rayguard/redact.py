"""Secrets and long quotes taken out of texts that came from elsewhere, before rayguard writes or shows them.

An exception's message may hold a key, a URL with a password, or the user's whole prompt. What remains is
enough to know the failure by. Three kinds of secrets are found: tokens in the forms that their makers
published, values beside a name that says so (``password=...``), and the values of this process's own
environment variables with such a name. ``RAYGUARD_REDACT=off`` keeps texts as they are.

A table of our own and no library: ``detect-secrets`` 1.5 is made for lines of source code. In a message it
takes every word for a random string, needs 3 ms a line and 0.24 s of import, and does not know Hugging Face's
tokens or those of model providers. What no table can know (a secret without a form or a name) is not found.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "RAYGUARD_REDACT"
GONE = "[redacted]"
QUOTE_CHARS = 80  # longer ones are a user's text, not a name, a path or a setting
PROMPT_CHARS = 24  # where it is said to be a prompt
_SHOWN_CHARS = 16  # of a long quote
_SHORTEST = 8  # of a variable's value: "true" and "none" are words
_OFF = frozenset({"0", "off", "no", "false"})


class _Form(NamedTuple):
    """One form of secrets, looked for where one of ``hints`` stands in the text (in small letters)."""

    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    instead: str = GONE


_NAMES = (
    r"(?<![a-z])(?:api[_\-]?key|apikey|secret(?:[_\-]?(?:access)?[_\-]?key)?|access[_\-]?key"
    r"|private[_\-]?key|account[_\-]?key|auth[_\-]?key|passw(?:or)?d|passphrase|pwd|credentials?|client[_\-]?secret)"
)
_SAYS = r"""["']?\s*(?:=>|[=:]|\bis\b)\s*(?:b?["'])?"""
_RANDOM_NAMES = r"(?<![a-z])(?:token|auth|jwt|session[_\-]?id|cookie)"
_FORMS = (
    _Form(
        ("private key-----",),
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)"
        ),
    ),
    _Form(("://",), re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")),
    _Form(
        ("bearer", "basic", "authorization"),
        re.compile(r"(?i)\b(bearer|basic|authorization[\"']?\s*[:=]\s*[\"']?\w+)\s+[\w\-.=+/~]{8,}"),
        rf"\1 {GONE}",
    ),
    # OpenAI, Anthropic, DeepSeek, Stripe, LiteLLM; Groq, xAI, Replicate, Perplexity, NVIDIA, Fireworks
    _Form(("sk-", "sk_", "rk_", "pk_"), re.compile(r"\b(?:sk|rk|pk)[\-_][\w\-]{16,}")),
    _Form(
        ("gsk_", "xai-", "r8_", "pplx-", "nvapi-", "fw_", "csk-", "tgp_"),
        re.compile(r"\b(?:gsk_|xai-|r8_|pplx-|nvapi-|fw_|csk-|tgp_v1_)[\w\-]{16,}"),
    ),
    _Form(("hf_", "api_org_", "wandb_v1_"), re.compile(r"\b(?:hf_|api_org_|wandb_v1_)\w{16,}")),
    _Form(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-"),
        re.compile(r"\b(?:gh[pousr]_|github_pat_|gl(?:pat|dt)-)[\w\-]{16,}"),
    ),
    _Form(("akia", "asia", "abia", "acca"), re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b")),
    _Form(("aiza", "ya29."), re.compile(r"\bAIza[\w\-]{30,}|\bya29\.[\w\-.]{16,}")),
    _Form(
        ("xox", "xapp-", "hooks.slack.com"),
        re.compile(r"\bxox[a-z]-[\w\-]{8,}|\bxapp-[\w\-]{8,}|(?<=hooks\.slack\.com/services/)\S+"),
    ),
    _Form(
        ("npm_", "pypi-", "dop_v1_", "dapi", "shpat_", "lin_api_", "dckr_pat_", "tskey-", "sg."),
        re.compile(
            r"\b(?:npm_|pypi-|dop_v1_|shpat_|lin_api_|dckr_pat_|tskey-)[\w\-]{16,}|\bdapi[0-9a-f]{32}"
            r"|\bSG\.[\w\-]{16,}\.[\w\-]{16,}"
        ),
    ),
    _Form(("eyj",), re.compile(r"\beyJ[\w\-]{8,}\.[\w\-]{8,}(?:\.[\w\-]*)?")),
    _Form(
        ("sig=", "signature="),
        re.compile(r"(?i)((?:[?&]|\b)(?:x-amz-|x-goog-)?sig(?:nature)?=)[\w%+/\-]{16,}"),
        rf"\1{GONE}",
    ),
    _Form(
        ("key", "secret", "passw", "passphrase", "pwd", "credential"),
        re.compile(rf"""(?i)({_NAMES}{_SAYS})(?!\[redacted\])[^\s"',;)}}\]]{{4,}}"""),
        rf"\1{GONE}",
    ),
    # "token" is a word of language models: only what looks random is a secret there.
    _Form(
        ("token", "auth", "jwt", "session", "cookie"),
        re.compile(
            rf"(?i)({_RANDOM_NAMES}{_SAYS})(?!\[redacted\])(?=[\w\-./+=]{{0,99}}\d)(?=[\w\-./+=]{{0,99}}[a-z])[\w\-./+=]{{12,}}"
        ),
        rf"\1{GONE}",
    ),
)
_PROMPT = re.compile(
    r"(?i)(\b(?:prompts?|messages?|content|completions?|conversation|inputs?|user_text)\b[\"']?\s*[=:]\s*\[*\s*)"
    rf"(?:\"((?:[^\"\\]|\\.){{{PROMPT_CHARS},}})\"|'((?:[^'\\]|\\.){{{PROMPT_CHARS},}})')"
)
_PROMPT_HINTS = ("prompt", "message", "content", "completion", "conversation", "input", "user_text")
_QUOTED = re.compile(
    rf"(?<!\w)(?:\"((?:[^\"\\]|\\.){{{QUOTE_CHARS},}})\"|'((?:[^'\\]|\\.){{{QUOTE_CHARS},}})')(?!\w)",
    re.DOTALL,
)
_SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:(?:API|ACCESS|PRIVATE|ACCOUNT|AUTH|SECRET)?_?KEY|APIKEY|SECRET|TOKEN|PASSW(?:OR)?D|PASSPHRASE"
    r"|PWD|CREDENTIALS?|AUTH)(?:_|$)"
)
_NO_SECRET = re.compile(
    r"(?i)^(?:OLD)?PWD$|_(?:MODE|TYPE|METHOD|FILE|PATH|URL|HOME|DIR|NAME|ID|PORT|ENABLED)$"
)
_KEPT_S = 1.0  # for which the values of variables are remembered: reading them all takes half a millisecond
_known: tuple[float, tuple[str, ...]] = (float("-inf"), ())


def redacted(text: str) -> str:
    """Return ``text`` without secrets, its long quotes cut; the same text where it is to be kept as it is."""
    text = without_secrets(text)
    if len(text) > QUOTE_CHARS and ('"' in text or "'" in text) and wanted():
        text = _QUOTED.sub(lambda found: _cut(found[1] or found[2], _SHOWN_CHARS), text)
    return text


def without_secrets(text: str) -> str:
    """Return ``text`` without secrets and prompts: for what is still to be diagnosed by its words."""
    if not text or not wanted():
        return text
    for value in _own_secrets():
        if value in text:
            text = text.replace(value, GONE)
    small = text.lower()
    for form in _FORMS:
        if any(hint in small for hint in form.hints):
            text = form.pattern.sub(form.instead, text)
    if any(hint in small for hint in _PROMPT_HINTS):
        text = _PROMPT.sub(lambda found: f"{found[1]}{_cut(found[2] or found[3], 0)}", text)
    return text


def wanted() -> bool:
    """Say whether texts are redacted: unless ``RAYGUARD_REDACT`` is off, or they were when written."""
    return not _here.reading and os.environ.get(VARIABLE, "").strip().lower() not in _OFF


@contextmanager
def as_written() -> Iterator[None]:
    """Leave texts as they are in this thread meanwhile: a long journal is read, which was redacted before."""
    before, _here.reading = _here.reading, True
    try:
        yield
    finally:
        _here.reading = before


class _Here(threading.local):
    reading = False


_here = _Here()


def _cut(quote: str, shown: int) -> str:
    return f"'{quote[:shown]}… ({len(quote)} characters)'"


def _own_secrets() -> tuple[str, ...]:
    """Return the values of this process's variables whose names say that they are secret, longest first."""
    global _known  # noqa: PLW0603 - a memory of a second; threads may well fill it twice
    now = time.monotonic()
    if now - _known[0] > _KEPT_S:
        found = {value for name, value in os.environ.items() if _is_secret(name, value)}
        _known = (now, tuple(sorted(found, key=len, reverse=True)))
    return _known[1]


def _is_secret(name: str, value: str) -> bool:
    """Say whether a variable's value is secret: no word, no path to what is secret, no mode of it."""
    if len(value) < _SHORTEST or value.startswith(("/", "~", "./")) or not _SECRET_NAME.search(name):
        return False
    return not _NO_SECRET.search(name)
