"""The error that ends a training whose numbers are beyond repair, before they are saved."""

from __future__ import annotations

from rayguard.errors import RayguardError

GRADIENTS, PARAMETERS = "gradients are NaN or infinite", "parameters are NaN or infinite"
# In words that the catalog knows, so that the log of the run is read as what it is.
_BEFORE = " (parameters become so where gradients are nan)"


class NotFiniteError(RayguardError, ArithmeticError):
    """Gradients or parameters are NaN or infinite; nothing of it was saved.

    Fields: ``what`` ("gradients are NaN or infinite"), ``step``, ``names`` (the first that are not finite),
    ``advice``.
    """

    def __init__(self, what: str, step: int, names: tuple[str, ...], advice: str) -> None:
        super().__init__(what, step, names, advice)
        self.what = what
        self.step = step
        self.names = names
        self.advice = advice

    def __str__(self) -> str:
        of = f": {', '.join(self.names)}" if self.names else ""
        before = _BEFORE if self.what == PARAMETERS else ""
        return f"at step {self.step} {self.what}{of}{before}. No checkpoint was saved of it. {self.advice}"
