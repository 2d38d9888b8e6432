"""Numbers that are a device-side assert on a real GPU: each in a process of its own, which it poisons without the guard."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]

_MODEL = """
    import torch, rayguard

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(11, 4)
            self.lm_head = torch.nn.Linear(4, 11)
        def forward(self, ids):
            return self.lm_head(self.words(ids))

    model = Model().cuda()
    ids = torch.tensor([[1, 2]], device="cuda")
"""
_SPOIL = {
    "token id": "ids = torch.tensor([[1, 99]], device='cuda')",
    "nan": "model.lm_head.weight.data[3].fill_(float('nan'))",
    "inf": "model.lm_head.bias.data[3] = float('inf')",
    "all -inf": "model.lm_head.bias.data.fill_(float('-inf'))",
}
_WORK = """
    with torch.no_grad():
        logits = model(ids)
"""
_WATCHED = """
    guard = rayguard.NumericGuard(model)
    torch.cuda.set_sync_debug_mode("error")  # a synchronisation of ours would raise
    with torch.no_grad():
        logits = model(ids)
    torch.cuda.set_sync_debug_mode("default")
"""
_SAMPLE = """
    drawn = torch.multinomial(torch.softmax(logits.flatten(0, -2), -1), 1)
    torch.cuda.synchronize()
"""
_CHECK = """
    try:
        guard.check()
    except rayguard.NumericError as error:
        print("told:", error)
    print("alive:", torch.ones(3, device="cuda").sum().item())
"""


def run(*parts):
    code = "\n".join(textwrap.dedent(part) for part in parts)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("kind", ["token id", "nan", "inf"])
def test_without_the_guard_the_process_is_poisoned(kind):
    """So that what the guard is for is real, with this torch on this GPU."""
    ended = run(_MODEL, _SPOIL[kind], _WORK, _SAMPLE)
    assert ended.returncode != 0
    assert "device-side assert" in ended.stderr


@pytest.mark.parametrize("kind", list(_SPOIL))
def test_with_the_guard_it_is_told_and_the_process_goes_on(kind):
    """And nothing was waited for before the caller did."""
    ended = run(_MODEL, _SPOIL[kind], _WATCHED, _SAMPLE, _CHECK)
    assert ended.returncode == 0, ended.stderr
    assert "alive: 3.0" in ended.stdout
    wanted = "token id 99 lies outside words" if kind == "token id" else "logits are not finite in lm_head"
    assert f"told: {wanted}" in ended.stdout
