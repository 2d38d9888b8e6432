"""Which advice: decided by what stands below a verdict, and said in the words of the framework it is from.

A signature says what failed; several causes may end in it. The rules of ``signatures/counsel.yaml`` look at
the fact that decided and at the rest of the text, and the first that fits gives the advice. Only verdicts of
our own signatures are advised on: a user's signature has its own words. ``signatures/words.yaml`` has what
each framework calls a setting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import BaseModel, Field

from rayguard.faults.scene import Fragments, Scene
from rayguard.faults.signature import CHECKED, STRICT, Fragment, Many, Pattern
from rayguard.faults.signature import Fragments as Texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.faults.witness import Witness

NO_FAILURE = "no_failure"  # the id of a verdict that nothing failed
_WORD = re.compile(r"\{(\w{1,40})\}")
_NAMED = re.compile(r"\bpid[=:]\s?(\d{2,9})(?:,? ip[=:]\s?([\w.:]{3,45}))?")


class Counsel(BaseModel):
    """One rule. All its keys must hold; the lists of fragments each ask for any of theirs."""

    model_config = STRICT

    id: Annotated[str, Field(pattern=r"^[a-z0-9_.]+$")]
    of: Annotated[tuple[str, ...], Many]  # kinds, or ids of signatures ("vllm.start." for all that begin so)
    fact: Texts = ()  # in what the fact that decided says, or its type
    frames: Texts = ()  # in where it was raised: "file.py::function" of any frame
    like: Annotated[tuple[Pattern, ...], Many] = ()  # and its message is like one of these
    seen: Texts = ()  # somewhere in the text
    also: Texts = ()
    absent: Texts = ()  # nowhere in the text
    times: Annotated[int, Field(ge=1, le=100)] = 1  # that many lines hold one of `seen`
    cause: str = ""
    advice: Annotated[str, Field(min_length=10)]

    def fits(self, verdict: Diagnosis, witness: Witness | None, scene: Scene) -> bool:
        """Say whether it is for ``verdict``, which ``witness`` decided, in ``scene``."""
        fact, places = _said(witness), _places(witness) if self.frames else ""
        return (
            _is_of(verdict, self.of)
            and (not self.fact or any(text in fact for text in self.fact))
            and (not self.frames or any(text in places for text in self.frames))
            and (not self.like or any(pattern.search(fact) for pattern in self.like))
            and (not self.seen or scene.times(self.seen) >= self.times)
            and (not self.also or scene.times(self.also) > 0)
            and not scene.times(self.absent)
        )


def _is_of(verdict: Diagnosis, of: tuple[str, ...]) -> bool:
    return any(
        name in (verdict.kind.value, verdict.signature)
        or (name.endswith(".") and verdict.signature.startswith(name))
        for name in of
    )


class Framework(BaseModel):
    """One framework: how its texts are known, what it calls the settings that advice names."""

    model_config = STRICT

    marks: Annotated[tuple[Fragment, ...], Many]
    words: dict[str, str] = {}


class Words(BaseModel):
    """What frameworks call things; ``plain`` is said where no framework, or none of its own, is known."""

    model_config = STRICT

    plain: dict[str, str]
    settings: dict[str, Texts]  # a word, and the general names that it stands for in advice
    frameworks: dict[str, Framework]


@dataclass(frozen=True, slots=True)
class Counsels:
    """The rules in the order of asking, and the words that they are said in. Immutable."""

    rules: tuple[Counsel, ...]
    words: Words
    fragments: Fragments

    def scene(self) -> Scene:
        """Return an empty scene that notes what the rules ask for."""
        return Scene(self.fragments)

    def on(self, verdict: Diagnosis, witness: Witness | None, scene: Scene) -> Diagnosis:
        """Return ``verdict`` with the advice that fits the text that it was found in."""
        framework = scene.framework(self._marks())
        rule = next((rule for rule in self.rules if rule.fits(verdict, witness, scene)), None)
        advice, cause = verdict.advice, verdict.cause
        if rule is not None:
            advice = self._filled(rule.advice, framework, _said(witness), scene)
            cause = _caused(verdict.cause, rule.cause, witness)
        return replace(verdict, cause=cause, advice=self._in_the_words_of(framework, advice))

    def plainly(self, rule: Counsel) -> str:
        """Return the advice of ``rule`` for a page: in no framework's words."""
        return self._filled(rule.advice, "", "", self.scene())

    def _marks(self) -> Mapping[str, tuple[str, ...]]:
        return {name: one.marks for name, one in self.words.frameworks.items()}

    def _filled(self, advice: str, framework: str, fact: str, scene: Scene) -> str:
        own = self.words.frameworks[framework].words if framework else {}
        words = {**self.words.plain, **own, **worker(fact, scene)}
        return _WORD.sub(lambda found: words.get(found[1], found[0]), advice)

    def _in_the_words_of(self, framework: str, advice: str) -> str:
        """Add what ``framework`` calls the settings that ``advice`` names in general."""
        own = self.words.frameworks[framework].words if framework else {}
        told = [
            own[word]
            for word, names in self.words.settings.items()
            if word in own and own[word] not in advice and any(_names(advice, name) for name in names)
        ]
        return f"{advice} (in {framework}: {', '.join(told)})" if told else advice


def _names(advice: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", advice) is not None


def _said(witness: Witness | None) -> str:
    return "" if witness is None else "\n".join((*sorted(witness.names), witness.quote, witness.text))


def _places(witness: Witness | None) -> str:
    frames = () if witness is None else witness.frames
    return "\n".join(f"{frame.file}::{frame.function}" for frame in frames)


def _caused(cause: str, told: str, witness: Witness | None) -> str:
    if not told:
        return cause
    return f"{told}: {witness.quote}" if witness is not None else told


def worker(fact: str, scene: Scene) -> dict[str, str]:
    """Return a failed Ray worker's pid, and where its own words stand: its file, and on which machine."""
    named = _NAMED.search(fact)
    pid = named[1] if named else next(iter(scene.gone), "")
    address = (named and named[2]) or scene.processes.get(pid, "")
    session = next(iter(scene.sessions), "/tmp/ray/session_latest")  # noqa: S108 - Ray's own folder
    file = f"{session}/logs/worker-*-{pid or 'PID'}.err"
    return {"pid": pid or "PID", "worker_file": f"{file} on {address}" if address else file}


@lru_cache(maxsize=1)
def counsels() -> Counsels:
    """Return the rules that ship with rayguard; read on first use, so that imports stay free."""
    rules = tuple(
        Counsel.model_validate(entry, context=CHECKED) for entry in _read("counsel.yaml")["counsel"]
    )
    words = Words.model_validate(_read("words.yaml"))
    asked = [text for rule in rules for text in (*rule.seen, *rule.also, *rule.absent)]
    asked += [mark for one in words.frameworks.values() for mark in one.marks]
    return Counsels(rules, words, Fragments(asked))


def _read(name: str) -> Any:
    text = (resources.files("rayguard.faults") / "signatures" / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe one
