"""Which weights an engine must have: the value, what unfits it, and the proof that it is there.

A version travels as safetensors bytes or as a path that the engine's workers can read. The way of a push:
``source.current()`` -> ``check`` -> ``spill.sendable`` -> the engine's workers
(``rayguard.engine.vllm.receiver``) -> ``verify`` with what each of them reports. ``digest`` ties the ends
together.

Not here: where the current version comes from (``sources``), loading into a model
(``rayguard.engine.vllm.receiver``), the bytes of the format (``tensorfile``), deadlines, and dropping the
prefix cache after a push (the engine adapter).
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from rayguard.engine.weights import tensorfile
from rayguard.errors import ConfigError, WeightsError
from rayguard.options import explained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from rayguard.engine.weights.layout import Layout


@explained
@dataclass(frozen=True, slots=True)
class Weights:
    """One version of the weights, as bytes or as a path. Cheap to compare, picklable.

    Invariant: exactly one of ``payload`` and ``path`` is set; ``version`` is never empty, because the
    empty version is what a worker reports whose weights are unknown.
    """

    version: str
    payload: bytes | None = field(default=None, repr=False)
    path: str | None = None
    _digest: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what could never be proved; make the path mean the same in every process."""
        if not self.version or not isinstance(self.version, str):
            raise ConfigError(f"Weights.version must be a non-empty string, got {self.version!r}")
        if (self.payload is None) == (self.path is None):
            raise ConfigError(f"Weights {self.version!r} need exactly one of payload= and path=")
        if self.path is not None:
            object.__setattr__(self, "path", os.path.abspath(self.path))  # noqa: PTH100 - stays a string
        elif not isinstance(self.payload, bytes):
            raise ConfigError(
                f"Weights {self.version!r}: payload must be safetensors bytes, got "
                f"{type(self.payload).__name__}; use Weights.from_tensors() for tensors"
            )

    @classmethod
    def from_tensors(cls, version: str, tensors: Mapping[str, torch.Tensor]) -> Weights:
        """Return the tensors as a payload, whatever device they are on."""
        from safetensors.torch import save  # noqa: PLC0415 - imports torch

        ready: dict[str, torch.Tensor] = {}
        storages: set[int] = set()
        for name, tensor in tensors.items():
            if hasattr(tensor, "full_tensor"):
                raise ConfigError(f"{name!r} is one shard of a distributed tensor: send tensor.full_tensor()")
            local = tensor.detach().cpu().contiguous()
            storage = local.untyped_storage().data_ptr()
            # safetensors refuses tensors that share memory, as tied embeddings in a state_dict do.
            ready[name] = local.clone() if storage in storages else local
            storages.add(storage)
        return cls(version, payload=save(ready))

    @property
    def digest(self) -> str:
        """sha256 of the bytes (see ``tensorfile.digest_of_files`` for folders); computed once.

        A path is read when first asked: if its files change afterwards, the workers find out.
        """
        if not self._digest:
            self._digest.append(self._compute_digest())
        return self._digest[0]

    def _compute_digest(self) -> str:
        if self.payload is not None:
            return tensorfile.digest(io.BytesIO(self.payload))
        with _os_errors(self):
            return tensorfile.digest_of_files(tensorfile.checkpoint_files(str(self.path)))

    def names(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape by tensor name, from the headers alone."""
        return {
            name: (entry.dtype, entry.shape) for _, entries in self.parts() for name, entry in entries.items()
        }

    def parts(self) -> Iterator[tuple[IO[bytes], dict[str, tensorfile.TensorEntry]]]:
        """Yield each file (or the payload) opened, with its header read and found in order."""
        if self.payload is not None:
            stream = io.BytesIO(self.payload)
            yield stream, tensorfile.read_header(stream, f"the payload of weights {self.version!r}")
            return
        seen: set[str] = set()
        with _os_errors(self):
            for file in tensorfile.checkpoint_files(str(self.path)):
                with file.open("rb") as opened:
                    entries = tensorfile.read_header(opened, str(file))
                    if twice := seen & entries.keys():
                        raise WeightsError(
                            f"tensor {min(twice)!r} is in {file} and in another file beside it"
                        )
                    seen |= entries.keys()
                    yield opened, entries


@contextlib.contextmanager
def _os_errors(weights: Weights) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WeightsError(f"weights {weights.version!r} cannot be read: {error}") from error


def check(weights: Weights, *, finite: bool = True) -> None:
    """Refuse weights that no engine should get: nothing in them, malformed, NaN or infinite."""
    for stream, entries in weights.parts():
        if finite and (name := tensorfile.first_non_finite(stream, entries)) is not None:
            raise WeightsError(
                f"weights {weights.version!r}: tensor {name!r} holds NaN or infinity. The trainer has "
                f"diverged; the engine keeps the weights it has. Look at the loss and the gradient norm "
                f"of the step that made this version."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReceipt:
    """What one worker of an engine says that it holds; ``version`` is empty when it does not know.

    ``layout``: the tensors that it was sent, where it remembers.
    """

    version: str
    digest: str
    tensors: int
    layout: Layout = field(default_factory=dict, compare=False, repr=False)


def verify(wanted: Weights, receipts: Sequence[WeightReceipt]) -> None:
    """Refuse an engine unless every one of its workers holds exactly the wanted weights."""
    if not receipts:
        raise WeightsError(f"no worker reported its weights; wanted version {wanted.version!r}")
    for rank, receipt in enumerate(receipts):
        if receipt.version != wanted.version:
            has = repr(receipt.version) if receipt.version else "none that was ever confirmed"
            raise WeightsError(
                f"worker {rank} of {len(receipts)} has weights {has}, wanted {wanted.version!r}: push them "
                f"again before it serves"
            )
        if receipt.digest != wanted.digest:
            raise WeightsError(
                f"worker {rank} of {len(receipts)} has other bytes under version {wanted.version!r}: digest "
                f"{receipt.digest[:12]}, wanted {wanted.digest[:12]}. Give each push a version of its own."
            )
