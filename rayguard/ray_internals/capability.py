"""What rayguard can do only through private names of Ray: all of them are there, or it is off, said once.

A ``Capability`` names everything that it stands on. All of it is looked up together at first use, and tried
where it can be; only then is anything of Ray's replaced. Where Ray has moved a name, that capability is off:
one line in the log, one in ``rayguard status``, and whoever asks for it gets ``CapabilityOffError``, which
``rayguard.harmless`` passes over in silence: it was said. The names stand in the files beside this one, a
subject each; the rest of the package asks them.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from rayguard.errors import CapabilityOffError
from rayguard.tried import RAY, TRIED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Found = Mapping[str, Any]

_log = logging.getLogger("rayguard")
_all: dict[str, Capability] = {}
_NOWHERE = object()


class Capability:
    """One thing that needs private names of Ray.

    Args:
        name: What it is called in ``rayguard status``: "object scopes".
        without: What a user misses where it is off: "references are not ended with their scope".
        needs: The private names, ``module:attribute.attribute``, by the words that we ask for them with.
        parts: Attributes of Ray's objects, which can be looked up only where there is one: see ``part``.
        known: The first and the last minor version of Ray that it was tried with.
        only_known: Off with any other Ray: for what does harm where a name stayed and its meaning changed.
        test: Tries it out once, with what was found; what it raises turns the capability off.
        testable: Says whether it can be tried now; until then it is off, and asked again at the next use.
    """

    def __init__(  # noqa: PLR0913 - a declaration: all but three are rare
        self,
        name: str,
        without: str,
        needs: Mapping[str, str],
        *,
        parts: tuple[str, ...] = (),
        known: tuple[tuple[int, int], tuple[int, int]] = TRIED[RAY],
        only_known: bool = False,
        test: Callable[[Found], object] | None = None,
        testable: Callable[[Found], bool] = lambda _: True,
    ) -> None:
        self.name, self.without, self.needs, self.parts = name, without, dict(needs), parts
        self.known, self.only_known = known, only_known
        self._test, self._testable = test, testable
        self.forget()
        _all[name] = self

    def forget(self) -> None:
        """Look again at the next use."""
        self.renew_lock()
        self._found: dict[str, Any] | None = None
        self._why = ""
        self._replaced = False

    def renew_lock(self) -> None:
        """Have a lock that nobody holds; a forked child inherits those of its parent's other threads."""
        self._lock = threading.RLock()  # a test that asks for what it tests must not hang

    @property
    def why_off(self) -> str:
        """Return why it is off; '' while it is on or nobody has asked for it."""
        return self._why

    def found(self) -> Found:
        """Return what the private names stand for.

        Raises:
            CapabilityOffError: One of them is not where it was, or the test failed; said once in the log.
        """
        found = self._found
        if found is not None:
            return found
        with self._lock:
            if self._why:
                raise CapabilityOffError(self.name, self._why)
            if self._found is None:
                found = self._looked_up()
                if not self._testable(found):
                    raise CapabilityOffError(self.name, "it cannot be tried yet")
                self._try_out(found)
                self._found = found
            return self._found

    def usable(self) -> bool:
        """Say whether it is on: for callers who do something else instead."""
        try:
            self.found()
        except CapabilityOffError:
            return False
        return True

    def part(self, of: object, name: str) -> Any:
        """Return an attribute of one of Ray's objects, one of ``parts``.

        Raises:
            CapabilityOffError: It has none; said once in the log.
        """
        found = getattr(of, name, _NOWHERE)
        if found is _NOWHERE:
            raise self.turn_off(f"Ray {_spoken(ray_version())} has no {type(of).__name__}.{name}")
        return found

    def turn_off(self, why: str) -> CapabilityOffError:
        """Have it off from now on; say so once. Returns the error to raise."""
        with self._lock:
            if not self._why:
                self._why, self._found = why, None
                _log.warning("rayguard's %s: off, %s; %s", self.name, why, self.without)
            return CapabilityOffError(self.name, self._why)

    def replace(self, wrappers: Mapping[str, Callable[[Any], Any]]) -> bool:
        """Put what ``wrappers`` make in the place of Ray's own, once in a process; say whether it is there.

        All names are looked up and all wrappers made before the first is set: all or nothing.
        """
        with self._lock:
            if self._replaced:
                return True
            try:
                found = self.found()
            except CapabilityOffError:
                return False
            made = {self.needs[word]: wrap(found[word]) for word, wrap in wrappers.items()}
            self._replaced = self._set_all(made)
            return self._replaced

    def _set_all(self, made: Mapping[str, object]) -> bool:
        before: list[tuple[Any, str, object]] = []
        try:
            for place, value in made.items():
                owner, name = _owner(place)
                before.append((owner, name, vars(owner).get(name, _NOWHERE)))
                setattr(owner, name, value)
        except Exception as error:  # noqa: BLE001 - a class that has become C's takes no attributes, for one
            for owner, name, value in reversed(before):
                _put_back(owner, name, value)
            self.turn_off(f"Ray {_spoken(ray_version())} lets {_spelt(place)} not be replaced ({error!r})")
            return False
        return True

    def _looked_up(self) -> dict[str, Any]:
        if self.only_known and not self.known[0] <= ray_version() <= self.known[1]:
            raise self.turn_off(f"not tried with Ray {_spoken(ray_version())}")
        found, moved, others = {}, [], []
        for word, place in self.needs.items():
            try:
                found[word] = named(place)
            except Exception as error:  # noqa: BLE001, PERF203 - what a module raises as it loads is its own
                if _is_move(error):
                    moved.append(_spelt(place))
                else:
                    others.append(
                        f"{_spelt(place)} does not load with Ray {_spoken(ray_version())} ({error!r})"
                    )
        said = [f"Ray {_spoken(ray_version())} moved {', '.join(moved)}"] if moved else []
        if said or others:
            raise self.turn_off("; ".join([*said, *others]))
        return found

    def _try_out(self, found: Found) -> None:
        if self._test is None:
            return
        try:
            self._test(found)
        except Exception as error:  # whatever Ray answers there: it is not what it was
            raise self.turn_off(f"its test failed with Ray {_spoken(ray_version())} ({error!r})") from error


