"""Building one engine from the user's recipe: settings, environment, prefork, deadline, checks.

Says what is wrong with a recipe at its first call. What to do when a build fails is
``rayguard.engine.supervision.supervisor``'s.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.engine.adoption.arguments import ADOPTABLE_ENV, digest_of
from rayguard.engine.build.no_engine import is_no_engine, said_of
from rayguard.engine.build.recipe import explained
from rayguard.engine.deadline import as_error, begun
from rayguard.engine.error_records import RECORDS_ENV, clear
from rayguard.engine.plain import PlainEngine
from rayguard.engine.prefork.process import resource_tracker_pid
from rayguard.engine.settings import EngineSettings, Values
from rayguard.engine.spoiled_requests import LOOK_ENV
from rayguard.errors import ConfigError, RecoveryTimeoutError
from rayguard.harmless import harmless
from rayguard.private import open_private
from rayguard.process.code_lines import frames_of, line_of
from rayguard.process.identity import ProcessId, mark_environment, owner_mark
from rayguard.process.tree import descendants, end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from rayguard.engine.adoption.lease import EngineLease
    from rayguard.engine.prefork.server import PreforkServer
    from rayguard.engine.protocol import Engine, Report

    Recipe = Callable[[EngineSettings], object]

_log = logging.getLogger("rayguard")
_TOLD_AFTER_S = 60.0
_PRELOAD_S = 60.0  # a preload takes about 10 s; past this, vLLM's own start is as good
_CALLED_OFF_S = 30.0  # for a build that was called off: its core is killed, which it notices at once
_LOOK_S = 0.05
_CORE = "EngineCore"  # how vLLM names its processes (vllm/v1/engine/utils.py)
_ONE_BUILD = threading.Lock()  # the environment and vLLM's start method are the process's


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOrder:
    """What is to be built.

    ``called_off`` is for a standby alone: it is built while another engine serves, so it may be called off,
    and of what was started meanwhile only engine cores are ever ended. ``refuse`` gets its arguments first.
    """

    applied: tuple[str, ...]
    predecessor: Engine | None
    records: Path  # where its processes write what goes wrong
    deadline_s: float
    called_off: threading.Event | None = None
    refuse: Callable[[Values], None] | None = None
    lease: EngineLease | None = None  # of the engine that is to be gone on with

    @property
    def standby(self) -> bool:
        """Whether another engine serves."""
        return self.called_off is not None


class EngineBuilder:
    """Calls ``build_engine(settings)`` and turns what it returns into an ``Engine``."""

    def __init__(
        self,
        recipe: Recipe,
        report: Report,
        *,
        records: tuple[Path, Path],
        prefork: PreforkServer | None,
        patience_s: float,
        check: Callable[[Values], None] | None = None,
    ) -> None:
        self.records = records  # two folders: of the engine that serves, and of its standby
        self.mark = owner_mark(ProcessId.me())
        self.looks_at_logits = True
        self.adoptable = False  # its engines may outlive this process
        self._recipe = recipe
        self._report = report
        self._prefork = prefork
        self._patience_s = patience_s
        self._check_arguments = check
        self._facts: Mapping[str, object] = {}
        self._accepted: frozenset[str] | None = None
        self._base: Values | None = None

    def build(self, order: BuildOrder) -> Engine:
        """Return a new engine that does not serve yet.

        Raises:
            ConfigError: The recipe cannot work: it returned no engine, ignores its settings, or ended its
                thread (``sys.exit()``).
            RecoveryTimeoutError: The deadline passed, or it was called off; what the build had started was
                ended.
            Exception: Whatever the recipe raised.
        """
        settings = EngineSettings(
            applied=order.applied,
            facts=self._facts,
            accepted=self._accepted,
            extra=_in_place_of_the_plugin(),
            standby=order.standby,
            refuse=order.refuse,
            check=self._check_arguments,
        )
        with _ONE_BUILD, self._environment(order.records):
            with harmless("records"):
                os.close(open_private(order.records))
                clear(order.records)
            try:
                built = self._built(order, settings)
            except TypeError as error:
                raise explained(error) from error
        self._check(built, settings)
        engine = self._adapt(built, order.predecessor, settings)
        self._facts = self._facts or engine.facts()
        return engine

    def _built(self, order: BuildOrder, settings: EngineSettings) -> object:
        if order.called_off is not None and order.called_off.is_set():
            raise RecoveryTimeoutError("the standby was called off before its build began")
        serving = order.predecessor
        if order.standby and self._accepted is not None and serving is not None and not serving.processes():
            raise ConfigError("vLLM runs in this very process, which has room for one: no standby engine")
        before = set(descendants(ProcessId.me()))
        thread: list[int] = []
        outcome = begun(lambda: self._construct(settings, thread, order), "rayguard-build")
        began = time.monotonic()
        until, tell_at = began + order.deadline_s, began + _TOLD_AFTER_S
        pause_s = _LOOK_S if order.standby else _TOLD_AFTER_S
        while not concurrent.futures.wait([outcome], min(pause_s, until - time.monotonic())).done:
            now = time.monotonic()
            if now >= until or (order.called_off is not None and order.called_off.is_set()):
                break
            if now >= tell_at:
                tell_at = until
                _log.warning("rayguard: build_engine has run for %.0f s%s", now - began, _where(thread))
        else:
            return outcome.result()
        outcome.add_done_callback(self._discard)  # it may still come
        if not order.standby:
            where = _where(thread)
            self._end_what_was_started(before)
            raise RecoveryTimeoutError(f"build_engine took over {order.deadline_s:.0f} s{where}")
        until = time.monotonic() + _CALLED_OFF_S
        while not concurrent.futures.wait([outcome], _LOOK_S).done and time.monotonic() < until:
            end(_cores_beside(before), polite_s=0.0, mark=self.mark)
        raise RecoveryTimeoutError("the standby took too long to build, or was called off")

    def _discard(self, outcome: Future[object]) -> None:
        """End an engine that came when nobody waited for it any more."""
        if outcome.exception() is None and outcome.result() is not None:
            with harmless("build"):
                self._adapt(outcome.result(), None, None).close(polite_s=0.0, force_s=_CALLED_OFF_S)

    def _end_what_was_started(self, before: set[ProcessId]) -> None:
        # Not what serves this whole process: multiprocessing's resource tracker, the prefork server.
        kept = {resource_tracker_pid(), None if self._prefork is None else self._prefork.pid}
        started = [p for p in descendants(ProcessId.me()) if p not in before and p.pid not in kept]
        end(started, polite_s=0.0, mark=self.mark)

    def _construct(self, settings: EngineSettings, thread: list[int], order: BuildOrder) -> object:
        thread.append(threading.get_ident())
        try:
            if order.lease is not None:
                from rayguard.engine.build.adopting import taking_over  # noqa: PLC0415 - imports vLLM

                with taking_over(order.lease, self.mark, order.records, settings):
                    return self._recipe(settings)
            # In the thread that builds: which start method vLLM uses is chosen per thread.
            if self._prefork is None:
                return self._recipe(settings)
            from rayguard.engine.prefork.server import installed  # noqa: PLC0415 - only where there is a server

            with installed(self._prefork, wait_s=_PRELOAD_S) as forks:
                if forks and self.adoptable:
                    from rayguard.engine.vllm.adoption import attach  # noqa: PLC0415 - where vLLM is

                    attach.install()
                return self._recipe(settings)
        except BaseException as ended:
            error = as_error(ended, "build_engine")
            if error is ended:
                raise
            raise error from ended

    def why_unusable(self, applied: tuple[str, ...]) -> str:
        """Return what the installed engine says against these safe settings, before anything is built."""
        if self._base is None or self._accepted is None:
            return ""
        from rayguard.engine.vllm.arguments import check_arguments  # noqa: PLC0415 - only after a vLLM engine was built

        settings = EngineSettings(applied=applied, facts=self._facts, accepted=self._accepted)
        try:
            check_arguments(settings.as_kwargs(**self._base))
        except Exception as refused:  # noqa: BLE001 - vLLM refuses with many types
            return f"{type(refused).__name__}: {refused}"
        return ""

    def _check(self, built: object, settings: EngineSettings) -> None:
        if is_no_engine(built):
            raise ConfigError(said_of(built))
        if settings.base is None:
            raise ConfigError(
                "build_engine(settings) ignores its settings, so no restart could make the engine safer: "
                "build it with **settings.as_kwargs(model=..., your=values)"
            )
        if not settings.standby:
            self._base = settings.base

    def _adapt(self, built: object, predecessor: Engine | None, settings: EngineSettings | None) -> Engine:
        if any(base.__module__.partition(".")[0] == "vllm" for base in type(built).__mro__):
            from rayguard.engine.vllm.arguments import accepted_arguments, is_vllm  # noqa: PLC0415
            from rayguard.engine.vllm.engine import VllmEngine  # noqa: PLC0415

            if is_vllm(built):
                self._accepted = accepted_arguments()
                return VllmEngine(
                    built,
                    self._report,
                    mark=self.mark,
                    patience_s=self._patience_s,
                    predecessor=predecessor,
                    arguments=digest_of(settings) if self.adoptable and settings is not None else "",
                )
            if type(built).__module__.partition(".")[0] == "vllm":
                raise ConfigError(said_of(built))  # its arguments, say
        self.close()  # the prefork server has vLLM imported, which this engine is not
        adopt = getattr(built, "rayguard_engine", None)  # an engine that brings its own adapter
        if callable(adopt):
            adapted: Engine = adopt(self._report, predecessor)
            return adapted
        return PlainEngine(built)

    @property
    def prefork_address(self) -> str:
        """Where the prefork server listens; '' for none."""
        return "" if self._prefork is None else self._prefork.address

    def close(self) -> None:
        """End the prefork server, and with it whatever still hangs on it."""
        if self._prefork is not None:
            self._prefork.stop(0.0)
            self._prefork = None

    @contextlib.contextmanager
    def _environment(self, records: Path) -> Iterator[None]:
        """Let the processes that are started meanwhile carry our mark and write their records."""
        looks = "1" if self.looks_at_logits else ""
        wanted = {**mark_environment(self.mark), RECORDS_ENV: str(records), LOOK_ENV: looks}
        wanted[ADOPTABLE_ENV] = "1" if self.adoptable else ""
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _where(thread: list[int]) -> str:
    """Return where the recipe stands, for the end of a sentence; '' where that cannot be seen."""
    line = line_of(frames_of(thread[0]), "") if thread else ""
    return line and f" and stands at {line}"


def _cores_beside(before: set[ProcessId]) -> list[ProcessId]:
    """Return the engine cores that this process has started since ``before``; nothing else, by name."""
    cores = [child for child in multiprocessing.active_children() if child.name.startswith(_CORE)]
    found = [ProcessId.of(core.pid) for core in cores if core.pid is not None]
    return [process for process in found if process is not None and process not in before]


def _in_place_of_the_plugin() -> dict[str, str]:
    """Return the argument that lets workers receive weights where the user has switched our plugin off."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is None or "rayguard" in allowed.split(","):
        return {}
    return {"worker_extension_cls": "rayguard.engine.vllm.receiver.Receiver"}
