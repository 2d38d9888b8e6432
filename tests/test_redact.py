"""Secrets that are planted in texts are gone, and what a failure is known by stays."""

from __future__ import annotations

import dataclasses
import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard import redact
from rayguard.harmless import harmless
from rayguard.redact import redacted, without_secrets

# Made up, in the forms that their makers published; written in parts, so that no scanner takes them for real.
BODY = "Ab3De5Gh7Jk9Mn1Pq3St5Vw7Yz9Bc1Ef3Hi5"
SECRETS = [
    "sk-" + "proj-" + BODY,
    "sk-" + "ant-api03-" + BODY,
    "hf" + "_" + BODY,
    "gh" + "p_" + BODY,
    "github" + "_pat_" + BODY,
    "gl" + "pat-" + BODY[:20],
    "AK" + "IA" + "ABCDEFGH12345678",
    "AI" + "za" + BODY,
    "xo" + "xb-1234-5678-" + BODY,
    "gs" + "k_" + BODY,
    "nv" + "api-" + BODY,
    "np" + "m_" + BODY,
    "py" + "pi-" + BODY,
    "S" + "G." + BODY[:22] + "." + BODY,
    "ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + BODY,
    "sk_" + "live_" + BODY,
]
AROUND = ["{}", "401 for {}", "401 for '{}'!", "headers={{'x': '{}'}}", "({})", "at https://h/?q={}&b=1"]
NAMED = [
    "WANDB_API_KEY=0123456789abcdef",
    "password: hunter2hunter2",
    "password is hunter2hunter2",
    "{'secret_key': 'wJalrXUtnFEMI/K7MDENG'}",
    '"client_secret": "wJalrXUtnFEMI"',
    "Authorization: Bearer abcdefgh12345678",
    "postgres://user:hunter2hunter2@host/db",
    "HF_TOKEN=abc123def456ghi789",
    "passwd=hunter2hunter2",
]
KEPT = [
    "AssertionError: tokens: 16 != 17",
    "max_tokens=16384 pad_token='<|endoftext|>' eos_token_id=151645",
    "KeyError: 'lm_head.weight'",
    "actor abababababababababababababababab0001 on node 0123456789abcdef0123456789abcdef01234567",
    "FileNotFoundError: '/home/user/.cache/huggingface/token'",
    "can't fit: the workers' memory isn't big enough, and the user's own code doesn't free what it's got in here",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
    "RuntimeError: CPU Generator does not use offset (vllm/v1/sample/ops.py:12 in sample)",
    "the key: it is the third layer",
]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_token_of_a_published_form_is_gone(secret, around):
    """Wherever it stands, with what stands around it kept."""
    text = around.format(secret)
    assert secret[6:] not in redacted(text)
    assert redacted(text).startswith(around.partition("{")[0].replace("{{", "{"))


@pytest.mark.parametrize("text", NAMED)
def test_a_value_beside_a_name_that_says_so_is_gone(text):
    """The name stays: it says which one is wrong."""
    for secret in (
        "0123456789abcdef",
        "hunter2hunter2",
        "wJalrXUtnFEMI",
        "abcdefgh12345678",
        "abc123def456ghi789",
    ):
        assert secret not in redacted(text)
    assert redact.GONE in redacted(text)


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text):
    """Tokens of language models, ids, paths, apostrophes, and real messages."""
    assert redacted(text) == text


def test_a_private_key_is_gone_to_its_end():
    """Over many lines, also where it is cut off."""
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----"
    assert redacted(f"a {key} b") == f"a {redact.GONE} b"
    assert "IBAAK" not in redacted(key[:50])


def test_this_process_own_secrets_are_gone_whatever_their_form(monkeypatch):
    """By the names of its variables; what else stands there is none."""
    monkeypatch.setenv("MY_REWARD_SERVICE_KEY", "plainwordssecret")
    monkeypatch.setenv("MODEL_TOKEN_FILE", "/etc/model-token")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(redact, "_known", (float("-inf"), ()))
    text = "plainwordssecret in /etc/model-token is disabled"
    assert redacted(text) == f"{redact.GONE} in /etc/model-token is disabled"


