"""``ray.get`` in a process that calls a framework's groups: where their ranks died, it is what finds it.

Any other reference is answered as ever: where no call of a group is under way, for one look at a dict. A
``from ray import get`` of before, ``await`` and a task that is given such a reference are not seen here.
"""

from __future__ import annotations

import functools
import pkgutil
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.frameworks.actor_groups.references import given
from rayguard.harmless import counted, harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from rayguard.frameworks.actor_groups.references import Failed, WaitedFor
    from rayguard.frameworks.actor_groups.sent_call import SentCall

_HERE_S = 1.0  # for what is ready, and may lie on another node


@dataclass(frozen=True, slots=True)
class Asked:
    """One reference of a group's call, as it stood when it was asked for; ``times`` its call was made.

    ``whose``: weak, since the traceback of what Ray raised holds this for a while, and a group its ranks.
    """

    whose: weakref.ref[WaitedFor]
    call: SentCall
    times: int
    now: object


def watch() -> None:
    """Put it in the place of Ray's own, once."""
    import ray  # noqa: PLC0415 - only where a group was made

    if not isinstance(vars(ray)["get"], WatchedGet):
        vars(ray)["get"] = WatchedGet(ray.get)


def unwatch() -> None:
    """Put Ray's own back."""
    import ray  # noqa: PLC0415 - as above

    vars(ray)["get"] = bare_of(ray)


def bare_of(ray: ModuleType) -> Callable[..., object]:
    """Return Ray's own ``get``, whatever stands in its place."""
    found: Callable[..., object] = vars(ray)["get"]
    return found.bare if isinstance(found, WatchedGet) else found


class WatchedGet:
    """Ray's own, with what it raises looked at. In another process it is that one's."""

    def __init__(self, bare: Callable[..., object]) -> None:
        functools.update_wrapper(self, bare)
        self.bare = bare

    def __call__(self, object_refs: object, **options: object) -> object:
        """Return what the references come to.

        Raises:
            BaseException: What Ray's own does.
        """
        asked = _asked_in(object_refs) if given else ()
        if not asked:
            return self.bare(object_refs, **options)
        timeout = options.get("timeout")
        until = time.monotonic() + timeout if isinstance(timeout, (int, float)) and timeout >= 0 else None
        while True:
            if until is not None:
                options["timeout"] = max(0.0, until - time.monotonic())
            try:
                found = self.bare(_now(object_refs), **options)
            except Exception as error:
                if not self._survived(error, asked, until):
                    raise
                error.__traceback__ = (
                    None  # Ray's frames hold it, and would hold all callers' until a collection
                )
                asked = _asked_in(object_refs)
            else:
                with harmless("group"):
                    given.had(object_refs)
                return found

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        """Send it to another process as the name of what it stands for."""
        return pkgutil.resolve_name, ("ray:get",)

    def _survived(self, error: Exception, asked: Sequence[Asked], until: float | None) -> bool:
        """Say whether groups whose calls came to nothing have made them again.

        Raises:
            ray.exceptions.GetTimeoutError: They do, and it is ``until`` (monotonic).
        """
        from ray.exceptions import GetTimeoutError  # noqa: PLC0415 - as above

        if isinstance(error, GetTimeoutError):
            return False
        try:
            return self._asked_all(error, asked, until)
        except GetTimeoutError:
            raise
        except Exception as failed:  # noqa: BLE001 - of ours: the caller has an error already
            counted("group", failed)
            return False

    def _asked_all(self, error: Exception, asked: Sequence[Asked], until: float | None) -> bool:
        failed: dict[WaitedFor, Failed] = {}
        for one in self._lost(asked):
            whose = one.whose()
            calls = [] if whose is None else failed.setdefault(whose, [])
            if (one.call, one.times) not in calls:
                calls.append((one.call, one.times))
        survived = [whose.survived(error, calls, until) for whose, calls in failed.items()]
        return any(survived)  # all of them are asked

    def _lost(self, asked: Sequence[Asked]) -> list[Asked]:
        """Return those that came to nothing."""
        import ray  # noqa: PLC0415 - as above

        refs = list({one.now: None for one in asked})
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        lost = {one for one in ready if self._is_lost(one)}
        return [one for one in asked if one.now in lost]

    def _is_lost(self, reference: object) -> bool:
        from ray.exceptions import GetTimeoutError  # noqa: PLC0415 - as above

        try:
            self.bare(reference, timeout=_HERE_S)
        except GetTimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - whatever came of it
            error.__traceback__ = None  # as above
            return True
        return False


def _asked_in(object_refs: object) -> Sequence[Asked]:
    """Return those that belong to groups; none where that cannot be said."""
    with harmless("group"):
        return [
            Asked(weakref.ref(whose), call, call.times, now)
            for whose, call, _, now in given.among(object_refs)
        ]
    return ()


def _now(object_refs: object) -> object:
    """Return what references stand for now; others are what they are."""
    if not isinstance(object_refs, list):
        return given.now_one(object_refs)
    return [given.now_one(one) for one in object_refs]
