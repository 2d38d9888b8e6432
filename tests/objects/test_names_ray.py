"""Who holds what, by name; and views that pin. Real Ray."""

import gc
import re
from typing import ClassVar

import numpy as np
import pytest

from rayguard.objects.holders import name_holders
from rayguard.objects.scope import object_scope
from rayguard.ray_internals.object_refs import core_worker, counts

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

GLOBAL = {}


class Trainer:
    by_class: ClassVar[list] = []

    def __init__(self):
        self.cache = {"weights": []}
        self.latest = None


class Slotted:
    __slots__ = ("ref",)


def closing_over(ref):
    return lambda: ref


def reading(ref):
    yield 1
    yield ref


def name(ref):
    """Return the names of the holders of ``ref``, which is an id: without haste, and without numbers of lines."""
    return [re.sub(r":\d+", "", one) for one in name_holders([ref], deadline_s=60.0)[ref]]


def in_a_global(put):
    GLOBAL["refs"] = [put(1)]
    return GLOBAL["refs"][0].hex(), GLOBAL


def in_an_attribute(put):
    trainer = Trainer()
    trainer.latest = put(1)
    return trainer.latest.hex(), trainer


def deep_in_an_attribute(put):
    trainer = Trainer()
    trainer.cache["weights"].append((3, put(2)))
    return trainer.cache["weights"][0][1].hex(), trainer


def in_a_class(put):
    Trainer.by_class = [put(1)]
    return Trainer.by_class[0].hex(), Trainer


def in_a_slot(put):
    slotted = Slotted()
    slotted.ref = put(1)
    return slotted.ref.hex(), slotted


def in_a_closure(put):
    closed = closing_over(put(1))
    return closed().hex(), closed


def in_a_generator(put):
    ref = put(1)
    running = reading(ref)
    next(running)
    return ref.hex(), running


def in_a_local_list(put):
    local = [put(1)]
    return local[0].hex(), local


HERE = __name__
NAMES = [
    (in_a_global, f"{HERE}.GLOBAL['refs'][...]"),
    (in_an_attribute, "Trainer.latest"),
    (deep_in_an_attribute, "Trainer.cache['weights'][...][...]"),
    (in_a_class, f"{HERE}.Trainer.by_class[...]"),
    (in_a_slot, "Slotted.ref"),
    (in_a_closure, f"ref in the closure of {HERE}.closing_over.<locals>.<lambda>"),
    (in_a_generator, "a variable of the suspended reading"),
    (in_a_local_list, "held in test_holders_have_names_a_person_knows (test_names_ray.py)[...]"),
]


@pytest.mark.parametrize(("make", "expected"), NAMES)
def test_holders_have_names_a_person_knows(fresh, make, expected):
    """Module, attribute, closure, generator, local list."""
    ref, held = make(fresh.put)
    assert name(ref) == [expected]
    del held
    GLOBAL.clear()
    Trainer.by_class = []


def test_a_variable_of_running_code_is_said_to_be_one(fresh):
    """Which one, and where."""
    variable = fresh.put(9)
    ref = variable.hex()
    assert name(ref) == ["variable in test_a_variable_of_running_code_is_said_to_be_one (test_names_ray.py)"]
    del variable


def test_naming_keeps_nothing_alive(fresh):
    """Once the user lets go, the object goes."""
    trainer = Trainer()
    trainer.latest = fresh.put(1)
    ref = trainer.latest.hex()
    name(ref)
    trainer.latest = None
    assert ref not in counts(core_worker())


def test_a_view_that_pins_is_never_touched(fresh):
    """Its reference may end; what it shows stays."""
    trainer = Trainer()
    with object_scope(0, keep_steps=0) as scope:
        refs = [fresh.put(np.full(500_000, 7))]
        trainer.latest = fresh.get(refs[0])
    assert len(scope.ended.ended) == 1
    gc.collect()
    assert (trainer.latest == 7).all()
