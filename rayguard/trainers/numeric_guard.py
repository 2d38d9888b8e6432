"""Bad numbers caught before the kernel that would assert on them: token ids and logits.

On a GPU such a number is a device-side assert: it poisons the process, and names nothing. Detecting it
afterwards is too late, and asking the device each step would stop its stream. So what is bad is made harmless
where it stands (ids into range, numbers of logits to zero), which rows were bad is kept on the device, and
raised as a Python error where the caller reads from the device anyway. There it costs a reduction of the ids,
and one of the logits with a pass over them. On the CPU a read waits for nobody: it costs the two reductions,
and what is sound is not touched. What engines of vLLM make is looked at in ``rayguard.engine.vllm.numbers``.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from rayguard.errors import ConfigError, NumericError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

_IDS, _LOGITS = "token id", "logit"
_FEW = 256  # rows
_UNREAD = 1024  # forwards that nobody checked: then one look of our own, so that what is kept stays small


class _Bad(NamedTuple):
    """The first bad row of one tensor."""

    step: int
    row: int
    value: int


class _Place:
    """One tensor that is looked at; which of its rows were bad, forward by forward, kept where it is."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self._found: _Bad | None = None
        self._unread: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def note(self, step: int, bad: torch.Tensor, values: torch.Tensor) -> None:
        """Remember which rows of a forward were ``bad``; nothing is read."""
        self._unread.append((step, bad, values))
        if len(self._unread) >= _UNREAD:
            self._read()

    def taken(self) -> _Bad | None:
        """Return the first bad row and forget it; None while all is well. Reads from the device."""
        self._read()
        found, self._found = self._found, None
        return found

    def _read(self) -> None:
        import torch  # noqa: PLC0415 - whoever has a model has loaded it

        unread, self._unread = self._unread, []
        if self._found is not None or not unread:
            return
        if not torch.cat([bad.reshape(-1) for _, bad, _ in unread]).any().item():
            return
        for step, bad, values in unread:
            if bad.any().item():
                row = int(bad.reshape(-1).to(torch.uint8).argmax().item())
                self._found = _Bad(step, row, int(values.reshape(-1)[row].item()))
                return


