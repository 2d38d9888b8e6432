"""The public API as a user's type checker sees it: checked by mypy --strict, never run."""

from __future__ import annotations

from typing import Any

import rayguard
from rayguard import (
    ConfigError,
    EngineHungError,
    EngineSettings,
    GaveUpError,
    GuardPolicy,
    Incident,
    Ladder,
    RayguardError,
    RecoveryTimeoutError,
    RestartBudget,
    RolloutMixin,
    Weights,
    WeightsError,
    guard,
    incident_of,
    method,
    serve_metrics,
)

policy = GuardPolicy(
    engine_budget=RestartBudget(max_restarts=3, within_s=60.0),
    ladder=Ladder(rungs=("eager",)),
    probation_s=None,
)


@guard
class Bare:
    def one(self, x: int) -> int:
        return x


@guard(policy=policy, idempotent=False)
class WithOptions:
    @method(idempotent=True)
    def one(self, x: int) -> str:
        return str(x)


class Rollout(RolloutMixin):
    def __init__(self) -> None:
        self.start_engine(weights=lambda: Weights(version="1", path="/somewhere"), policy=policy)

    def build_engine(self, settings: EngineSettings) -> Any:
        return dict(**settings.as_kwargs(model="m"))

    def generate(self, prompts: list[str]) -> list[str]:
        result: list[str] = self.with_engine(lambda engine: list(engine.generate(prompts)))
        return result


bare: Bare = Bare()
number: int = bare.one(1)
text: str = WithOptions().one(1)
status: dict[str, Any] = Rollout().engine_status()

try:
    number = bare.one(2)
except (
    ConfigError,
    EngineHungError,
    GaveUpError,
    RecoveryTimeoutError,
    WeightsError,
    RayguardError,
) as error:
    incident: Incident | None = incident_of(error)

port: int = serve_metrics(port=0).port
version: str = rayguard.__version__
