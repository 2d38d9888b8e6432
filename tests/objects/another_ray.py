"""For tests: a Ray that has moved one private name, in a process where no scope was opened yet."""

import contextlib

import ray.remote_function
from ray._private.worker import Worker
from ray.actor import ActorClass, ActorHandle

from rayguard.objects import hooks
from rayguard.ray_internals import object_refs
from rayguard.ray_internals.actor_classes import HANDLES, RELEASING
from rayguard.ray_internals.actor_creation import CREATION

METHODS = [
    (Worker, "put_object"),
    (ActorClass, "_remote"),
    (ActorHandle, "_actor_method_call"),
    (ray.remote_function.RemoteFunction, "_remote"),
]
CAPABILITIES = [object_refs.OBJECTS, object_refs.ENDING, HANDLES, RELEASING, CREATION]


def wraps(method):
    """Return how many wraps of ours there are around Ray's own method."""
    found = 0
    while (inner := getattr(method, "__wrapped__", None)) is not None:
        found += method.__globals__["__name__"].startswith("rayguard")
        method = inner
    return found


def depths():
    """Return how deep the methods of Ray that scopes wrap are wrapped by us."""
    return {f"{owner.__name__}.{name}": wraps(getattr(owner, name)) for owner, name in METHODS}


def forget():
    """Have everything looked up anew."""
    hooks._installed = False
    object_refs.reference_type.cache_clear()
    for capability in CAPABILITIES:
        capability.forget()


def bare(method):
    """Return Ray's own method, without our wraps."""
    while method.__globals__["__name__"].startswith("rayguard"):
        method = method.__wrapped__
    return method


@contextlib.contextmanager
def unwrapped():
    """Ray as no scope has touched it; afterwards all is as it was."""
    before = [(owner, name, getattr(owner, name)) for owner, name in METHODS]
    for owner, name, method in before:
        setattr(owner, name, bare(method))
    forget()
    try:
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, bare(method))
        forget()


@contextlib.contextmanager
def moved(capability, word):
    """Have ``capability`` miss one of its names: Ray has it elsewhere, and works."""
    place = capability.needs[word]
    with unwrapped():
        capability.needs[word] = f"{place}_as_it_was"
        try:
            yield
        finally:
            capability.needs[word] = place
