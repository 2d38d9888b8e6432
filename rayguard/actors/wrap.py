"""The wrappers around guarded methods: one for each kind of function, each as thin as can be.

A wrapper is pickled by value with its class, so it refers to modules of rayguard and captures nothing else
but the method: a lock, a logger or ``TALLY`` in its closure would break or copy it. What happens on a failure
is ``rayguard.actors.keeper``; which methods are wrapped is ``rayguard.actors.guard``.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from rayguard.actors import boundary, keeper, leaving, restart
from rayguard.actors.mark import mark_of
from rayguard.actors.methods import MARK, is_guarded, leave
from rayguard.process import recorder
from rayguard.recovery import tally

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from types import FunctionType

    from rayguard.actors.boundary import Boundary
    from rayguard.actors.last_answer import Answer

    Method = Callable[..., Any]


class _Ended:
    """Stands for the end of a stream. A class, since it is pickled by name: an object would be copied."""


def wrap(name: str, method: FunctionType, *, through: Method | None = None) -> Method:
    """Return the guarded ``method``: same kind, signature and attributes.

    ``through`` is what it calls instead of ``method`` itself, for an inherited one.
    """
    call = method if through is None else through
    if name == "__init__":
        guarded = _init(call)
    elif inspect.isasyncgenfunction(method):
        guarded = _async_generator(name, call)
    elif inspect.iscoroutinefunction(method):
        guarded = _async(name, call)
    elif inspect.isgeneratorfunction(method):
        guarded = _generator(name, call)
    else:
        guarded = _sync(name, call)
    # Sets __wrapped__, through which Ray reads signatures and @ray.method attributes, and copies those
    # attributes, by which frameworks find their methods.
    functools.update_wrapper(guarded, method)
    return leave(guarded)


def inherited(owner: type, name: str, method: FunctionType) -> Method:
    """Return a guarded method for ``owner`` that calls the one it inherits.

    Through ``super()`` and not directly: below ``class C(Owner, Other)`` the next one may be ``Other``'s.
    """

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    call.__dict__.update({k: v for k, v in vars(method).items() if k != "__wrapped__"})
    return wrap(name, method, through=call)


def carry(modified: type) -> None:
    """Put the wrappers on ``modified``, the subclass that Ray makes of an actor class and pickles whole.

    For a class that was guarded after its module had defined it: its wrappers go by name to a worker that
    imports the module, and there the names mean the bare methods.
    """
    if MARK in vars(modified):
        return
    plain = modified.__ray_actor_class__  # type: ignore[attr-defined]
    for name in dir(plain):
        method = inspect.getattr_static(plain, name)
        if is_guarded(method):
            setattr(modified, name, _by_value(modified, name, method))
    setattr(modified, MARK, mark_of(plain))


def _by_value(modified: type, name: str, method: FunctionType) -> Method:
    copy = inherited(modified, name, method)
    # What leads back to the bare function would pull the module's globals, locks and all, into the pickle.
    del copy.__wrapped__  # type: ignore[attr-defined]
    copy.__qualname__ = f"{modified.__qualname__}.{name} (guarded)"  # no name that can be imported
    asked = inspect.signature(method).parameters.values()
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in asked]
    copy.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    copy.__annotations__ = {}
    return copy


def _init(call: Method) -> Method:
    def _rayguard_init(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if not restart.begin(self):
            return  # the restart budget is spent: every call will say so
        outermost = restart.opening(self)
        began = recorder.begin(type(self).__name__, "__init__")
        try:
            call(self, *args, **kwargs)
        except Exception as error:
            keeper.judge(self, "__init__", call, error, repeatable=False)
            raise
        finally:
            recorder.end(began)
        if outermost:
            restart.resume(self)
        restart.served(self)

    return _rayguard_init


def _admit(self: Any) -> Answer | None:
    """Hold a call in a process that is about to end; ask the gate. An answer: the last process had one."""
    leaving.hold()
    return _pass(self)


async def _admit_async(self: Any) -> Answer | None:
    await leaving.hold_async()
    return _pass(self)


def _pass(self: Any) -> Answer | None:
    while (gate := restart.gate) is not None:
        known = gate(self)
        if known is not None or restart.gate is gate:  # else it has let us through to another one
            return known
    return None


def begin_call(self: Any, name: str) -> tuple[Boundary | None, int]:
    """Tell whoever wants to know that a call begins; what is returned is for ``end_call``."""
    owner = type(self).__name__
    tally.TALLY.calls[owner] += 1  # no lock: see Tally
    watch = boundary.watch
    if watch is not None:
        watch.begun()
    return watch, recorder.begin(owner, name)


def end_call(self: Any, name: str, entered: tuple[Boundary | None, int]) -> None:
    """Tell them that it has ended. Only those who were told of its begin: one may have come meanwhile."""
    watch, began = entered
    recorder.end(began)
    if watch is not None:
        watch.ended(self, name)


# In each of these, `_rayguard_guarded` is the name by which `keeper` finds guarded calls on the stack.


def _sync(name: str, call: Method) -> Method:
    def _rayguard_guarded(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if restart.gate is not None or leaving.is_leaving():
            known = _admit(self)
            if known is not None:
                return known.value
        entered, rescue = begin_call(self, name), None
        try:
            try:
                answer = call(self, *args, **kwargs)
            except Exception as error:
                rescue = keeper.judge(self, name, call, error)
                if rescue is None:
                    raise
            if rescue is not None:
                answer = keeper.repeat(rescue, lambda: call(self, *args, **kwargs))
        finally:
            end_call(self, name, entered)
        if leaving.is_leaving():
            leaving.answered(answer)
        return answer

    return _rayguard_guarded


def _async(name: str, call: Method) -> Method:
    async def _rayguard_guarded(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if restart.gate is not None or leaving.is_leaving():
            known = await _admit_async(self)
            if known is not None:
                return known.value
        entered, rescue = begin_call(self, name), None
        try:
            try:
                answer = await call(self, *args, **kwargs)
            except Exception as error:
                rescue = keeper.judge(self, name, call, error)
                if rescue is None:
                    raise
            if rescue is not None:
                answer = await keeper.repeat_async(rescue, lambda: call(self, *args, **kwargs))
        finally:
            end_call(self, name, entered)
        if leaving.is_leaving():
            leaving.answered(answer)
        return answer

    return _rayguard_guarded


def _generator(name: str, call: Method) -> Method:
    def _rayguard_guarded(self: Any, /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if restart.gate is not None or leaving.is_leaving():
            _admit(self)
        entered = begin_call(self, name)
        try:
            stream = _begun(self, name, call, args, kwargs)
            try:
                return (yield from stream)
            except Exception as error:
                keeper.judge(self, name, call, error, repeatable=False)
                raise
        finally:
            end_call(self, name, entered)

    return _rayguard_guarded


def _async_generator(name: str, call: Method) -> Method:
    async def _rayguard_guarded(self: Any, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        if restart.gate is not None or leaving.is_leaving():
            await _admit_async(self)
        entered = begin_call(self, name)
        try:
            stream, item = await _begun_async(self, name, call, args, kwargs)
            sent = thrown = None
            try:
                async with aclosing(stream):
                    while item is not _Ended:  # what `yield from` does for a generator
                        try:
                            sent, thrown = (yield item), None
                        except Exception as error:  # noqa: BLE001 - thrown in by the reader, for the user's code
                            thrown = error
                        item = await _next(stream, sent, thrown)
            except Exception as error:
                keeper.judge(self, name, call, error, repeatable=False)
                raise
        finally:
            end_call(self, name, entered)

    return _rayguard_guarded


def _begun(self: Any, name: str, call: Method, args: Any, kwargs: Any) -> _Begun:
    try:
        return _Begun(call(self, *args, **kwargs))
    except Exception as error:
        rescue = keeper.judge(self, name, call, error)
        if rescue is None:
            raise
    return keeper.repeat(rescue, lambda: _Begun(call(self, *args, **kwargs)))


async def _begun_async(
    self: Any, name: str, call: Method, args: Any, kwargs: Any
) -> tuple[AsyncGenerator[Any, Any], Any]:
    async def begin() -> tuple[AsyncGenerator[Any, Any], Any]:
        stream = call(self, *args, **kwargs)
        return stream, await _next(stream, None, None)

    try:
        return await begin()
    except Exception as error:
        rescue = keeper.judge(self, name, call, error)
        if rescue is None:
            raise
    return await keeper.repeat_async(rescue, begin)


async def _next(stream: AsyncGenerator[Any, Any], sent: Any, thrown: Exception | None) -> Any:
    try:
        return await (stream.asend(sent) if thrown is None else stream.athrow(thrown))
    except StopAsyncIteration:
        return _Ended


class _Begun:
    """A generator that has made its first step: until then, and no longer, it may be made anew."""

    __slots__ = ("_ended", "_first", "_fresh", "_stream")

    def __init__(self, stream: Generator[Any, Any, Any]) -> None:
        self._stream = stream
        self._fresh = True
        self._ended: StopIteration | None = None
        try:
            self._first = next(stream)
        except StopIteration as stop:
            self._ended = stop

    def __iter__(self) -> _Begun:
        return self

    def __next__(self) -> Any:
        if not self._fresh:
            return next(self._stream)
        self._fresh = False
        if self._ended is not None:
            raise StopIteration(self._ended.value)
        return self._first

    def send(self, value: Any) -> Any:
        return self._stream.send(value)

    def throw(self, error: BaseException) -> Any:
        return self._stream.throw(error)

    def close(self) -> None:
        self._stream.close()