class NumericGuard:
    """Looks at the token ids and logits of a model, and raises at ``check`` what a kernel would have died of.

    ``guard = NumericGuard(model)``, then ``guard.check(step)`` after the loss was read and before the
    optimizer steps; ``with guard.at_sync():`` checks by itself wherever a tensor is read (``item``,
    ``tolist``, ``cpu``). For Hugging Face's ``generate``: ``logits_processor=[guard.logits_processor()]``,
    and ``check`` when it returns.

    Args:
        model: A ``torch.nn.Module``. Each ``Embedding`` in it is looked at, and the layer that makes logits.
        head: That layer, or its name; by default what ``get_output_embeddings()`` names, else ``lm_head``.
        rank: What the error calls this process.

    Raises:
        ConfigError: There is nothing to look at, or no such module.
    """

    def __init__(
        self, model: torch.nn.Module, *, head: torch.nn.Module | str | None = None, rank: int = 0
    ) -> None:
        import torch  # noqa: PLC0415

        self.rank, self.step = rank, 0
        self._looking = False  # a read of our own, which is none of the caller's: see ``at_sync``
        self._names = {id(module): name for name, module in model.named_modules()}
        self._places: list[_Place] = []
        self._hooks: list[Any] = []
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                hook = self._before_embedding(self._place(module, _IDS), module.num_embeddings)
                self._hooks.append(module.register_forward_pre_hook(hook))
        chosen = _head(model, head)
        if chosen is not None:
            self._hooks.append(chosen.register_forward_hook(self._after_head(self._place(chosen, _LOGITS))))
        if not self._places:
            raise ConfigError("the model has no Embedding and no head that makes logits: name it with head=")

    def check(self, step: int | None = None) -> None:
        """Raise what was bad since the last check; reads a number for each tensor that is looked at.

        Args:
            step: The one that begins now, for the next error.

        Raises:
            NumericError: A token id lay outside its embedding, or a row of logits was not finite.
        """
        found = [(place, bad) for place in self._places if (bad := place.taken()) is not None]
        if step is not None:
            self.step = step
        if found:
            place, bad = min(found, key=lambda one: (one[1].step, one[0].kind == _LOGITS))
            value = bad.value if place.kind == _IDS else None
            raise NumericError(place.name, place.kind, self.rank, bad.step, bad.row, value)

    @contextmanager
    def at_sync(self) -> Iterator[None]:
        """Check wherever a tensor is read meanwhile, and at the end; calls to torch cost 1 µs more."""
        with _mode(lambda: None if self._looking else self.check())():
            yield
        self.check()

    def logits_processor(self, name: str = "scores") -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return what Hugging Face's ``generate`` calls with the scores of each new token."""
        place = self._place(None, _LOGITS, name)

        def process(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return self._finite(scores, place)

        return process

    def close(self) -> None:
        """Look at the model no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _place(self, module: torch.nn.Module | None, kind: str, name: str = "") -> _Place:
        place = _Place(name or self._names.get(id(module), "") or type(module).__name__, kind)
        self._places.append(place)
        return place

    def _before_embedding(self, place: _Place, size: int) -> Callable[..., tuple[Any, ...] | None]:
        def hook(_: object, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not args:
                return None
            ids = args[0]
            if _on_the_host(ids) and self._within(ids, size):
                return None
            fitting = ids.clamp(0, size - 1)
            place.note(self.step, fitting != ids, ids)
            return fitting, *args[1:]

        return hook

    def _after_head(self, place: _Place) -> Callable[..., Any]:
        def hook(_module: object, _args: object, logits: torch.Tensor) -> torch.Tensor:
            return self._finite(logits, place)

        return hook

    def _within(self, ids: torch.Tensor, size: int) -> bool:
        """Say whether all ``ids``, which are on the host, lie in an embedding of ``size`` rows."""
        self._looking = True
        try:
            least, most = ids.aminmax()
            return index(least) >= 0 and index(most) < size
        except (RuntimeError, TypeError):  # there are none; or they are vmap's, a fake mode's, no integers
            return False
        finally:
            self._looking = False

    def _all_finite(self, largest: torch.Tensor) -> bool:
        """Say whether all of ``largest``, which is on the host, is finite; False may mean huge numbers."""
        self._looking = True
        try:
            # Each call to torch costs more than it does: of a few rows it is spared one.
            few = largest.dim() == 1 and len(largest) <= _FEW
            return math.isfinite(sum(largest.tolist()) if few else largest.double().sum().item())
        except RuntimeError:
            return False
        finally:
            self._looking = False

    def _finite(self, logits: torch.Tensor, place: _Place) -> torch.Tensor:
        """Return ``logits`` of which softmax can make something in each row."""
        # NaN goes through the maximum, +inf is one, and a row of -inf alone has none that is finite.
        largest = (logits.detach() if logits.requires_grad else logits).amax(-1)
        if _on_the_host(logits) and self._all_finite(largest):
            return logits
        bad = ~largest.isfinite()
        place.note(self.step, bad, bad)
        if logits.requires_grad:
            return logits.nan_to_num(nan=0.0, posinf=0.0, neginf=float("-inf"))
        logits.nan_to_num_(nan=0.0, posinf=0.0, neginf=float("-inf"))
        logits[..., 0].masked_fill_(bad, 0.0)  # a row of -inf alone
        return logits


def _on_the_host(tensor: torch.Tensor) -> bool:
    """Say whether to look at ``tensor`` is free: it is on no device, and not traced by ``torch.compile``."""
    import torch  # noqa: PLC0415

    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    return plain and tensor.is_cpu and not torch.compiler.is_compiling()


def _head(model: torch.nn.Module, wanted: torch.nn.Module | str | None) -> torch.nn.Module | None:
    if isinstance(wanted, str):
        try:
            return model.get_submodule(wanted)
        except AttributeError:
            raise ConfigError(f"the model has no module {wanted!r} that could be its head") from None
    if wanted is not None:
        return wanted
    own = getattr(model, "get_output_embeddings", None)
    found: torch.nn.Module | None = own() if callable(own) else None
    return found if found is not None else getattr(model, "lm_head", None)


def _mode(check: Callable[[], None]) -> Any:
    """Return torch's way to see each call, which checks after those that read from the device."""
    import torch  # noqa: PLC0415
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415

    tensor = torch.Tensor
    reads = {
        tensor.item,
        tensor.tolist,
        tensor.cpu,
        tensor.numpy,
        tensor.__bool__,
        tensor.__float__,
        tensor.__int__,
    }

    class AtSync(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            answer = func(*args, **(kwargs or {}))
            if func in reads:
                with torch._C.DisableTorchFunction():  # noqa: SLF001
                    check()
            return answer

    return AtSync
