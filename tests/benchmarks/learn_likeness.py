"""Learns the weights of ``rayguard.logs.likeness`` from labelled failure texts: ``make likeness TEXTS="a.jsonl ..."``.

Each line of a file is a JSON object with `id`, `text`, `label`, perhaps `also_ok` and `source`. The examples of the
catalog's tests are learned too. Before the weights are written, it is measured how often they name the right kind
alone, on texts whose source they did not learn from.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track

from rayguard.faults.catalog import default_catalog
from rayguard.faults.diagnosis import Kind
from rayguard.faults.witness import Witness, witnesses
from rayguard.logs.likeness import Likeness, WordWeights, length_of, words_of
from rayguard.logs.report import lines_of
from rayguard.logs.witnesses import Reader
from tests.faults.fault_examples import fault_of, near_misses, positives

WEIGHTS = Path(__file__).parents[2] / "rayguard" / "logs" / "likeness.tsv"
FOLDS = 5
EXAMPLE_WEIGHT, LOOK_ALIKE_WEIGHT = 3.0, 6.0  # of an example of the catalog, beside 1 for a text
MIN_TEXTS = 5  # in which a word stands
SPARSITY, SHRINKAGE = 2e-5, 1e-6  # of the weights: L1 and L2, beside the mean loss
STEPS = 300
STEP = 0.5  # weights are rounded to multiples of it
FIRST_LABEL = 0.8  # the share of the label where others are defended as well


@dataclass(frozen=True, slots=True)
class Sample:
    """The words of one text, and its kind. ``source``: texts of one source belong together."""

    source: str
    words: frozenset[str]
    label: Kind
    right: frozenset[Kind]
    weight: float = 1.0

    def share(self, kind: Kind) -> float:
        """Return how much of the text is ``kind``."""
        others = len(self.right) - 1
        if kind is self.label:
            return FIRST_LABEL if others else 1.0
        return (1 - FIRST_LABEL) / others if kind in self.right else 0.0


def facts_of(text: str) -> tuple[Witness, ...]:
    """Return the facts of a text, in its order."""
    seen = Reader(default_catalog()).read(lines_of(text))
    return tuple(sorted(seen, key=lambda witness: witness.line))


def labelled(paths: Sequence[Path]) -> Iterator[Sample]:
    """Yield a sample for each line of ``paths``."""
    rows = [
        json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line
    ]
    for row in track(rows, "reading"):
        right = frozenset(map(Kind, (row["label"], *(row.get("also_ok") or ()))))
        source = row.get("source", "")
        words = frozenset(words_of(facts_of(row["text"])))
        yield Sample(source if "#" in source else row["id"], words, Kind(row["label"]), right)


def examples() -> Iterator[Sample]:
    """Yield what the catalog's tests know."""
    kinds = {signature.id: signature.kind for signature in default_catalog().signatures}
    known = [(signature, one, EXAMPLE_WEIGHT) for signature, one in positives()]
    known += [(signature, one, LOOK_ALIKE_WEIGHT) for _, signature, one in near_misses()]
    for signature, one, weight in known:
        kind = kinds.get(signature, Kind.UNKNOWN)
        facts = facts_of(one["text"]) if "text" in one else witnesses(fault_of(one))
        yield Sample(signature, frozenset(words_of(facts)), kind, frozenset({kind}), weight)


def learn(samples: Sequence[Sample]) -> Likeness:
    """Return the weights that explain ``samples``: a convex problem, solved by accelerated proximal gradients.

    A. Beck and M. Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems", 2009.
    """
    counts = Counter(word for sample in samples for word in sample.words)
    words = sorted(word for word, count in counts.items() if count >= MIN_TEXTS)
    number = {word: place for place, word in enumerate(words)}
    rarity = torch.tensor([math.log(len(samples) / counts[word]) + 1 for word in words])
    kinds = sorted({kind for sample in samples for kind in sample.right}, key=lambda kind: kind.value)
    told = _matrix(samples, number, rarity)
    wanted = torch.tensor([[sample.share(kind) for kind in kinds] for sample in samples])
    weights, bias = _solved(told, wanted, torch.tensor([sample.weight for sample in samples]))
    weights = torch.round(weights / STEP) * STEP
    rows = zip(words, rarity.tolist(), weights.tolist(), strict=True)
    return Likeness(
        dict(zip(kinds, bias.tolist(), strict=True)),
        {
            word: WordWeights(
                rare, tuple((kind, weight) for kind, weight in zip(kinds, row, strict=True) if weight)
            )
            for word, rare, row in rows
            if any(row)
        },
    )


