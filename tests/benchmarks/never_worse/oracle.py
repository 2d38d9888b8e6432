"""What may become of a program under rayguard, given what became of it without. Pure.

An answer is *right* where every step that its actor has acknowledged is in it, once, no other than those that
were sent, and where what else the actor holds (weights, an optimizer) is what those steps give without faults.
Else it is *anew*: no order of a program without faults gives it. An error is *loud*. With rayguard, each call
ends as it did without, or better: right > loud > anew > hung. Where Ray began an actor anew because its user
asked for that, an incident says so, one for each time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.benchmarks.never_worse.program import Program

STATE_LOST = "state_lost"  # the outcome of an incident that tells of an actor begun anew


class Came(IntEnum):
    """How a call ended, from worst to best."""

    HUNG = 0
    ANEW = 1
    LOUD = 2
    RIGHT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a program's run under rayguard is, beside the bare ones."""

    worse: tuple[str, ...] = field(default=())
    silent: tuple[str, ...] = field(default=())
    hung: tuple[str, ...] = field(default=())
    better: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing is to be said against it."""
        return not (self.worse or self.silent or self.hung)


class Oracle:
    """``digest_after`` says what an actor with weights holds after these steps, in this order; None: not looked at."""

    def __init__(self, digest_after: Callable[[tuple[int, ...]], str] | None = None) -> None:
        self._digest_after = digest_after

    def judged(self, program: Program, answers: Sequence[dict[str, Any]]) -> list[Came]:
        """Say of each call how it ended."""
        acknowledged: dict[int, set[int]] = {n: set() for n in range(len(program.actors))}
        sent: dict[int, set[int]] = {}
        found: list[Came] = []
        for together in program.rounds():
            for call in together:
                sent.setdefault(call.actor, set()).add(call.number)
            ended = answers[len(found) : len(found) + len(together)]
            came = []
            for call, answer in zip(together, ended, strict=True):
                known = acknowledged.get(call.actor, set())
                came.append(self._came(answer, call.number, known, sent[call.actor]))
            for call, one in zip(together, came, strict=True):
                if one is Came.ANEW:
                    acknowledged.get(call.actor, set()).clear()  # what was lost is lost once
                if call.actor >= 0 and one in {Came.ANEW, Came.RIGHT}:
                    acknowledged[call.actor].add(call.number)
            found += came
        return found

    def _came(self, answer: dict[str, Any], number: int, known: set[int], sent: set[int]) -> Came:
        if answer["outcome"] != "value":
            return Came.HUNG if answer["outcome"] == "hung" else Came.LOUD
        value, digest = answer["value"], answer["digest"]
        steps = set(value)
        whole = len(steps) == len(value) and number in steps and known <= steps <= sent
        if digest and self._digest_after is not None:
            whole = whole and digest == self._digest_after(tuple(value))
        return Came.RIGHT if whole else Came.ANEW

    def begun_anew(self, program: Program, answers: Sequence[dict[str, Any]]) -> Counter[int]:
        """Return how often each actor was seen to have begun anew.

        Answers of one round that are parts of each other came from one life.
        """
        judged, found = iter(zip(answers, self.judged(program, answers), strict=True)), Counter[int]()
        for together in program.rounds():
            lives: dict[int, list[set[int]]] = {}
            ended = [(call, *next(judged)) for call in together]
            for call, answer, came in sorted(ended, key=lambda one: -len(one[1].get("value") or ())):
                if came is Came.ANEW:
                    mine, seen = lives.setdefault(call.actor, []), set(answer["value"])
                    mine += [] if any(seen <= other for other in mine) else [seen]
            found.update({actor: len(mine) for actor, mine in lives.items()})
        return found

    def compared(self, program: Program, bare: Sequence[dict[str, Any]], ours: dict[str, Any]) -> Finding:
        """Compare the run under rayguard with the bare ones: what any of these gave is allowed."""
        worse, silent, hung, better = [], [], [], 0
        was_then = [self.judged(program, one["answers"]) for one in bare]
        told = Counter(one["actor"] for one in ours["incidents"] if one["outcome"] == STATE_LOST)
        untold = self.begun_anew(program, ours["answers"]) - told
        for number, came in enumerate(self.judged(program, ours["answers"])):
            call, answer = program.calls[number], ours["answers"][number]
            was = min(one[number] for one in was_then)
            what = f"call {call.number} to {call.actor}: {was.name} -> {came.name} {_short(answer)}"
            if came is Came.HUNG and was is not Came.HUNG:
                hung.append(what)
            elif came is Came.ANEW and (was > Came.ANEW or untold[call.actor]):
                silent.append(what if was > Came.ANEW else f"{what}, not told")
            elif came < was:
                worse.append(what)
            better += came > max(one[number] for one in was_then)
        return Finding(worse=tuple(worse), silent=tuple(silent), hung=tuple(hung), better=better)


def _short(answer: dict[str, Any]) -> str:
    return f"({answer.get('value', answer.get('error', ''))} {answer.get('said', '')[:120]})"