def switched_off() -> dict[str, str]:
    """Return the capabilities that are off in this process, and why."""
    return {name: one.why_off for name, one in sorted(_all.items()) if one.why_off}


def capabilities() -> list[Capability]:
    """Return all that were loaded in this process."""
    return list(_all.values())


def named(place: str) -> Any:
    """Return what ``module:attribute.attribute`` stands for; ``module:`` is the module itself."""
    module, _, path = place.partition(":")
    found = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


def ray_version() -> tuple[int, int]:
    """Return the installed Ray's major and minor version; (0, 0) where there is none that says it."""
    try:
        import ray  # noqa: PLC0415 - `import rayguard` stays free

        major, minor = ray.__version__.split(".")[:2]
        return int(major), int(minor)
    except (ImportError, AttributeError, ValueError):
        return 0, 0


def _spoken(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _spelt(place: str) -> str:
    return place.replace(":", ".").strip(".")


def _is_move(error: Exception) -> bool:
    """Say whether Ray moved a name; a package that Ray needs and that is not installed is no move."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return error.name.partition(".")[0] == "ray"
    return isinstance(error, (ImportError, AttributeError))


def _owner(place: str) -> tuple[Any, str]:
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")
    return named(f"{module}:{owner}"), name


def _put_back(owner: Any, name: str, value: object) -> None:
    try:
        if value is _NOWHERE:
            delattr(owner, name)  # it was inherited
        else:
            setattr(owner, name, value)
    except (AttributeError, TypeError):
        return  # the very one that could not be set


def _renew_locks() -> None:
    for one in _all.values():
        one.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
