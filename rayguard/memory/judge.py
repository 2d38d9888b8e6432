"""What the samples of one process mean for it: what is short or soon will be, and how much must come back.

Pure but for what it remembers of earlier samples. Who feeds it is ``watcher``, what is done about a concern
is decided by ``relief``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayguard.memory.forecast import Forecast, Trend
from rayguard.memory.pressure import Pressure, Thresholds, below_ray, defaults, pressure
from rayguard.memory.reading import MemorySample, Quantity, Reading
from rayguard.memory.relief import MIB, Need

_WARM_S = 30.0  # of a process that knows no steps
_WARM_STEPS = 1
_LEAST = 32 * MIB  # what a relief must be good for
_OTHERS = (Quantity.STORE, Quantity.SHM, Quantity.DISK)
_NAMES = {
    Quantity.PRIVATE: "the memory of this process",
    Quantity.ENGINE: "the memory of its engine",
    Quantity.NODE: "the node's memory",
    Quantity.STORE: "Ray's object store",
    Quantity.SHM: "shared memory",
    Quantity.DISK: "the disk",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What counts as short, as ``MemoryPolicy`` says it. ``node``: None for just below where Ray kills."""

    node: Thresholds | None = None
    process_limit: int | None = None
    horizon_s: float = 60.0
    horizon_steps: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One thing that is short or will be, and what this process needs because of it."""

    quantity: Quantity
    need: Need
    why: str
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeState:
    """How a process stands. ``private``: its own bytes; ``engine``: its engine's; ``grown``: since warm."""

    at: float = 0.0
    step: int = -1
    private: int = 0
    engine: int = 0
    grown: int = 0
    concerns: tuple[Concern, ...] = ()
    forecast: Forecast | None = None  # the earliest that was made, within the horizon or not

    @property
    def pressure(self) -> Pressure:
        """The highest there is."""
        return max((concern.need.pressure for concern in self.concerns), default=Pressure.OK)


class _Growth:
    """How much something has grown since it was warm."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._low: int | None = None

    def of(self, sample: MemorySample, used: int, *, steps: bool = True) -> int:
        """Take ``used`` bytes in; return by how much that is more than the least there was."""
        if self._began is None:
            self._began = sample.at
        stepped = steps and sample.step >= 0
        warm = sample.step >= _WARM_STEPS if stepped else sample.at - self._began > _WARM_S
        if not used or not warm:
            return 0
        self._low = used if self._low is None else min(self._low, used)
        return used - self._low


class _EngineCourse:
    """The course of an engine's memory, which begins anew with each life of it."""

    def __init__(self) -> None:
        self.used = self.grown = 0
        self.trend, self._growth = Trend(Quantity.ENGINE), _Growth()
        self._life = ""

    def seen(self, sample: MemorySample) -> Reading | None:
        """Take in what ``sample`` says of the engine, and return that."""
        reading = next((r for r in sample.readings if r.quantity is Quantity.ENGINE), None)
        if reading is not None:
            self._add(sample, reading)
        return reading

    def _add(self, sample: MemorySample, reading: Reading) -> None:
        if reading.who != self._life:
            self._life, self._growth = reading.who, _Growth()
            self.trend.forget()
        self.used = reading.used
        self.grown = self._growth.of(sample, reading.used, steps=False)  # a new one is cold at any step
        self.trend.add(sample.at, sample.step, reading.used)


