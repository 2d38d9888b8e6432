"""The groups of OpenRLHF (``RayActorGroup``) under what brings their ranks back.

Stands on how ``openrlhf/trainer/ray/launcher.py`` of 0.11 is written: where one of the places looked at is
not there, or has other parameters, that is said once and nothing is changed. Groups of ranks of other classes
than OpenRLHF's four are left alone: nobody knows what a call does to them.
"""

from __future__ import annotations

import functools
import inspect
import threading
import uuid
from typing import TYPE_CHECKING

from rayguard.frameworks.actor_groups.effects import INIT
from rayguard.frameworks.actor_groups.names import HANDLES, MARK, WITHIN
from rayguard.frameworks.change_once import change_once, names_in
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from rayguard.frameworks.worker_groups.policy import GroupPolicy

MODULE = "openrlhf.trainer.ray.launcher"  # after whose import ``attach`` is to be called
_ATTACHED = "__rayguard_groups__"
_MAKE, _PLACE = "_initiate_actors", "placement_group"
# A method that sends calls, its first parameters, and the name of the call where it is always the same.
_SENDERS = {
    "async_init_model_from_pretrained": (("self",), INIT),
    "async_save_model": (("self",), "save_model"),
    "async_run_method": (("self", "method_name"), ""),
    "async_run_method_batch": (("self", "method_name"), ""),
}
_OTHER_WAYS = {"options", "bind"}  # of calling an actor's method
_KNOWN = {"__init__", _MAKE, *_SENDERS}
_MAKER = ("self", "pg", "num_gpus_per_actor")


class _Made(threading.local):
    """The place that a group reserves for itself as it is made in this thread."""

    place: object = None


_made = _Made()


def attach(module: ModuleType, policy: GroupPolicy | None = None) -> bool:
    """Have all groups of this process looked after, also those from another one; say whether they are."""
    return change_once(
        module,
        _ATTACHED,
        lambda: _change(module, policy),
        unknown=_unknown,
        framework="OpenRLHF",
        otherwise="groups of actors are not brought back",
    )


def _change(module: ModuleType, policy: GroupPolicy | None) -> None:
    group_class = module.RayActorGroup
    setattr(module, _PLACE, _noting(getattr(module, _PLACE)))
    make = getattr(group_class, _MAKE)
    setattr(group_class, _MAKE, _recording(make, policy))
    for name, (_, call) in _SENDERS.items():
        setattr(group_class, name, _sending(getattr(group_class, name), make, call, policy))
    setattr(group_class, HANDLES, _handing_out(make, policy))


def _unknown(module: ModuleType) -> str:
    """Say what is not as it is known; '' if all is."""
    group_class = getattr(module, "RayActorGroup", None)
    if not inspect.isclass(group_class):
        return "RayActorGroup"
    if not callable(getattr(module, _PLACE, None)):
        return _PLACE
    known = {_MAKE: _MAKER, **{name: first for name, (first, _) in _SENDERS.items()}}
    for name, first in known.items():
        what = _unknown_in(vars(group_class).get(name), first, sends=name != _MAKE)
        if what is not None:
            return f"RayActorGroup.{name}{what}"
    for name, method in vars(group_class).items():
        if name == HANDLES or (name not in _KNOWN and _uses_handles(method)):
            return f"RayActorGroup.{name}"
    return ""


def _unknown_in(method: object, first: tuple[str, ...], *, sends: bool) -> str | None:
    """Say what is not as it is known of a method that begins with these parameters; None if all is."""
    if not inspect.isfunction(method) or _parameters(method)[: len(first)] != first:
        return ""
    if not _uses_handles(method):
        return f", without {HANDLES}"
    if sends and _OTHER_WAYS & set(names_in(method.__code__)):
        return ", which sends in another way"
    return None


def _parameters(method: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)


def _uses_handles(method: object) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and HANDLES in names_in(code)


# -- what stands in the module


def _noting(place: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(place)
    def placement_group(*args: object, **kwargs: object) -> object:
        _made.place = place(*args, **kwargs)
        return _made.place

    return placement_group


def _recording(make: Callable[..., None], policy: GroupPolicy | None) -> Callable[..., None]:
    @functools.wraps(make)
    def _initiate_actors(self: object, pg: object, num_gpus_per_actor: float) -> None:
        _made.place = None
        make(self, pg, num_gpus_per_actor)
        place, _made.place = _made.place, None
        with harmless("group"):
            from rayguard.frameworks.actor_groups import openrlhf_ranks  # noqa: PLC0415 - where one was made

            if openrlhf_ranks.are_known(self):
                vars(self)[MARK] = (uuid.uuid4().hex, pg or place, num_gpus_per_actor)
                openrlhf_ranks.looked_after(self, make, policy, is_new=True)

    return _initiate_actors


def _sending(
    send: Callable[..., object], make: Callable[..., None], call: str, policy: GroupPolicy | None
) -> Callable[..., object]:
    """Return ``send`` with note taken of what it sends."""
    signature = inspect.signature(send)

    @functools.wraps(send)
    def sent(self: object, *args: object, **kwargs: object) -> object:
        group = None
        if MARK in vars(self):
            with harmless("group"):
                from rayguard.frameworks.actor_groups import openrlhf_ranks  # noqa: PLC0415 - as above

                group = openrlhf_ranks.looked_after(self, make, policy)
                if group is None:
                    openrlhf_ranks.unseen(self)
        if group is None:
            return send(self, *args, **kwargs)
        name = call or str(_given(signature, (self, *args), kwargs))
        return group.call(name, lambda handles: send(_seen_with(self, handles), *args, **kwargs))

    return sent


def _seen_with(group: object, handles: list[object]) -> object:
    """Return the group as its own method is to see it: with ``handles`` in the ranks' place."""
    seen = object.__new__(type(group))
    vars(seen).update(vars(group))
    vars(seen).update({HANDLES: handles, WITHIN: True})
    return seen


def _given(signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    try:
        return signature.bind(*args, **kwargs).arguments["method_name"]
    except TypeError:  # which the framework's own function raises in a moment
        return ""


def _handing_out(make: Callable[..., None], policy: GroupPolicy | None) -> property:
    """Return the handles as a property: whoever takes them by hand goes on calling those that ended."""

    def get(self: object) -> object:
        state = vars(self)
        if HANDLES not in state:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {HANDLES!r}")
        if MARK in state and WITHIN not in state:
            with harmless("group"):
                from rayguard.frameworks.actor_groups import openrlhf_ranks  # noqa: PLC0415 - as above

                openrlhf_ranks.handed_out(self, make, policy)
        return state[HANDLES]

    def put(self: object, handles: object) -> None:
        vars(self)[HANDLES] = handles

    return property(get, put)
