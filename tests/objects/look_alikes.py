"""References that look like leaks and are not: each is offered to a scope's end, and must still be readable.

Each function makes one, within a scope that ends everything at once (``keep_steps=0``), and returns a check to
be called after the end. ``number`` is what must come back.
"""

import asyncio
import copy
import functools
import queue
import threading

import numpy as np


def array(number):
    return np.full(20_000, number, dtype=np.int64)


class Borrower:
    """An actor that keeps what it is lent."""

    def __init__(self):
        self.kept = {}

    def keep(self, name, refs):
        self.kept[name] = refs
        return True

    def read(self, name):
        import ray

        return int(ray.get(self.kept.pop(name)[0])[0])

    def nested(self, number):
        import ray

        return [ray.put(array(number))]


class Bench:
    """What the makers need: Ray, a borrower, a task that waits, a scope to keep with, and data that leaks."""

    def __init__(self, ray):
        self.ray = ray
        self.borrower = ray.remote(num_cpus=0)(Borrower).remote()
        self.first = ray.remote(num_cpus=0)(lambda value, gate=None: int(value[0]))
        self.cache = []  # what leaks: a plain list
        self.scope = None
        self.outside = None
        self.names = iter(range(10**9))
        self.stop = threading.Event()
        self.threads = []

    def leak(self, ref):
        self.cache.append(ref)
        return ref

    def same(self, ref, number):
        return lambda: int(self.ray.get(ref)[0]) == number  # the check itself is a closure over the reference


def closure(bench, number):
    return bench.same(bench.ray.put(array(number)), number)


def closure_and_list(bench, number):
    return bench.same(bench.leak(bench.ray.put(array(number))), number)


def copied_into_a_closure(bench, number):
    return bench.same(copy.copy(bench.leak(bench.ray.put(array(number)))), number)


def view(bench, number):
    seen = bench.ray.get(bench.leak(bench.ray.put(array(number))))
    return lambda: bool((seen == number).all())


def view_of_a_part(bench, number):
    seen = bench.ray.get(bench.leak(bench.ray.put({"a": [array(number)]})))["a"][0][5:10]
    return lambda: bool((seen == number).all())


def argument_in_flight(bench, number):
    result = bench.first.remote(bench.leak(bench.ray.put(array(number))))
    return lambda: bench.ray.get(result) == number


def borrowed(bench, number):
    name = next(bench.names)
    bench.ray.get(bench.borrower.keep.remote(name, [bench.leak(bench.ray.put(array(number)))]))
    borrower, ray = bench.borrower, bench.ray
    return lambda: ray.get(borrower.read.remote(name)) == number


def inside_another_object(bench, number):
    outer = bench.ray.put([bench.leak(bench.ray.put(array(number)))])
    return lambda: int(bench.ray.get(bench.ray.get(outer)[0])[0]) == number


def inside_an_actor_answer(bench, number):
    ray = bench.ray
    answer = bench.borrower.nested.remote(number)
    bench.leak(ray.get(answer)[0])
    return lambda: int(ray.get(ray.get(answer)[0])[0]) == number


def generator(bench, number):
    def read(ref):
        yield None
        yield int(bench.ray.get(ref)[0])

    running = read(bench.ray.put(array(number)))
    next(running)
    return lambda: next(running) == number


def generator_over_a_list(bench, number):
    def read(refs):
        yield None
        for ref in refs:
            yield int(bench.ray.get(ref)[0])

    running = read([bench.ray.put(array(number))])
    next(running)
    return lambda: next(running) == number


def iterator(bench, number):
    refs = iter([bench.ray.put(array(number))])
    return lambda: int(bench.ray.get(next(refs))[0]) == number


def coroutine(bench, number):
    async def read(refs):
        await asyncio.sleep(0)
        return int(bench.ray.get(refs[0])[0])

    waiting = read([bench.ray.put(array(number))])
    waiting.send(None)

    def check():
        try:
            waiting.send(None)
        except StopIteration as stop:
            return stop.value == number

    return check


def dict_key(bench, number):
    names = {bench.ray.put(array(number)): number}
    return lambda: all(int(bench.ray.get(ref)[0]) == names[ref] == number for ref in list(names))


def member_of_a_set(bench, number):
    pending = {bench.ray.put(array(number))}

    def check():
        ref = next(iter(pending))
        pending.remove(ref)
        return int(bench.ray.get(ref)[0]) == number

    return check


def key_of_a_tuple(bench, number):
    names = {(number, bench.ray.put(array(number))): number}
    return lambda: all(int(bench.ray.get(key[1])[0]) == names[key] for key in list(names))


def partial(bench, number):
    read = functools.partial(bench.ray.get, bench.ray.put(array(number)))
    return lambda: int(read()[0]) == number


def partial_of_a_list(bench, number):
    read = functools.partial(bench.ray.get, [bench.ray.put(array(number))])
    return lambda: int(read()[0][0]) == number


def future(bench, number):
    waiting = bench.ray.put(array(number)).future()
    return lambda: int(waiting.result(timeout=30)[0]) == number


def queued(bench, number):
    todo = queue.Queue()
    todo.put(bench.ray.put(array(number)))
    return lambda: int(bench.ray.get(todo.get_nowait())[0]) == number


def thread_works_with_it(bench, number):
    found, started = [], threading.Event()
    ray, stop = bench.ray, bench.stop

    def work(refs):
        started.set()
        stop.wait(120)
        found.append(int(ray.get(refs[0])[0]))

    thread = threading.Thread(target=work, args=([ray.put(array(number))],), daemon=True)
    thread.start()
    started.wait(30)

    def check():
        stop.set()
        thread.join(60)
        return found == [number]

    return check


def kept(bench, number):
    held = [bench.scope.keep(bench.ray.put(array(number)))]
    return lambda: int(bench.ray.get(held[0])[0]) == number


def kept_in_data(bench, number):
    place = len(bench.cache)
    bench.cache.append(bench.scope.keep({"a": (bench.ray.put(array(number)),)}))
    return lambda: int(bench.ray.get(bench.cache[place]["a"][0])[0]) == number


def made_before(bench, number):
    held = bench.outside
    return lambda: int(bench.ray.get(held[number])[0]) == number


def made_by_an_unknown_thread(bench, number):
    held = []
    thread = threading.Thread(target=lambda: held.append(bench.ray.put(array(number))))
    thread.start()
    thread.join()
    return lambda: int(bench.ray.get(held[0])[0]) == number


MAKERS = [
    value
    for value in list(globals().values())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and getattr(value, "__code__", None) is not None
    and value.__code__.co_varnames[:2] == ("bench", "number")
]