def test_a_long_quote_is_cut_and_says_how_long_it_was():
    """A user's text, not a name, a path or a setting; a prompt already where it is called one."""
    prompt = "Once upon a time there was a fox. " * 9
    assert redacted(f"ValueError: cannot take {prompt!r} now") == (
        f"ValueError: cannot take '{prompt[:16]}… ({len(prompt)} characters)' now"
    )
    assert redacted(f"prompt={prompt[:33]!r}, n=3") == "prompt='… (33 characters)', n=3"
    assert prompt in without_secrets(f"cannot take {prompt!r}"), "which is still to be diagnosed"


@pytest.mark.parametrize("said", ["off", "0", "No", "FALSE"])
def test_it_can_be_switched_off(monkeypatch, said):
    """Who looks for a failure in a prompt needs the prompt."""
    monkeypatch.setenv("RAYGUARD_REDACT", said)
    assert redacted(f"{SECRETS[0]} prompt={'x' * 90!r}") == f"{SECRETS[0]} prompt={'x' * 90!r}"


@given(st.text())
def test_it_takes_any_text_and_once_is_enough(text):
    """Also garbage; what was redacted is not redacted again."""
    once = redacted(text)
    assert redacted(once) == once


def test_it_stays_fast_on_long_texts():
    """No pattern looks at a text more than a few times: twice the text, about twice the time."""
    for part in ("a_", "key", "'\"", "://", "token=", "-----BEGIN ", "prompt='\\\\", "password is "):
        redacted(part * 20_000)


def test_an_incident_holds_no_secret(monkeypatch, tmp_path):
    """Nor what is written, hung on an error, or said of it."""
    from rayguard.recovery.incident import Incident, attach
    from rayguard.recovery.journal import Journal

    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setenv("PLANTED_SECRET", "planted-in-the-environment")
    monkeypatch.setattr(redact, "_known", (float("-inf"), ()))
    text = f"401 for {SECRETS[0]}, prompt='my name is Anna and I live in Ulm', planted-in-the-environment"
    one = Incident(
        kind="k", scope="s", cause=text, evidence=(text,), consequences=(text,), notes=(text,), advice=text
    )
    one = dataclasses.replace(one, notes=(*one.notes, text))
    error = ValueError("x")
    attach(error, one)
    Journal(tmp_path).write(one)
    everything = [repr(one), one.sentence(), str(vars(error)), *(p.read_text() for p in tmp_path.iterdir())]
    assert len(everything) > 3
    for written in everything:
        assert SECRETS[0] not in written
        assert "Anna" not in written
        assert "planted-in" not in written


def test_rayguards_own_lines_of_log_hold_no_secret(caplog):
    """Neither what they say nor the tracebacks that they show; a line that cannot be made is not lost."""
    log = logging.getLogger("rayguard")
    with harmless("piece"):
        raise ValueError(f"401 for {SECRETS[0]}")
    log.warning("cannot reach %s", f"https://user:{SECRETS[1]}@host")
    first, second = caplog.records
    shown = logging.Formatter().format(first)
    assert "401 for [redacted]" in shown
    assert "test_rayguards_own_lines" in shown, "the traceback stays"
    assert second.getMessage() == "cannot reach https://[redacted]@host"
    unmade = logging.LogRecord("rayguard", logging.WARNING, "f.py", 1, "%d of these", ("no number",), None)
    assert log.filter(unmade)
    assert unmade.msg == "%d of these", "whoever handles it tells what is wrong with it"
    assert not [one for one in SECRETS if one in caplog.text]


def test_the_records_of_an_engine_hold_no_secret(tmp_path):
    """They are on the disk until the next engine starts; their words are still to be diagnosed."""
    from rayguard.engine.error_records import RecordWriter, read_records
    from rayguard.faults.fault import Role

    writer = RecordWriter(tmp_path, Role.ENGINE_CORE, os.getpid())
    long = f"'CUDA out of memory: {'x ' * 60}'"
    writer.write(f"failed for {SECRETS[0]}", RuntimeError(f"{long} {SECRETS[1]}"))
    text = writer.path.read_text()
    assert SECRETS[0] not in text
    assert SECRETS[1] not in text
    assert long in read_records(tmp_path, 0.0).exceptions[0].message
