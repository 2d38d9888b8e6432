"""What kind of failure a text resembles by its words: a second opinion, where no signature is sure.

A multinomial logistic regression on the words of the facts. Its weights, in ``likeness.tsv``, were learned
from labelled failure texts (``make likeness``); a word that nobody wrote a signature for still speaks for a
kind. It is asked where a person wants an answer: the guard acts on what a signature proves.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rayguard.faults.witness import Witness

MAX_FACTS = 100
MAX_CHARS = 32_000  # of all facts together
FEW = 300.0  # of squared rarity, about six words: a text that has no more says little
# How many times likelier another kind must be: than what a signature says, times the odds of its confidence;
# than that nothing is wrong, where an exception was printed, and where only lines speak of a failure.
ODDS, ODDS_OF_EXCEPTION, ODDS_OF_LINES = 20.0, 3.0, 5.0
MIN_CHANCE = 0.2

_TITLE = "Learned by `make likeness`: kind, bias; then word, rarity, number of kind:weight ..."
_WORD = re.compile(r"[A-Za-z_]{2,40}")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{1,40}\b")


@dataclass(frozen=True, slots=True)
class WordWeights:
    """What one word counts (``rarity``), and for or against which kinds."""

    rarity: float
    of: tuple[tuple[Kind, float], ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """The weights of words. ``bias``: what each kind has before a word is read."""

    bias: Mapping[Kind, float]
    words: Mapping[str, WordWeights]

    @classmethod
    def from_text(cls, text: str) -> Likeness:
        """Read what ``text`` wrote."""
        kinds: list[Kind] = []
        bias: dict[Kind, float] = {}
        words: dict[str, WordWeights] = {}
        for line in text.splitlines()[1:]:
            name, number, *rest = line.split("\t")
            if rest:
                told = (weight.split(":") for weight in rest)
                words[name] = WordWeights(
                    float(number), tuple((kinds[int(n)], float(weight)) for n, weight in told)
                )
            else:
                kinds.append(Kind(name))
                bias[kinds[-1]] = float(number)
        return cls(bias, words)

    def text(self) -> str:
        """Return lines of tabs: a kind and its bias; a word, its rarity, ``number:weight`` of some kinds."""
        number = {kind: str(place) for place, kind in enumerate(self.bias)}
        lines = [f"{kind.value}\t{bias:.2f}" for kind, bias in self.bias.items()]
        for word, weights in self.words.items():
            of = (f"{number[kind]}:{weight:g}" for kind, weight in weights.of)
            lines.append("\t".join((word, f"{weights.rarity:.2f}", *of)))
        return "\n".join((_TITLE, *lines, ""))

    def second_opinion(self, seen: Sequence[Witness], first: Kind, confidence: float) -> Kind:
        """Return the kind that ``seen`` resembles, if that is far likelier than ``first``, else ``first``."""
        chances = self.chances(words_of(seen))
        likeliest = max(chances, key=chances.__getitem__, default=Kind.UNKNOWN)
        if likeliest is Kind.UNKNOWN or chances[likeliest] < MIN_CHANCE:
            return first
        odds = _odds_that_nothing_is_wrong(seen) if first is Kind.UNKNOWN else _odds_of(confidence)
        return likeliest if chances[likeliest] > odds * chances.get(first, 0.0) else first

    def chances(self, words: Iterable[str]) -> dict[Kind, float]:
        """Return how likely each kind is, all together 1; {} where no word is known."""
        known = sorted(self.words.keys() & set(words))
        if not known:
            return {}
        length = length_of(self.words[word].rarity for word in known)
        scores = dict(self.bias)
        for word in known:
            weights = self.words[word]
            for kind, weight in weights.of:
                scores[kind] += weights.rarity * weight / length
        highest = max(scores.values())
        shares = {kind: math.exp(score - highest) for kind, score in scores.items()}
        return {kind: share / sum(shares.values()) for kind, share in shares.items()}

    def speaking_for(self, seen: Sequence[Witness], kind: Kind) -> list[Witness]:
        """Return those of ``seen`` whose words speak for ``kind``, the one that says most first."""
        told = [
            (sum(self._weight(word, kind) for word in words), -place, witness)
            for place, (witness, words) in enumerate(zip(seen, _words_of(seen), strict=False))
        ]
        return [
            witness
            for weight, _, witness in sorted(told, key=lambda one: one[:2], reverse=True)
            if weight > 0
        ]

    def _weight(self, word: str, kind: Kind) -> float:
        weights = self.words.get(word)
        return 0.0 if weights is None else weights.rarity * dict(weights.of).get(kind, 0.0)


def length_of(rarities: Iterable[float]) -> float:
    """Return by what the rarities of a text's words are divided: long texts count as much as short."""
    return math.sqrt(FEW + sum(rarity**2 for rarity in rarities))


def _odds_of(confidence: float) -> float:
    return ODDS * confidence / (1 - confidence) if confidence < 1 else math.inf


def _odds_that_nothing_is_wrong(seen: Iterable[Witness]) -> float:
    grave = [witness for witness in seen if not witness.mild]
    if not grave:
        return math.inf
    return ODDS_OF_EXCEPTION if any(witness.names for witness in grave) else ODDS_OF_LINES


def words_of(seen: Iterable[Witness]) -> set[str]:
    """Return what counts as a word of ``seen``, all facts together."""
    return {word for words in _words_of(seen) for word in words}


def _words_of(seen: Iterable[Witness]) -> Iterator[set[str]]:
    """Yield for each fact its words, pairs and triples of words, types, and where it was raised."""
    room = MAX_CHARS
    for witness, _ in zip(seen, range(MAX_FACTS), strict=False):
        text = witness.text[:room]
        room -= len(text)
        words = [word.lower() for word in _WORD.findall(_ADDRESS.sub(" ", text))]
        found = {
            *words,
            *map(" ".join, pairwise(words)),
            *map(" ".join, zip(words, words[1:], words[2:], strict=False)),
        }
        found.update(f"type:{name.rpartition('.')[2]}" for name in witness.names)
        if witness.origin is not None:
            found.add(f"origin:{witness.origin.value}")
        if witness.role:
            found.add(f"role:{witness.role}")
        for frame in witness.frames:
            found.add(f"in:{_file(frame.file, 1)} {frame.function}")
        for frame in witness.frames[-1:]:
            found.update((f"at:{_file(frame.file, 2)}", f"at:{frame.function}"))
        yield found


def _file(path: str, parts: int) -> str:
    return "/".join(path.replace("\\", "/").split("/")[-parts:])


@lru_cache(maxsize=1)
def likeness() -> Likeness:
    """Return the weights that ship with rayguard; read on first use, because few texts need them."""
    return Likeness.from_text(
        resources.files("rayguard.logs").joinpath("likeness.tsv").read_text(encoding="utf-8")
    )
