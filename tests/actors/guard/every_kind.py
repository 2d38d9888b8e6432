"""Classes of every kind, as users write them; not a word of rayguard. Each test loads copies of this module.

``CALLS``: what is called of each through Ray. ``PLAYS``: what is done with each in a plain process.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import functools
import os
import sys
import threading
import types
from typing import Generic, Protocol, TypeVar, runtime_checkable

import pydantic

T = TypeVar("T")
CALLS = {}
PLAYS = {}


def calls(*wanted):
    """Have these methods called through Ray: a name, or a name and its arguments."""

    def note(cls):
        CALLS[cls.__name__] = [one if isinstance(one, tuple) else (one,) for one in wanted]
        return cls

    return note


def plays(cls):
    """Have the function play with the class in a plain process."""

    def note(play):
        PLAYS.setdefault(cls.__name__, []).append(play)
        return play

    return note


def twice(function):
    """As users write decorators: sync around anything, without a word of what it wraps."""

    def wrapper(*args, **kwargs):
        function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapper


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def awaited(function):
    @functools.wraps(function)
    async def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Callable:
    def __call__(self, *args):
        return ("called with", args)


# -- what a class may hold


@calls("static", "of_class", "wrapped", "both", "lambda_", ("keywords", 1, 2))
class Members:
    half = functools.partial(max, 1)
    length = len
    tool = Callable()
    lambda_ = lambda self: self.n  # noqa: E731

    class Inner:  # noqa: D106
        def method(self):
            return "inner"

    def __init__(self, n=3):
        self.n = n

    @staticmethod
    def static():
        return "static"

    @classmethod
    def of_class(cls):
        return cls.__name__.lower()

    @property
    def made(self):
        return lambda x: x + self.n

    @functools.cached_property
    def cached(self):
        return [self.n]

    @functools.lru_cache  # noqa: B019
    def remembered(self):
        return self.n

    def plain(self, x=1):
        return self.n + x

    more = functools.partialmethod(plain, 10)

    @twice
    def both(self):
        self.n += 1
        return self.n

    @logged
    def wrapped(self):
        return self.n

    @contextlib.contextmanager
    def around(self):
        self.n += 1
        try:
            yield self.n
        finally:
            self.n -= 1

    def keywords(self, name, /, instance=0, *args, call=5, **others):
        return name, instance, args, call, others


@plays(Members)
def members(cls):
    one = cls()
    with one.around() as inside:
        pass
    return (
        *(one.half(0), one.length is len, one.tool(1), one.lambda_(), one.Inner().method(), cls.static()),
        *(one.static(), cls.of_class(), one.made(4), one.cached, one.cached is one.cached, one.remembered()),
        *(one.more(), one.both(), one.wrapped(), inside, one.n),
        *(one.keywords(1, call=2, self=3, name=4, rescue=6), one.keywords(1, 2, 3)),
    )


@calls("begin", "task", "guard", "served", "ended", ("wrap", 1), "name")
class NamesOfOurs:
    def __init__(self, name="n", call="c", instance="i", outermost=None):
        self.values = (name, call, instance, outermost)

    def begin(self):
        return self.values

    def task(self):
        return self.begin()

    def guard(self, *, call=1, name=2, method=3):
        return call, name, method

    def served(self):
        return self._rayguard_guarded()

    def _rayguard_guarded(self):
        return "mine"

    def _rayguard_init(self):
        raise KeyError("mine")

    def ended(self):
        return self._rayguard_init()

    def wrap(self, through):
        return through

    def name(self):
        return "name"


@plays(NamesOfOurs)
def names_of_ours(cls):
    one = cls(call=1, instance=2)
    return one.task(), one.guard(call=0, method=1), one.served(), tried(one.ended), one.wrap(through=2)


class Dispatches:
    """Bare Ray cannot send it: it holds a weak reference."""

    @functools.singledispatchmethod
    def by_type(self, x):
        return "any"

    @by_type.register
    def _(self, x: int):
        return "int"


@plays(Dispatches)
def dispatches(cls):
    return cls().by_type(1), cls().by_type("")


# -- how a class is made


def made_in_a_function():
    seen = []

    class Local:
        def __init__(self):
            seen.append(1)
            self.n = len(seen)

        def count(self):
            seen.append(2)
            return len(seen)

    class Below(Local):
        def count(self):
            return super().count(), __class__.__name__

    Below.__name__ = "MadeInFunction"
    return Below


MadeInFunction = calls("count", "count")(made_in_a_function())


@plays(MadeInFunction)
def local(cls):
    before = cls().n
    return cls().n - before, cls().count()[1]


class Meta(type):
    made: list = []  # noqa: RUF012

    def __new__(mcs, name, bases, space, **kwargs):
        mcs.made.append(name)
        space["stamp"] = kwargs.get("stamp", "none")
        return super().__new__(mcs, name, bases, space)

    def __init__(cls, name, bases, space, **kwargs):
        super().__init__(name, bases, space)

    def __call__(cls, *args, **kwargs):
        one = super().__call__(*args, **kwargs)
        one.through = "meta"
        return one

    def __dir__(cls):
        return [*super().__dir__(), "no_such_method"]

    def __getattr__(cls, name):
        if name == "anything":
            return lambda *_: f"made up {name}"
        raise AttributeError(name)

    def __len__(cls):
        return 0


@calls("get", "get")
class ByMeta(metaclass=Meta, stamp="mine"):
    def __init__(self):
        self.n = 0

    def get(self):
        self.n += 1
        return self.n, self.stamp, type(self).anything()


@plays(ByMeta)
def by_meta(cls):
    one = cls()
    return one.get(), one.through, cls.anything(), sum(name == "ByMeta" for name in Meta.made)


class MetaTouchy(type):
    """Bare Ray compares what it makes."""

    def __eq__(cls, other):
        raise RuntimeError("compared")

    __hash__ = type.__hash__


class Incomparable(metaclass=MetaTouchy):
    def get(self):
        return 1


@plays(Incomparable)
def incomparable(cls):
    return cls().get()


class Registry:
    known: list = []  # noqa: RUF012

    def __init_subclass__(cls, *, key="none", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.key = key
        Registry.known.append(key)

    def __class_getitem__(cls, item):
        return f"{cls.__name__}[{item}]"


@calls("which")
class Registered(Registry, key="first"):
    def which(self):
        return self.key


@plays(Registered)
def registered(cls):
    class Below(cls, key="below"):
        pass

    return Below().which(), cls().which(), Registry.known.count("first"), cls[int][:10]


# -- bases


@calls("get", ("add", 2))
class Slots:
    __slots__ = ("n",)

    def __init__(self, n=1):
        self.n = n

    def add(self, x):
        self.n += x
        return self.n

    def get(self):
        return self.n, hasattr(self, "__dict__")


@calls("get", ("add", 2))
@dataclasses.dataclass(slots=True)
class DataSlots:
    n: int = 1
    items: list = dataclasses.field(default_factory=list)

    def add(self, x):
        self.n += x
        return self.n

    def get(self):
        return self.n, self.items


@plays(Slots)
@plays(DataSlots)
def slots(cls):
    one = cls(4)
    return one.add(3), one.get(), tried(setattr, one, "other", 1)


@calls("get")
@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    n: int = 1

    def get(self):
        return self.n, dataclasses.replace(self, n=5).n, dataclasses.asdict(self)

    def __post_init__(self):
        object.__setattr__(self, "_late", 2)


@plays(Frozen)
def frozen(cls):
    return (
        cls(2).get(),
        cls(2) == cls(2),
        cls(1) < cls(2),
        cls(7)._late,
        tried(setattr, cls(), "n", 1),
        repr(cls()),
    )


class Abstract(abc.ABC):
    def __init__(self, n=2):
        self.n = n

    @abc.abstractmethod
    def must(self): ...

    @property
    @abc.abstractmethod
    def prop(self): ...

    def shared(self):
        return self.must() + self.prop


@calls("must", "shared")
class Concrete(Abstract):
    def must(self):
        return self.n

    prop = property(lambda self: 40)


@plays(Concrete)
def concrete(cls):
    class Still(cls):
        @abc.abstractmethod
        def must(self): ...

    return cls().shared(), tried(Still), Still.__abstractmethods__


@runtime_checkable
class Steps(Protocol):
    def step(self): ...


class Base(Generic[T]):
    def __init__(self, n=5):
        self.n = n


@calls("step")
class OfProtocol(Steps, Base[int]):
    """The protocol comes first, so that its own ``__init__`` must find the one of ``Base``."""

    def step(self):
        return self.n


@plays(OfProtocol)
def of_protocol(cls):
    return cls().step(), cls(7).step(), isinstance(cls(), Steps), cls.__mro__[1:] == OfProtocol.__mro__[1:]


@calls("only")
class OfGeneric(Generic[T]):
    def only(self):
        return 1


@plays(OfGeneric)
def of_generic(cls):
    return cls[int]().only(), repr(cls[int]).partition("[")[2]


@calls("total", ("with_", 4))
class Model(pydantic.BaseModel):
    n: int = 1
    _kept: int = pydantic.PrivateAttr(3)

    @pydantic.field_validator("n")
    @classmethod
    def _positive(cls, n):
        if n < 0:
            raise ValueError("negative")
        return n

    def total(self):
        return self.n + self._kept

    def with_(self, n):
        return self.model_copy(update={"n": n}).total()


@plays(Model)
def model(cls):
    one = cls(n="4")
    return (
        one.total(),
        one.with_(5),
        one.model_dump(),
        cls.model_validate({"n": 2}).n,
        repr(cls(n=3)),
        (
            tried(cls, n=-1)[0],
            cls.model_json_schema()["properties"],
            cls(n=1) == cls(n=1),
        ),
    )


@calls("start_count")
class Threadlike(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.n = 0

    def run(self):
        self.n += 1

    def start_count(self):
        self.start()
        self.join(10)
        return self.n


@calls(("put", "a"), "size")
class Mapping(dict):
    def put(self, key):
        self[key] = 1
        return dict(self)

    def size(self):
        return len(self)


@plays(Threadlike)
def threadlike(cls):
    return cls().start_count()


@plays(Mapping)
def mapping(cls):
    return cls({"b": 2}).put("a"), cls().size()


# -- what an object may do


@calls("get", "made_up_of_it")
class MakesUp:
    def __init__(self):
        self.seen = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args: f"made up {name}"

    def get(self):
        return self.anything()

    def made_up_of_it(self):
        return self.state_dict(), self.load_state_dict(1)


@plays(MakesUp)
def makes_up(cls):
    one = cls()
    return one.get(), one.made_up_of_it(), one.other(1)


class Touchy:
    """Nothing may compare it, ask whether it is true, or hash it; bare Ray asks the class for attributes."""

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None

    def __bool__(self):
        raise RuntimeError("asked")

    def __len__(self):
        raise RuntimeError("counted")

    def __repr__(self):
        raise RuntimeError("shown")

    def __getattribute__(self, name):
        if name not in {"get", "fail", "__class__", "__dict__"}:
            raise RuntimeError(f"asked for {name}")
        return object.__getattribute__(self, name)

    def get(self):
        return 1

    def fail(self):
        raise KeyError("mine")


@plays(Touchy)
def touchy(cls):
    return cls().get(), tried(cls().fail)


@calls("__call__", "get")
class Called:
    def __init__(self):
        self.n = 0

    def __call__(self, x=1):
        self.n += x
        return self.n

    def __enter__(self):
        return self()

    def __exit__(self, *_):
        self.n = 0

    def __getitem__(self, key):
        return key

    def __iter__(self):
        yield from (1, 2)

    def get(self):
        return self.n


@plays(Called)
def called(cls):
    one = cls()
    with one as entered:
        again = one(2)
    return entered, again, one.get(), one["a"], list(one)


# -- starting


@calls("add", ("add", 3))
class StartsAsync:
    async def __init__(self, start=5):
        await asyncio.sleep(0.01)
        self.n = start

    async def add(self, x=1):
        self.n += x
        return self.n


@calls("add", ("add", 3))
class InheritsAsyncStart(StartsAsync):
    async def more(self):
        return await self.add(10)


@calls("add")
class SuperAsyncStart(StartsAsync):
    async def __init__(self):
        await super().__init__(7)
        self.n += 1


@plays(StartsAsync)
@plays(InheritsAsyncStart)
@plays(SuperAsyncStart)
def starts_async(cls):
    async def run():
        one = cls.__new__(cls)
        await one.__init__()
        return await one.add()

    return asyncio.run(run())


@calls("get")
class FailsToStart:
    def __init__(self):
        raise LookupError("no licence")

    def get(self):
        return 1


@calls("get")
class ExitsAtStart:
    def __init__(self):
        sys.exit("gone")

    def get(self):
        return 1


@calls("get")
class ReturnsFromInit:
    def __init__(self, n=1):
        self.n = n
        return self.n  # noqa: PLE0101 - what Python says of it is Python's

    def get(self):
        return self.n


@plays(FailsToStart)
@plays(ExitsAtStart)
@plays(ReturnsFromInit)
def fails_to_start(cls):
    return tried(cls)


@calls("get")
class New:
    def __new__(cls, *args):
        one = super().__new__(cls)
        one.n = len(args)
        return one

    def get(self):
        return self.n


@plays(New)
def new(cls):
    return cls(1, 2).get(), cls().get()


# -- ending


@calls("get", "exit", "get")
class ExitsInMethod:
    def get(self):
        return 1

    def exit(self):
        sys.exit(3)


@calls("get", "exit", "get")
class DiesInMethod:
    def get(self):
        return 1

    def exit(self):
        os._exit(3)


@calls("get", "exit", "get")
class ExitsInAsyncMethod:
    async def get(self):
        return 1

    async def exit(self):
        sys.exit(3)


@plays(ExitsInMethod)
def exits(cls):
    one = cls()
    return one.get(), tried(one.exit), one.get()


@calls("interrupt", "get")
class RaisesStranger:
    """Errors that are none of ``Exception``, and those by which Python steers."""

    def interrupt(self):
        raise KeyboardInterrupt("mine")

    def stop(self):
        raise StopIteration("mine")

    def generator_exit(self):
        raise GeneratorExit("mine")

    def group(self):
        raise CustomError("a", 2)

    def get(self):
        return 1


class CustomError(BaseException):
    def __init__(self, a, b):
        super().__init__(a, b)


@plays(RaisesStranger)
def raises_stranger(cls):
    one = cls()
    return tried(one.interrupt), tried(one.stop), tried(one.generator_exit), tried(one.group), one.get()


# -- streams and coroutines


@calls("list_", "get")
class Streams:
    def __init__(self):
        self.said = []

    def get(self):
        return self.said

    def list_(self):
        return list(self.count(2))

    def count(self, n):
        self.said.append("began")
        try:
            for x in range(n):
                try:
                    got = yield x
                    self.said.append(got)
                except BaseException as error:  # noqa: PERF203
                    self.said.append(type(error).__name__)
                    if isinstance(error, GeneratorExit):
                        raise
        finally:
            self.said.append("over")
        return "returned"

    async def acount(self, n):
        self.said.append("began")
        try:
            for x in range(n):
                try:
                    got = yield x
                    self.said.append(got)
                except BaseException as error:  # noqa: PERF203
                    self.said.append(type(error).__name__)
                    if isinstance(error, GeneratorExit):
                        raise
        finally:
            self.said.append("over")

    def once(self):
        self.said.append("in")
        try:
            yield 1
        except LookupError:
            self.said.append("caught")

    @types.coroutine
    def old(self):
        got = yield "old"
        return got

    async def awaits_old(self):
        return await self.old()

    @awaited
    def made_async(self):
        return 4

    @logged
    async def looks_sync(self):
        await asyncio.sleep(0)
        return 5

    @contextlib.asynccontextmanager
    async def around(self):
        yield 6


@plays(Streams)
def streams(cls):
    one = cls()
    never = one.count(3)
    never.close()
    stream = one.count(5)
    got = [next(stream), stream.send("a"), stream.throw(KeyError("x"))]
    got.append(stream.throw(KeyboardInterrupt, KeyboardInterrupt("y"), None))
    stream.close()
    with contextlib.contextmanager(one.once)() as entered:
        raise LookupError("within")
    ended = one.count(0)
    got += [tried(next, ended), list(one.count(2)), tried(one.count(1).throw, KeyError("z"))]
    return got, entered, one.said


@plays(Streams)
def async_streams(cls):
    one = cls()

    async def run():
        never = one.acount(3)
        await never.aclose()
        stream = one.acount(9)
        got = [await stream.asend(None), await stream.asend("a"), await stream.athrow(KeyError("x"))]
        got.append(await stream.athrow(asyncio.CancelledError("y")))
        got.append(await stream.athrow(KeyboardInterrupt("y")))
        await stream.aclose()
        got.append([x async for x in one.acount(2)])
        async with one.around() as around:
            got.append(around)
        got += [await one.made_async(), await one.looks_sync()]
        left = one.acount(2)
        async for _ in left:
            break
        got.append(await anext(left))
        got.append(await atried(anext(left)))
        return got, one.said

    return asyncio.run(run())


@plays(Streams)
def old_coroutines(cls):
    coroutine = cls().awaits_old()
    return coroutine.send(None), tried(coroutine.send, "answer")


def tried(do, *args, **kwargs):
    """Return what came of it, or of what type its error is and what it says."""
    try:
        return do(*args, **kwargs)
    except BaseException as error:
        return type(error).__name__, str(error)


async def atried(awaitable):
    try:
        return await awaitable
    except BaseException as error:
        return type(error).__name__, str(error)
