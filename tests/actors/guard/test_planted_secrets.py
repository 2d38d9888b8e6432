"""Secrets planted in environment, prompt and exception: in no file, metric or page that rayguard writes."""

from __future__ import annotations

import os
import subprocess
import sys

TOKEN = "hf" + "_" + "Ab3De5Gh7Jk9Mn1Pq3St5Vw7Yz9Bc1Ef"
OF_ENVIRONMENT = "correct-horse-battery"
PROMPT = "My name is Anna Maier and I was born in Ulm"
PROGRAM = f"""
import logging, os, sys, urllib.request
logging.basicConfig(stream=sys.stderr)
import rayguard
from rayguard.actors.life import incarnation, publishing
from rayguard.engine.error_records import RecordWriter
from rayguard.faults.fault import Role
from rayguard.process.flight import recorder

@rayguard.guard
class Rollout:
    def fail(self, secret, prompt):
        error = ValueError(f"401 for {{secret}}: prompt={{prompt!r}}")
        raise RuntimeError(f"{{prompt * 5!r}} was refused with {{os.environ['REWARD_API_KEY']}}") from error

rollout, life = Rollout(), incarnation.Incarnation()
publishing.show(life, "Rollout")
publishing.record(life, "Rollout")
publishing.show_numbers(life, "Rollout")
try:
    rollout.fail({TOKEN!r}, {PROMPT!r})
except RuntimeError as error:
    found = rayguard.incident_of(error)
    print(found, found.sentence(), error.__notes__ if hasattr(error, "__notes__") else "")
    records = os.path.join(os.environ["RAYGUARD_HOME"], "records")
    os.mkdir(records)
    RecordWriter(records, Role.ENGINE_CORE, os.getpid()).write(f"failed: {{error.__cause__}}", error.__cause__)
    recorder.record_event(f"it said {{error}}")
    recorder.ending(f"died of {{error}}")
publishing._page.publish_now()
publishing._numbers.publish_now()
print(urllib.request.urlopen(rayguard.serve_metrics().url).read().decode())
sys.stdout.flush()
os._exit(0)  # the recording stays
"""


def test_planted_secrets_are_found_nowhere(tmp_path):
    """In the journal, the page, the numbers, the recording, the records, the endpoint, and the commands."""
    environment = {**os.environ, "RAYGUARD_HOME": str(tmp_path), "REWARD_API_KEY": OF_ENVIRONMENT}
    environment |= {"RAY_ADDRESS": "", "RAY_TMPDIR": "/nonexistent"}

    def said_by(*words):
        run = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, timeout=120, check=True
        )
        return run.stdout + run.stderr

    told = {"the process": said_by("-c", PROGRAM)}
    (one,) = (tmp_path / "incidents.jsonl").read_bytes().splitlines()[-1:]
    id_ = one.partition(b'"id":"')[2][:12].decode()
    for words in (
        ["incidents"],
        ["incidents", id_],
        ["incidents", "--stories"],
        ["status", "--json"],
        ["flight"],
    ):
        told[" ".join(words)] = said_by("-m", "rayguard", *words)
    files = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"incidents.jsonl", "status", "numbers", "flight", "records"} <= {
        path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")
    }
    for where, text in {**told, **files}.items():
        for planted in (TOKEN, OF_ENVIRONMENT, "Anna Maier"):
            assert planted.encode() not in text, f"{planted!r} in {where}"
