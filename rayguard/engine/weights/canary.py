"""A canary: what an engine answers to one short fixed greedy prompt, and what that says of its weights.

Pure. A receipt proves which bytes arrived; a canary shows what became of them: a model that samples from
NaN, or answers otherwise than before, or than its peers, with the same weights. Asking is each adapter's
``Engine.canary``; when it is asked and what follows is ``canaries``.

What it cannot see: damage too small to move a log-probability of these few tokens by the tolerance, and
damage that was there from the first answer on, where no other engine that answers has the same weights.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROMPT = (3, 5, 7, 11, 13, 17, 19, 23)  # in every vocabulary; shorter than a block of any prefix cache
TOKENS = 4  # each takes a step of the engine, in each push
LIKELY = 5  # alternatives told for each token, where the engine tells so many
_CERTAIN, _EVEN = -0.01, 1e-4  # nats

Position = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Canary:
    """What one engine answered.

    ``positions`` holds for each generated token its id and log-probability (nats), then those of the
    likeliest others; tokens alone where it is ``bare``. ``error`` is what the engine said in place of a whole
    answer. ``ranks``: what the other data-parallel ranks of the engine answered, if it has some.
    """

    positions: tuple[Position, ...] = ()
    error: str = ""
    bare: bool = False
    ranks: tuple[Canary, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that it generated."""
        return tuple(position[0][0] for position in self.positions)


def of_ranks(answers: Sequence[Canary | None]) -> Canary | None:
    """Return the answer of an engine whose data-parallel ranks gave ``answers``; None where one gave none."""
    known = [answer for answer in answers if answer is not None]
    return replace(known[0], ranks=tuple(known[1:])) if known and len(known) == len(answers) else None


def torn(answer: Canary, tolerance: float) -> str:
    """Say which rank answers otherwise than the first; an empty text where all agree."""
    for rank, other in enumerate(answer.ranks, start=1):
        if why := disagreement(other, answer, tolerance):
            return f"its data-parallel rank {rank} answers otherwise than rank 0: {why}"
    return ""


def sick(answer: Canary) -> str:
    """Say why no engine may serve that answers so, whatever others answer; an empty text if it may."""
    for rank, other in enumerate(answer.ranks, start=1):
        if why := sick(other):
            return f"{why} (data-parallel rank {rank})"
    if answer.error:
        return f"the engine answers with an error: {answer.error}"
    if not answer.positions:
        return "the engine answers without a token"
    for number, position in enumerate(answer.positions, start=1):
        # An alternative may be forbidden (-inf); what was sampled never is, and nothing is NaN.
        if not math.isfinite(position[0][1]) or any(math.isnan(logprob) for _, logprob in position):
            return f"token {number} of its answer has log-probability {_worst(position)}"
    return ""


def absurd(answer: Canary) -> bool:
    """Say whether each token is as good as certain, or none is likelier than another: weights say nothing."""
    likeliest = [[logprob for _, logprob in position[: LIKELY + 1]] for position in answer.positions]
    certain = all(logprobs[0] > _CERTAIN for logprobs in likeliest)
    even = all(len(logprobs) > 1 and max(logprobs) - min(logprobs) < _EVEN for logprobs in likeliest)
    return not answer.bare and bool(likeliest) and (certain or even)


def diverged(answer: Canary) -> bool:
    """Say whether the numbers themselves are broken: then the same weights give the same in any engine."""
    return not answer.error and bool(answer.positions) and bool(sick(answer))


def disagreement(answer: Canary, other: Canary, tolerance: float) -> str:
    """Say how ``answer`` differs from ``other``; an empty text where they agree.

    Tokens must be equal and their log-probabilities within ``tolerance`` nats. Where two tokens are within
    ``tolerance`` of each other in both answers, which of them is the likeliest is chance, and so is all that
    follows: the comparison ends there. Of an answer without log-probabilities only the tokens are compared.
    """
    if answer.bare and other.bare:
        return (
            "" if answer.tokens == other.tokens else f"its tokens are {answer.tokens} and not {other.tokens}"
        )
    for number, (mine, theirs) in enumerate(zip(answer.positions, other.positions, strict=False), start=1):
        (token, logprob), (expected, at) = mine[0], theirs[0]
        if token != expected:
            tied = answer.bare or _may_be_tied(mine, expected, tolerance)
            if tied and (other.bare or _may_be_tied(theirs, token, tolerance)):
                return ""
            return f"token {number} is {token} and not {expected}"
        told = not (answer.bare or other.bare)
        if told and not abs(logprob - at) <= tolerance:  # NaN too
            return f"token {number} ({token}) has log-probability {logprob:.2f} and not {at:.2f}"
    if len(answer.positions) != len(other.positions):
        return f"it has {len(answer.positions)} tokens and not {len(other.positions)}"
    return ""


def outvoted(answers: Mapping[str, Canary], tolerance: float) -> dict[str, Canary | None]:
    """Return who answers otherwise than most, each with what most answer.

    ``answers`` are of engines that hold the same version, by name. None where as many say one thing as
    another: then nobody knows who is right, and all who disagree with somebody are named.
    """
    times = Counter(answers.values())  # most of a thousand engines say the same to the last bit
    agree = {one: {other for other in times if not disagreement(one, other, tolerance)} for one in times}
    votes = {one: sum(times[other] for other in agree[one]) for one in times}
    leading = [one for one in times if votes[one] == max(votes.values())]
    if all(other in agree[leading[0]] for other in leading):
        return {name: leading[0] for name, answer in answers.items() if answer not in agree[leading[0]]}
    return {name: None for name, answer in answers.items() if votes[answer] < len(answers)}


def _may_be_tied(position: Position, token: int, tolerance: float) -> bool:
    """Say whether ``token`` may be as likely as the one sampled: one that is not told is below all others."""
    known = dict(position)
    logprob = known.get(token, min(known.values()))
    return position[0][1] - logprob <= tolerance


def _worst(position: Position) -> float:
    return next((logprob for _, logprob in position if math.isnan(logprob)), position[0][1])
