"""What was found of a server that lives and serves nobody. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope

_CONFIDENCE = 0.9
_SURE = 0.75  # of what the log names as the reason
_REASONS = frozenset(  # of an engine that is gone; others only say that it is, or speak of our own signal
    {
        Kind.SCHEDULER_ASSERTION,
        Kind.ENGINE_INIT_FAILED,
        Kind.CONFIG_INVALID,
        Kind.DEPENDENCY_MISMATCH,
        Kind.CUDA_OOM,
        Kind.CUDA_DEVICE_ASSERT,
        Kind.CUDA_ILLEGAL_ACCESS,
        Kind.GPU_HARDWARE,
        Kind.KV_CACHE_TOO_SMALL,
        Kind.HOST_OOM,
        Kind.SHM_EXHAUSTED,
        Kind.DISK_FULL,
        Kind.OS_LIMIT,
        Kind.NCCL_ERROR,
        Kind.NCCL_TIMEOUT,
    }
)
_NOT_THE_SERVER = frozenset({Scope.REQUEST, Scope.CODE})
_ADVICE = (
    "it is started again. Its clients must push the trained weights again: rayguard's guards of TRL and "
    "ms-swift do so by themselves"
)
GONE, SILENT, UNANSWERED = "server.engine_gone", "server.engine_silent", "server.unanswered"


@dataclass(frozen=True, slots=True)
class NotServing:
    """Why a server is ended: ``signature`` is one of the three above, ``cause`` is one line."""

    signature: str
    cause: str
    evidence: tuple[str, ...] = ()

    def diagnosis(self, of_log: Diagnosis) -> Diagnosis:
        """Return the verdict; ``of_log`` is what the server's output says.

        Of an engine that is gone the output may name the reason, and with it what avoids the next one.
        """
        named = (
            self.signature == GONE
            and of_log.kind in _REASONS
            and of_log.scope not in _NOT_THE_SERVER
            and of_log.confidence >= _SURE
        )
        if named:
            return of_log
        return Diagnosis(
            signature=self.signature,
            kind=Kind.ENGINE_DEAD if self.signature == GONE else Kind.ENGINE_HANG,
            scope=Scope.ENGINE,
            cause=self.cause,
            confidence=_CONFIDENCE,
            evidence=self.evidence,
            advice=_ADVICE,
            settings_help=False,
        )