class Judge:
    """Makes ``JudgeState`` of samples. ``kills_at``: node bytes in use at which Ray kills, None: never."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._own, self._node = Trend(Quantity.PRIVATE), Trend(Quantity.NODE)
        self._growth, self._engine = _Growth(), _EngineCourse()
        self._before: dict[tuple[Quantity, str], Pressure] = {}

    def feed(self, sample: MemorySample, kills_at: int | None) -> JudgeState:
        """Take a sample in and say how things stand."""
        private = sum(r.used for r in sample.readings if r.quantity is Quantity.PRIVATE)
        grown = self._growth.of(sample, private)
        if private:
            self._own.add(sample.at, sample.step, private)
        engine = self._engine.seen(sample)
        concerns, forecasts = [], []
        for reading in sample.readings:
            if reading.quantity is Quantity.NODE and reading.limit:
                limit = min(kills_at or reading.limit, reading.limit) if not reading.who else reading.limit
                if not reading.who:
                    self._node.add(sample.at, sample.step, reading.used)
                concern, forecast = self._of_node(reading, limit, private, grown)
                concerns.append(concern)
                forecasts.append(forecast)
                if engine is not None:
                    concern, forecast = self._of_engine(engine, reading, limit, grown)
                    concerns.append(concern)
                    forecasts.append(forecast)
            elif reading.quantity in _OTHERS:
                concerns.append(self._full(reading, defaults(reading.quantity), grown))
        if self._bounds.process_limit:
            own = Reading(quantity=Quantity.PRIVATE, used=private, limit=self._bounds.process_limit)
            concern = self._full(own, defaults(Quantity.PRIVATE), grown)
            forecast = self._own.forecast(self._bounds.process_limit)
            concerns += [concern, self._foreseen(own, forecast, grown, self._bounds.process_limit)]
            forecasts.append(forecast)
        found = sorted((c for c in concerns if c is not None), key=lambda c: -c.need.pressure)
        soonest = min((f for f in forecasts if f is not None), key=lambda f: f.in_s, default=None)
        return JudgeState(
            at=sample.at,
            step=sample.step,
            private=private,
            engine=self._engine.used,
            grown=grown,
            concerns=tuple(found),
            forecast=soonest,
        )

    def relieved(self) -> None:
        """Forget the trend: what was given back would look like a course of its own."""
        self._own.forget()
        self._node.forget()
        self._engine.trend.forget()

    def _of_node(
        self, reading: Reading, limit: int, private: int, grown: int
    ) -> tuple[Concern | None, Forecast | None]:
        """Judge the node, by its course, and by this process's alone: how long until it fills the rest."""
        thresholds = self._bounds.node or below_ray(max(0.1, limit / (reading.limit or limit)))
        concern = self._full(reading, thresholds, grown)
        room = max(0, limit - reading.used)
        forecast = self._own.forecast(private + room)
        if forecast is None and not reading.who:
            forecast = self._node.forecast(limit)
        return concern or self._foreseen(reading, forecast, grown, limit), forecast

    def _of_engine(
        self, engine: Reading, node: Reading, limit: int, grown: int
    ) -> tuple[Concern | None, Forecast | None]:
        """Judge the engine by its own course: how long until it fills what is left of the node."""
        room = max(0, limit - node.used)
        forecast = self._engine.trend.forecast(engine.used + room)
        return self._foreseen(engine, forecast, grown, engine.used + room), forecast

    def _full(self, reading: Reading, thresholds: Thresholds, grown: int) -> Concern | None:
        key = reading.quantity, reading.who
        level = self._before[key] = pressure(reading, thresholds, self._before.get(key, Pressure.OK))
        if level is Pressure.OK or reading.limit is None:
            return None
        wanted = max(_LEAST, reading.used - int((thresholds.soft - thresholds.slack) * reading.limit))
        name = _NAMES.get(reading.quantity, reading.quantity.value)
        where = f" ({reading.who})" if reading.who else ""
        why = f"{name}{where} is {reading.used / reading.limit:.0%} full"
        return Concern(
            quantity=reading.quantity, need=self._need(grown, wanted=wanted, pressure=level), why=why
        )

    def _foreseen(
        self, reading: Reading, forecast: Forecast | None, grown: int, limit: int
    ) -> Concern | None:
        if forecast is None or not self._is_soon(forecast):
            return None
        until = forecast.slope_per_s * self._bounds.horizon_s
        least = self._engine.grown if reading.quantity is Quantity.ENGINE else grown
        wanted = max(_LEAST, int(min(until, max(0.0, reading.used + until - limit))), least // 2)
        need = self._need(grown, wanted=wanted, soon=True)
        return Concern(quantity=reading.quantity, need=need, why=forecast.sentence(), forecast=forecast)

    def _is_soon(self, forecast: Forecast) -> bool:
        if forecast.in_steps is None:
            return forecast.in_s <= self._bounds.horizon_s
        return forecast.in_steps <= self._bounds.horizon_steps

    def _need(self, grown: int, *, wanted: int, pressure: Pressure = Pressure.OK, soon: bool = False) -> Need:
        return Need(pressure=pressure, soon=soon, wanted=wanted, grown=grown, engine_grown=self._engine.grown)
