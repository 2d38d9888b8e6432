"""How tests start Ray's workers: as Ray does, without importing Ray first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests import worker_start

WORKER = "import os, sys; print(os.environ['MINE'], sys.argv[1:], 'ray' in sys.modules)"


def test_a_worker_gets_its_variables_and_its_arguments(tmp_path):
    """Those that are meant for the start are gone."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    context = f"--serialized-runtime-env-context={json.dumps({'env_vars': {'MINE': 'here'}})}"
    command = [sys.executable, worker_start.__file__, str(worker), "--port=1", context, "--language=PYTHON"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split(maxsplit=1) == ["here", "['--port=1'] False\n"]


def test_what_it_does_not_know_is_left_to_rays_own(tmp_path):
    """All arguments go there as they came."""
    Path(tmp_path, "setup_worker.py").write_text("import sys; print(sys.argv[1:])")
    given = [str(tmp_path / "worker.py"), '--serialized-runtime-env-context={"command_prefix": ["nice"]}']
    command = [sys.executable, worker_start.__file__, *given]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == f"{given}\n"
