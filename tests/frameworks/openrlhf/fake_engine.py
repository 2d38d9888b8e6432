"""An engine with a worker that takes weights as OpenRLHF's does; both die together."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

from rayguard.engine.deadline import bounded
from rayguard.testing.fakes import FakeEngine, FakeEngineDeadError, FakeLLM


class Model:
    """What the worker loads into."""

    def __init__(self):
        self.held = {}

    def load_weights(self, weights):
        self.held.update(weights)


class Worker:
    """``WorkerWrap``: what is pushed comes by ``sent``, in a group's place."""

    def __init__(self):
        self.model_runner = SimpleNamespace(model=Model())
        self.grouped = False
        self.sent = {}

    @property
    def weights(self):
        """A text that is another with other weights."""
        held = self.model_runner.model.held
        return ",".join(f"{name}={held[name].flatten()[0].item():g}" for name in sorted(held))

    def init_process_group(self, *_):
        self.grouped = True

    def update_weight(self, name, dtype, shape, empty_cache=False):
        if not self.grouped:
            raise AttributeError("'Worker' object has no attribute '_model_update_group'")
        self._load(name)

    def update_weight_cuda_ipc(self, name, dtype, shape, ipc_handles=None, empty_cache=False):
        self._load(name)

    def _load(self, name):
        self.model_runner.model.load_weights(weights=[(name, self.sent[name])])

    def rayguard_load_weights(self, payload, path, version, digest):
        from safetensors.torch import load_file

        assert payload is None
        assert digest
        self.model_runner.model.load_weights(load_file(path).items())


class Built(FakeLLM):
    """In the place of an ``AsyncLLM``."""

    refuses = ""  # of what is called in its worker

    def __init__(self, **settings):
        super().__init__(**settings)
        self.worker = Worker()

    async def is_sleeping(self):
        return False

    async def collective_rpc(self, method, args=()):
        """Call a method, or a function, in the one worker."""
        if callable(method):
            if self.refuses:
                raise RuntimeError(self.refuses)
            answer = method(SimpleNamespace(worker=self.worker), *args)  # vLLM's wrapper
        else:
            answer = getattr(self.worker, method)(*args)
        self.weights = self.worker.weights
        return [answer]

    def rayguard_engine(self, report, predecessor):
        return _Engine(self, report, predecessor)

    def dies_once(self):
        """Have its next answer end it, half made."""
        once = threading.Event()

        def script(llm, request):
            if len(request.tokens) == 4 and not once.is_set():
                once.set()
                raise FakeEngineDeadError("the engine is dead")

        self.script = script


class _Engine(FakeEngine):
    """Its frontend has an event loop."""

    def replay(self, push, *, deadline_s):
        return bounded(lambda: asyncio.run(push(self.frontend)), deadline_s)

    def serve(self, verdicts, *, deadline_s):
        self.handle.worker = self._built.worker
        return super().serve(verdicts, deadline_s=deadline_s)
