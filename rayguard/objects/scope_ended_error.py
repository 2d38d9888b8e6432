"""What a user gets who reads an object after its scope ended."""

from __future__ import annotations

from rayguard.errors import RayguardError


class ScopeEndedError(RayguardError, LookupError):
    """The object ended with the scope that made it. Fields: ``site`` (file:line in function), ``step``.

    Ray raises it as ``RayTaskError(ScopeEndedError)``: ``except ScopeEndedError`` catches it.
    """

    def __init__(self, site: str, step: int) -> None:
        super().__init__(site, step)
        self.site = site
        self.step = step

    def __str__(self) -> str:
        step = f" of step {self.step}" if self.step >= 0 else ""
        return (
            f"what {self.site or 'this process'} made ended with its object_scope{step}. To read it longer, "
            "call keep(ref) on the scope, return it from the scoped function, or raise keep_steps"
        )
