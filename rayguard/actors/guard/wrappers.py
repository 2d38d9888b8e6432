"""The wrappers around guarded methods: one for each kind of function, each as thin as can be.

A wrapper is pickled by value with its class, so it refers to modules of rayguard and captures nothing else
but the method: a lock, a logger or ``TALLY`` in its closure would break or copy it. What happens on a failure
is ``rayguard.actors.guard.call_recovery``; which methods are wrapped is ``rayguard.actors.guard.guard``.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rayguard.actors.guard import call_recovery, restarts, slow_init
from rayguard.actors.guard.streams import Begun, Stream, next_item
from rayguard.actors.life import graceful_exit
from rayguard.actors.life.last_answer import Answer
from rayguard.actors.mark import mark_of
from rayguard.actors.memory.call_boundary import begin_call, end_call
from rayguard.actors.methods import MARK, bare_methods, is_guarded, leave
from rayguard.process.flight import recorder
from rayguard.ray_internals.module_names import user_class

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
    from types import FunctionType

    Method = Callable[..., Any]  # of the user's: what it takes and returns is theirs

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Y = TypeVar("Y")  # what a stream yields
S = TypeVar("S")  # what is sent into it


def wrap(name: str, method: FunctionType, *, through: Method | None = None) -> Method:
    """Return the guarded ``method``: same kind, signature and attributes.

    ``through`` is what it calls instead of ``method`` itself, for an inherited one.
    """
    call = method if through is None else through
    guarded: Method
    if name == "__init__":
        guarded = _async_init(call) if inspect.iscoroutinefunction(method) else _init(call)
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

    def call(self: object, /, *args: object, **kwargs: object) -> object:
        try:
            above = super(owner, self)
        except TypeError:  # the owner was made anew with what it holds: by ``dataclass(slots=True)``, for one
            above = super(next(one for one in type(self).__mro__ if vars(one).get(name) is guarded), self)
        return getattr(above, name)(*args, **kwargs)

    call.__dict__.update({k: v for k, v in vars(method).items() if k != "__wrapped__"})
    guarded = wrap(name, method, through=call)
    return guarded


def carry(modified: type) -> None:
    """Put the wrappers on ``modified``, the subclass that Ray makes of an actor class and pickles whole.

    For a class that was guarded after its module had defined it: its wrappers go by name to a worker that
    imports the module, and there the names mean the bare methods. And for one that is derived from a guarded
    class: those of its own get wrappers here, or its state would be kept in the midst of a call.
    """
    if MARK in vars(modified):
        return
    plain = user_class(modified)
    own = bare_methods(plain)
    for name in dir(plain):
        method = inspect.getattr_static(plain, name, None)
        if is_guarded(method) or name in own:
            setattr(modified, name, _by_value(modified, name, method))
    setattr(modified, MARK, mark_of(plain))


def _by_value(modified: type, name: str, method: FunctionType) -> Method:
    copy = inherited(modified, name, method)
    # What leads back to the bare function would pull the module's globals, locks and all, into the pickle.
    del copy.__wrapped__  # type: ignore[attr-defined]
    copy.__qualname__ = f"{modified.__qualname__}.{name} (guarded)"  # no name that can be imported
    parameters = inspect.signature(method).parameters.values()
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    copy.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    copy.__annotations__ = {}
    return copy


@contextmanager
def _being_made(self: object, call: Method, coroutine: object = None) -> Iterator[None]:
    outermost = restarts.opening(self)
    over = slow_init.begun(self, coroutine) if outermost else None
    began = recorder.begin(type(self).__name__, "__init__")
    try:
        try:
            yield
        except Exception as error:
            call_recovery.judge(self, "__init__", call, error, repeatable=False)
            raise
        finally:
            recorder.end(began)
        if outermost:
            restarts.resume(self)
    finally:
        if over is not None:
            over()
    restarts.served(self)


def _init(call: Callable[Concatenate[object, P], R]) -> Callable[Concatenate[object, P], R | None]:
    def _rayguard_init(self: object, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if not restarts.begin(self):
            return None  # the restart budget is spent: every call will say so
        with _being_made(self, call):
            return call(self, *args, **kwargs)

    return _rayguard_init


def _async_init(
    call: Callable[Concatenate[object, P], Awaitable[R]],
) -> Callable[Concatenate[object, P], Awaitable[R | None]]:
    async def _rayguard_init(self: object, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if not restarts.begin(self):
            return None
        made = call(self, *args, **kwargs)
        with _being_made(self, call, made):
            return await made

    return _rayguard_init


# In each of these, `_rayguard_guarded` is the name by which `call_recovery` finds guarded calls on the stack.


def _sync(name: str, call: Callable[Concatenate[object, P], R]) -> Callable[Concatenate[object, P], R]:
    def _rayguard_guarded(self: object, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if restarts.hands.asks or graceful_exit.is_leaving():
            earlier = restarts.admit(self, name)
            if earlier is not None:
                answer: R = earlier.value
                return answer
        entered, rescue, done = begin_call(self, name, (args, kwargs)), None, None
        try:
            try:
                answer = call(self, *args, **kwargs)
            except Exception as error:
                rescue = call_recovery.judge(self, name, call, error)
                if rescue is None:
                    raise
            if rescue is not None:
                answer = call_recovery.repeat(rescue, lambda: call(self, *args, **kwargs))
            done = None if entered[2] is None else Answer(answer)
        finally:
            end_call(self, name, entered, done)
        if graceful_exit.is_leaving():
            graceful_exit.answered(answer)
        return answer

    return _rayguard_guarded


def _async(
    name: str, call: Callable[Concatenate[object, P], Awaitable[R]]
) -> Callable[Concatenate[object, P], Awaitable[R]]:
    async def _rayguard_guarded(self: object, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if restarts.hands.asks or graceful_exit.is_leaving():
            earlier = await restarts.admit_async(self, name)
            if earlier is not None:
                answer: R = earlier.value
                return answer
        entered, rescue, done = begin_call(self, name), None, None
        try:
            try:
                answer = await call(self, *args, **kwargs)
            except Exception as error:
                rescue = call_recovery.judge(self, name, call, error)
                if rescue is None:
                    raise
            if rescue is not None:
                answer = await call_recovery.repeat_async(rescue, lambda: call(self, *args, **kwargs))
            done = None if entered[2] is None else Answer(answer)
        finally:
            end_call(self, name, entered, done)
        if graceful_exit.is_leaving():
            graceful_exit.answered(answer)
        return answer

    return _rayguard_guarded


def _generator(
    name: str, call: Callable[Concatenate[object, P], Generator[Y, S, R]]
) -> Callable[Concatenate[object, P], Generator[Y, S, R]]:
    def _rayguard_guarded(self: object, /, *args: P.args, **kwargs: P.kwargs) -> Generator[Y, S, R]:
        if restarts.hands.asks or graceful_exit.is_leaving():
            restarts.admit(self, name)
        entered = begin_call(self, name)
        try:
            stream = _begun(self, name, call, lambda: Begun(call(self, *args, **kwargs)))
            try:
                answer: R = yield from stream
                return answer  # noqa: TRY300 - the verdict is on what the stream raises
            except Exception as error:
                call_recovery.judge(self, name, call, error, repeatable=False)
                raise
        finally:
            end_call(self, name, entered)

    return _rayguard_guarded


def _async_generator(
    name: str, call: Callable[Concatenate[object, P], AsyncGenerator[Y, S]]
) -> Callable[Concatenate[object, P], AsyncGenerator[Y, S]]:
    async def _rayguard_guarded(self: object, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Y, S]:
        if restarts.hands.asks or graceful_exit.is_leaving():
            await restarts.admit_async(self, name)

        async def begin() -> tuple[AsyncGenerator[Y, S], Y | Stream]:
            stream = call(self, *args, **kwargs)
            return stream, await next_item(stream, None, None)

        entered = begin_call(self, name)
        try:
            stream, item = await _begun_async(self, name, call, begin)
            sent = thrown = None
            try:
                async with aclosing(stream):
                    while item is not Stream.ENDED:  # what `yield from` does for a generator
                        try:
                            sent, thrown = (yield item), None
                        except GeneratorExit:
                            raise
                        except BaseException as error:  # noqa: BLE001 - thrown in by the reader, for the user's code
                            thrown = error
                        item = await next_item(stream, sent, thrown)
            except Exception as error:
                call_recovery.judge(self, name, call, error, repeatable=False)
                raise
        finally:
            end_call(self, name, entered)

    return _rayguard_guarded


def _begun(self: object, name: str, call: Method, begin: Callable[[], T]) -> T:
    try:
        return begin()
    except Exception as error:
        rescue = call_recovery.judge(self, name, call, error)
        if rescue is None:
            raise
    return call_recovery.repeat(rescue, begin)


async def _begun_async(self: object, name: str, call: Method, begin: Callable[[], Awaitable[T]]) -> T:
    try:
        return await begin()
    except Exception as error:
        rescue = call_recovery.judge(self, name, call, error)
        if rescue is None:
            raise
    return await call_recovery.repeat_async(rescue, begin)
