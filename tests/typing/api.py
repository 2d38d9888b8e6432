"""The public API as a user's type checker sees it: checked by mypy --strict, never run."""

from __future__ import annotations

from typing import Any

import rayguard
from rayguard import (
    Batch,
    BatchChunk,
    BatchChunks,
    BatchError,
    CallLostError,
    ConfigError,
    DeadlineError,
    EngineCallError,
    EngineHungError,
    EngineSettings,
    GangCallError,
    GangPolicy,
    GangStatus,
    GaveUpError,
    Generation,
    GroupMemberError,
    GuardPolicy,
    Incident,
    Ladder,
    MemoryMixin,
    MemoryPolicy,
    NumericError,
    NumericGuard,
    PoolPolicy,
    QuarantinedError,
    RankGroup,
    RayguardError,
    RecoveryTimeoutError,
    RequestError,
    RestartBudget,
    RolloutMixin,
    RolloutPool,
    Sample,
    SnapshotPolicy,
    StateLostError,
    TrainerGang,
    TrainerMixin,
    TrainingAlarm,
    TrainingAlarms,
    Weights,
    WeightsError,
    guard,
    incident_of,
    method,
    object_scope,
    preflight,
    preloaded,
    serve_metrics,
    split_batch,
)

policy = GuardPolicy(
    engine_budget=RestartBudget(max_restarts=3, within_s=60.0),
    ladder=Ladder(rungs=("eager",)),
    probation_s=None,
    snapshot=SnapshotPolicy(every_calls=10, every_s=30.0),
)


@guard
class Bare:
    def one(self, x: int) -> int:
        return x


@guard(policy=policy, state="none", idempotent=False)
class WithOptions:
    @method(idempotent=True)
    def one(self, x: int) -> str:
        return str(x)


@guard
def task(x: int) -> str:
    return str(x)


@guard(memory=MemoryPolicy(process_limit=1 << 30))
def task_with_options(x: int) -> str:
    return task(x)


@guard(memory=MemoryPolicy(process_limit=1 << 30, recycle="stateless", step="one"))
class Leaky:
    def one(self, x: int) -> int:
        return x


@guard(state=("save", "load"))
class Named:
    def save(self) -> int:
        return 1

    def load(self, state: int) -> None: ...


class Trainer(MemoryMixin):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


class Rollout(RolloutMixin):
    def __init__(self) -> None:
        self.start_engine(weights=lambda: Weights(version="1", path="/somewhere"), policy=policy)

    def build_engine(self, settings: EngineSettings) -> Any:
        return dict(**settings.as_kwargs(model="m"))

    def generate(self, prompts: list[str]) -> list[str]:
        result: list[str] = self.with_engine(lambda engine: list(engine.generate(prompts)))
        return result


@object_scope
def train_step(step: int) -> str:
    with object_scope(step, keep_steps=0, across=False) as scope:
        kept: list[int] = scope.keep([1])
    ended_bytes: int = scope.ended.size_bytes
    return str((kept, ended_bytes))


@object_scope(keep_steps=2)
async def train_step_async(step: int) -> int:
    return step


stepped: str = train_step(1)
bare: Bare = Bare()
number: int = bare.one(1)
text: str = WithOptions().one(1)
status: dict[str, Any] = Rollout().engine_status()

pool: RolloutPool = RolloutPool(
    Rollout, engines=2, options={"num_gpus": 1}, policy=PoolPolicy(max_weight_lag=1)
)
batch: Batch = pool.generate([[1, 2]], {"max_tokens": 4, "n": 2}, ids=["a"], partial="shrink")
generation: Generation = batch[0]
sample: Sample = generation.samples[0]
tokens: list[int] = sample.token_ids
logprobs: list[float] = sample.logprobs
pushed: str = pool.update_weights()
for generation in pool.as_completed(["text"]):
    failed: Exception | None = generation.error
pool.close()

try:
    number = bare.one(2)
except (
    BatchError,
    CallLostError,
    ConfigError,
    DeadlineError,
    EngineCallError,
    EngineHungError,
    GaveUpError,
    GroupMemberError,
    NumericError,
    QuarantinedError,
    RecoveryTimeoutError,
    RequestError,
    StateLostError,
    WeightsError,
    RayguardError,
) as error:
    incident: Incident | None = incident_of(error)

chunks: BatchChunks = split_batch({"response_mask": [[1], [1], [1]]}, world=2, even=False)
chunk: BatchChunk = chunks[0]
weight: float = chunk.weight("response_mask")
fits: bool = bool(preflight(prompts=512, gpus=6))
workers: dict[str, object] = preloaded("vllm", runtime_env={"env_vars": {"A": "b"}})
where: str = NumericError("lm_head", "logit", 0, 1, 2, None).tensor
guard_of: type[NumericGuard] = NumericGuard
alarms: TrainingAlarms = TrainingAlarms(patience=3, only=("kl_blow_up",), on_alarm=print)
alarm: TrainingAlarm
for alarm in alarms.observe(7, reward=0.5, kl=0.1, rewards_by_group=[[1.0, 0.0]]):
    since: int = alarm.since_step
limit: float | None = alarms.thresholds()["kl_blow_up"]


class Trains(TrainerMixin):
    state_excludes = ("config",)

    def step(self, loss: float) -> bool:
        return self.step_is_finite(loss)


def gang_of(trainer: type[Trains]) -> GangStatus:
    with TrainerGang(trainer, ranks=2, spares=1, policy=GangPolicy(min_ranks=1)) as gang:
        answers: list[Any] = gang.call("step", 0.5, each=chunks, deadline_s=60.0)
        current: str = gang.publish_weights()
        gang.resize(len(answers) + len(current))
        return gang.status()


def place(group: RankGroup) -> int:
    return group.rank + group.size + group.generation


causes: tuple[str, ...] = GangCallError("Trains.step", ("rank 1 died",), "look there").causes
taken: int = Trains().finite_steps.taken
port: int = serve_metrics(port=0).port
version: str = rayguard.__version__
