"""``rayguard preflight``: exit codes, JSON, a terminal, and what is wrong with the words."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rayguard.cli.app import app
from rayguard.preflight_checks.versions import ClusterVersions
from tests.pseudo_terminal import on_a_terminal

BAD = ["--", "python3", "-m", "verl.trainer.main", "data.rollout_batch_size=512", "trainer.n_gpus_per_node=6"]


def run(*words):
    return CliRunner().invoke(app, ["preflight", *words], prog_name="rayguard")


def test_a_job_that_would_fail_ends_with_one_and_says_what_to_write():
    """In the framework's own spelling."""
    ran = run("--gpu-memory", "80GiB", *BAD)
    assert ran.exit_code == 1
    assert "error: data.rollout_batch_size=512 does not divide over 6 GPUs" in ran.output
    assert "  write data.rollout_batch_size=528" in ran.output
    assert ran.output.splitlines()[-1].startswith("2 errors, ")


def test_a_job_that_is_fine_ends_with_zero():
    """And says so."""
    ran = run(
        "--set", "prompts=512", "--gpus", "8", "--nodes", "2", "--set", "answers=5", "--host-memory", "2TB"
    )
    assert (ran.exit_code, ran.output.splitlines()[-1][:9]) == (0, "Nothing w"), ran.output


def test_a_cluster_alone_may_be_asked(monkeypatch):
    """Its versions are compared; one that does not answer is a warning."""
    asked = []

    def of_cluster(address):
        asked.append(address)
        return ClusterVersions(failed=f"nothing listens on {address}")

    monkeypatch.setattr("rayguard.preflight_checks.report.of_cluster", of_cluster)
    ran = run("--address", "10.0.0.1:6379")
    assert ran.exit_code == 0
    assert "warning: versions were not compared: nothing listens on 10.0.0.1:6379" in ran.output
    assert asked == ["10.0.0.1:6379"]


def test_json_is_one_object():
    """For scripts."""
    told = json.loads(run("--json", *BAD).stdout)
    assert told["ok"] is False
    assert {one["id"] for one in told["findings"]} >= {"batch.prompts_over_ranks"}
    first = told["findings"][0]
    assert (first["id"], first["level"]) == ("batch.prompts_over_ranks", "error")
    assert first["settings"]["prompts"] == 528
    assert first["write"].startswith("data.rollout_batch_size=528 worker.actor.global_batch_size=264")


def test_a_terminal_gets_lines_that_fit():
    """Folded at its width."""
    code, shown = on_a_terminal("preflight", *BAD, columns=60)
    assert code == 1
    assert "write data.rollout_batch_size=528" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the job"),
        (("--set", "prompts"), "needs NAME=VALUE"),
        (("--set", "promts=3"), "did you mean 'prompts'"),
        (("--gpu-memory", "much", "--gpus", "2"), "must be a size like 80GiB"),
        (("--gpus", "0"), "greater than or equal to 1"),
        (("--config", "nowhere.yaml"), "cannot read"),
    ],
)
def test_what_cannot_be_read_ends_with_two(words, said):
    """With one line that says what to write."""
    ran = run(*words)
    assert ran.exit_code == 2
    assert said in " ".join(ran.output.split())
