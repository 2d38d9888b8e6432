"""Actors and tasks of a user who has never heard of rayguard, and one that is guarded: all of them can die."""

import ctypes
import os
import signal
import sys
import threading
import time

import ray

import rayguard


class Mortal:
    """Ends as it is told."""

    def __init__(self):
        self.held = []

    def pid(self):
        return os.getpid()

    def end(self, how):
        ENDS[how]()

    def fork(self, seconds):
        """Leave a child that holds this process's connection to Ray."""
        child = os.fork()
        if child == 0:
            threading.Event().wait(seconds)
            os._exit(0)
        return child

    def turn(self, seconds=0.0, over=None):
        """Take no longer than usual, or wait for what never comes: until there is the file ``over``."""
        pause, until = threading.Event(), time.monotonic() + seconds
        while time.monotonic() < until and not (over and over.exists()):
            pause.wait(0.5 if over else seconds)

    def eat(self, size):
        self.held.append(b"x" * size)


class Stillborn:
    def __init__(self):
        raise ValueError("no such model: gpt-0")


Guarded = rayguard.guard(state="none", idempotent=True)(type("Guarded", (Mortal,), {"__module__": __name__}))


def _crash():
    ctypes.string_at(0)


ENDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "crash": _crash,
    "sys.exit": lambda: sys.exit(4),
    "wish": ray.actor.exit_actor,
    "done": lambda: sys.exit(0),
}


def work(how=""):
    """Be a task."""
    if how:
        ENDS[how]()
    return os.getpid()
