"""What an undisturbed pool answers: a fixed catalog of questions, and the right answer under each weights.

Every question has one right answer: it is greedy or has a seed. Those with penalties on the output alone
(presence, frequency) are judged apart: whether they can be continued exactly depends on the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from examples.grpo.text import sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.3}
SEEDED = {"temperature": 1.0, "top_p": 0.9}
_SHORTEST, _LONGEST = 40, 150
_STOPPED = 0.6  # where in an answer its stop string is taken from
_STOP_CHARS = 8
_ALIKE = "tokens", "finish_reason", "stop_reason", "text", "logprobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One prompt with its options. ``exact``: its answer must be the oracle's, whatever happens."""

    name: str
    kind: str
    prompt: Any
    sampling: Mapping[str, Any]
    exact: bool = True

    @property
    def n(self) -> int:
        """How many completions it asks for."""
        return int(self.sampling.get("n", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that a caller can see of one completion."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    stop_reason: Any
    logprobs: tuple[float, ...]  # with the ids that they are of

    @classmethod
    def of(cls, sample: Any) -> Answer:
        """Return what ``sample`` (of a pool) says."""
        made = sample.generated
        return cls(
            tokens=tuple(made.tokens),
            text=sample.text,
            finish_reason=sample.finish_reason,
            stop_reason=sample.stop_reason,
            logprobs=(*made.logprobs, *map(float, made.ids), *map(float, made.ranks)),
        )

    def differs(self, other: Answer) -> str:
        """Say in what it differs from ``other``, an empty string when they are the same."""
        for name in _ALIKE:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name}{_where(mine, theirs)}"
        return ""


def _where(mine: Any, theirs: Any) -> str:
    if not isinstance(mine, tuple):
        return f": {mine!r}, not {theirs!r}"
    at = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if at is None:
        return f": {len(mine)} of them, not {len(theirs)}"
    return f" from {at} of {len(theirs)} on: {mine[at : at + 4]}, not {theirs[at : at + 4]}"


def catalog() -> list[Question]:
    """Return the questions; those named ``stop`` get their stop strings from ``with_stops``."""
    texts = list(sentences("trials", 64))
    kinds: dict[str, tuple[dict[str, Any], bool]] = {
        "greedy": (GREEDY, True),
        "greedy logprobs": ({**GREEDY, "logprobs": 3}, True),
        "seeded": (SEEDED, True),
        "seeded logprobs": ({**SEEDED, "top_k": 40, "logprobs": 0}, True),
        "penalties": ({"temperature": 0.0, "presence_penalty": 0.8, "frequency_penalty": 0.5}, False),
        "penalties seeded": ({**SEEDED, "presence_penalty": 1.2, "logprobs": 0}, False),
        "several": ({**SEEDED, "n": 3, "logprobs": 0}, True),
        "stop": (GREEDY, True),
        "stop seeded": ({**SEEDED, "logprobs": 0}, True),
        "min tokens": ({**SEEDED, "min_tokens": 35, "stop_token_ids": list(range(0, 512, 9))}, True),
    }
    return [
        Question(
            name=f"{kind} {n}",
            kind=kind,
            prompt=texts[4 * n + place] if (n + place) % 2 else _tokens(4 * n + place),
            sampling={"max_tokens": _length(n, place), "ignore_eos": True, **_with_seed(options, n)},
            exact=exact,
        )
        for place, (kind, (options, exact)) in enumerate(kinds.items())
        for n in range(4)
    ]


def _with_seed(options: dict[str, Any], n: int) -> dict[str, Any]:
    return {**options, "seed": 1000 + 17 * n} if options["temperature"] else options


def _length(n: int, place: int) -> int:
    return _SHORTEST + (37 * n + 23 * place) % (_LONGEST - _SHORTEST + 1)


def _tokens(n: int) -> list[int]:
    return [20 + n, 7, 90 + 3 * n, 11] * (3 + n % 4)


def with_stops(questions: Sequence[Question], looks: Sequence[Mapping[str, str]]) -> list[Question]:
    """Give each ``stop`` question stop strings from its answers in ``looks`` (text by name, by weights)."""

    def stops(question: Question) -> list[str]:
        texts = [look[question.name] for look in looks]
        found = (text[int(len(text) * _STOPPED) :][:_STOP_CHARS] for text in texts)
        return [stop for stop in found if stop]

    return [
        replace(q, sampling={**q.sampling, "stop": stops(q)}) if q.kind.startswith("stop") else q
        for q in questions
    ]


class Oracle:
    """The right answers by weights, question and index."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions = list(questions)
        self.prompt_tokens: dict[str, int] = {}  # by the question's name
        self._answers: dict[tuple[str, str, int], Answer] = {}

    @property
    def known(self) -> bool:
        """Whether there are any answers."""
        return bool(self._answers)

    @property
    def weights(self) -> frozenset[str]:
        """Under which weights the answers are known."""
        return frozenset(weights for weights, _, _ in self._answers)

    def learn(self, weights: str, ask: Callable[[Sequence[Question]], Sequence[Any]]) -> list[str]:
        """Ask all questions under ``weights``, twice and in another company; return what came out otherwise.

        A question that is answered in two ways by itself can prove nothing.
        """
        unsteady = []
        for question, generation in self._both_ways(ask):
            for sample in generation.samples:
                self.prompt_tokens[question.name] = len(sample.prompt_token_ids)
                key, answer = (weights, question.name, sample.index), Answer.of(sample)
                told = answer.differs(self._answers.setdefault(key, answer))
                if told:
                    unsteady.append(f"{question.name}/{sample.index} under {weights}: {told}")
        return unsteady

    def _both_ways(self, ask: Callable[[Sequence[Question]], Sequence[Any]]) -> list[tuple[Question, Any]]:
        asked: list[tuple[Question, Any]] = []
        for order in (self.questions, self.questions[::-2] + self.questions[-2::-2]):
            asked += zip(order, ask(order), strict=True)
        return asked

    def expects(self, weights: str, question: Question, index: int) -> Answer:
        """Return the right answer."""
        return self._answers[weights, question.name, index]

    def tokens(self, weights: str, question: Question) -> int:
        """Return how many tokens a question makes."""
        return sum(len(self.expects(weights, question, index).tokens) for index in range(question.n))