def _matrix(samples: Sequence[Sample], number: dict[str, int], rarity: torch.Tensor) -> torch.Tensor:
    """Return a row for each sample: how rare its words are, over the length of them all."""
    rows, columns, values = [], [], []
    for row, sample in enumerate(samples):
        places = sorted(number[word] for word in sample.words if word in number)
        rare = rarity[places]
        rows += [row] * len(places)
        columns += places
        values += (rare / length_of(rare.tolist())).tolist()
    size = (len(samples), len(number))
    return torch.sparse_coo_tensor(torch.tensor([rows, columns]), torch.tensor(values), size).coalesce()


def _solved(
    told: torch.Tensor, wanted: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = (weight / weight.sum())[:, None]
    rows, columns = told.to_sparse_csr(), told.t().coalesce().to_sparse_csr()
    weights = torch.zeros(told.shape[1], wanted.shape[1])
    bias = torch.zeros(wanted.shape[1])
    ahead, bias_ahead, pace = weights, bias, 1.0
    steepest = 0.5 * (_norm(rows, columns, weight) + 1)  # the softmax's curvature is at most a half
    for _ in range(STEPS):
        off = (torch.softmax(rows @ ahead + bias_ahead, 1) - wanted) * weight
        moved = ahead - (columns @ off + SHRINKAGE * ahead) / steepest
        moved = moved.sign() * (moved.abs() - SPARSITY / steepest).clamp(min=0)
        bias_moved = bias_ahead - off.sum(0) / steepest
        paced = (1 + math.sqrt(1 + 4 * pace**2)) / 2
        ahead = moved + (pace - 1) / paced * (moved - weights)
        bias_ahead = bias_moved + (pace - 1) / paced * (bias_moved - bias)
        weights, bias, pace = moved, bias_moved, paced
    return weights, bias


def _norm(rows: torch.Tensor, columns: torch.Tensor, weight: torch.Tensor) -> float:
    """Return the largest eigenvalue of the weighted samples' words, by the power method."""
    vector = torch.ones(rows.shape[1], 1)
    length = torch.tensor(1.0)
    for _ in range(20):
        vector = columns @ (weight * (rows @ (vector / vector.norm())))
        length = vector.norm()
    return float(length)


def measured(samples: Sequence[Sample]) -> float:
    """Return how often the likeliest kind is right, of texts whose source was not learned from."""
    folds: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        folds[zlib.crc32(sample.source.encode()) % FOLDS].append(sample)
    right = 0
    for fold in track(range(FOLDS), "measuring"):
        learned = learn([sample for other in range(FOLDS) if other != fold for sample in folds[other]])
        for sample in folds[fold]:
            chances = learned.chances(sample.words)
            right += max(chances, key=chances.__getitem__, default=Kind.UNKNOWN) in sample.right
    return right / len(samples)


def main() -> int:
    """Measure, learn and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    asked = parser.parse_args()
    missing = [path for path in asked.files if not path.is_file()]
    if missing:
        parser.error(f'no such file: {missing[0]} (make likeness TEXTS="texts.jsonl")')
    samples = [sample for sample in labelled(asked.files) if sample.words]
    share = measured(samples)
    learned = learn([*samples, *(sample for sample in examples() if sample.words)])
    asked.output.write_text(learned.text(), encoding="utf-8")
    print(json.dumps({"n": len(samples), "right_alone": round(share, 4), "words": len(learned.words)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
