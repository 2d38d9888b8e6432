"""A DataProto is made divisible by rows that count nowhere; by one that does what verl's and EasyR1's do."""

from __future__ import annotations

import pytest

from rayguard.batching.dataproto import pad, unpad
from rayguard.errors import ConfigError

torch = pytest.importorskip("torch")


class DataProto:
    """As much of it as is common to both: slices, ``concat``, tensors in ``batch``, arrays beside them."""

    def __init__(self, batch, non_tensor_batch=None):
        self.batch, self.non_tensor_batch = batch, non_tensor_batch or {}

    def __len__(self):
        return len(next(iter(self.batch.values())))

    def __getitem__(self, item):
        assert isinstance(item, slice), "EasyR1's takes a list for one row"
        return DataProto(
            {name: value[item] for name, value in self.batch.items()},
            {name: value[item] for name, value in self.non_tensor_batch.items()},
        )

    @staticmethod
    def concat(several):
        join = {name: torch.cat([one.batch[name] for one in several]) for name in several[0].batch}
        beside = {
            name: [row for one in several for row in one.non_tensor_batch[name]]
            for name in several[0].non_tensor_batch
        }
        return DataProto(join, beside)


def a_proto(size):
    rows = torch.arange(size).reshape(-1, 1)
    return DataProto(
        {"ids": rows, "attention_mask": torch.ones(size, 4), "response_mask": torch.ones(size, 2)},
        {"uid": [str(n) for n in range(size)]},
    )


@pytest.mark.parametrize(
    ("size", "divisor", "pads"), [(512, 6, 4), (7, 3, 2), (1, 8, 7), (3, 8, 5), (12, 6, 0)]
)
def test_copies_count_nowhere(size, divisor, pads):
    """They have an attention mask as any row, so that no softmax is empty; only the loss does not see them."""
    data = a_proto(size)
    padded, made = pad(data, divisor)
    assert (made, len(padded)) == (pads, size + pads)
    assert padded.batch["response_mask"].sum() == size * 2
    assert padded.batch["response_mask"][size:].sum() == 0
    assert padded.batch["attention_mask"].sum() == (size + pads) * 4
    assert len(padded.non_tensor_batch["uid"]) == size + pads
    assert data.batch["response_mask"].sum() == size * 2
    back = unpad(padded, made)
    assert back.batch["ids"].flatten().tolist() == list(range(size))
    assert back.non_tensor_batch["uid"] == [str(n) for n in range(size)]


def test_a_proto_that_divides_is_left_alone():
    """The same object."""
    data = a_proto(12)
    assert pad(data, 6) == (data, 0)
    assert unpad(data, 0) is data


def test_without_a_mask_nothing_is_guessed():
    """A copy that counts would bend the gradient."""
    data = DataProto({"ids": torch.ones(5, 1)})
    with pytest.raises(ConfigError, match="nothing says that a copied row does not count"):
        pad(data, 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pad(a_proto(0), 2), "without rows"),
        (lambda: pad(a_proto(5), 0), "world must be"),
        (lambda: unpad(a_proto(5), 6), "5 rows have no 6 pads"),
        (lambda: unpad(a_proto(5), -1), "no -1 pads"),
    ],
)
def test_nonsense_is_told(call, words):
    """In one line."""
    with pytest.raises(ConfigError, match=words):
        call()
