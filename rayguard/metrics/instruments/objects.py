"""What is measured of references to objects: a part of ``rayguard.metrics.instruments.process``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.metrics.instruments.instrument import Instrument, counter, gauge, one

if TYPE_CHECKING:
    from rayguard.objects.holdings import Holdings


OBJECT_INSTRUMENTS: tuple[Instrument[Holdings], ...] = (
    gauge(
        "rayguard_objects_held",
        "Objects held by the process that was seen making them, as of its last pass; 0 without scopes.",
        one(lambda holdings: len(holdings.objects)),
        unit="objects",
    ),
    gauge(
        "rayguard_objects_waiting",
        "Objects that outlived their scope and were left alone at the end of the last one: in use.",
        one(lambda holdings: holdings.totals.waiting),
        unit="objects",
    ),
    counter(
        "rayguard_objects_freed_total",
        "Objects whose references were ended with their scope, in the process that held them.",
        one(lambda holdings: holdings.totals.ended),
        unit="objects",
    ),
    counter(
        "rayguard_objects_freed_bytes_total",
        "Bytes of the objects whose references were ended, where Ray told their size.",
        one(lambda holdings: holdings.totals.ended_bytes),
    ),
    counter(
        "rayguard_actor_handles_freed_total",
        "Actor handles that were ended with their scope.",
        one(lambda holdings: holdings.totals.handles_ended),
        unit="handles",
    ),
)
