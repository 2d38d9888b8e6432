"""The real classes of Ray, torch and vLLM, as they arrive, with no cluster and no engine behind them."""

import json
import pickle

import pytest

from rayguard.faults.diagnose import diagnose
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, Role, facts_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's imports


def verdict(error):
    """Diagnose what is caught, as the guard does."""
    return diagnose(Fault(exceptions=facts_of(error)))


def raised(function, *arguments):
    """Return the exception that ``function`` raises."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def score(item):
    """Stand for a user's reward function."""
    return json.loads(item["answer"])


def _task_error(cause):
    """Return what ``ray.get`` raises for a task that raised ``cause``: without traceback, from a pickle."""
    import traceback

    from ray.exceptions import RayTaskError

    text = "".join(traceback.format_exception(cause))
    wrapped = RayTaskError("score", text, cause, "ray::score", 7, "10.0.0.1")
    return pickle.loads(pickle.dumps(wrapped)).as_instanceof_cause()


# ------------------------------------------------------------------ the user's own code


def test_a_bug_of_the_user_is_the_users():
    """Raised here, in a file that is no library's."""
    found = verdict(raised(score, {}))
    assert (found.kind, found.scope) == (Kind.USER_CODE, Scope.CODE)
    assert "KeyError: 'answer'" in found.cause
    assert "test_real_exceptions.py" in found.cause


def test_a_wrong_argument_to_the_standard_library_is_the_users():
    """The innermost frame is json's; the mistake is not."""
    found = verdict(raised(score, {"answer": "{"}))
    assert found.kind is Kind.USER_CODE
    assert "JSONDecodeError" in found.cause


def test_the_line_that_is_named_is_the_users():
    """Where the standard library raised, the line to correct is the one that asked it."""
    error = raised(score, {"answer": "{bad"})
    assert error.__traceback__.tb_next.tb_next is not None, "json's own frames are there"
    [told] = [one for one in verdict(error).evidence if "JSONDecodeError" in one]
    assert told.endswith(f"test_real_exceptions.py:{score.__code__.co_firstlineno + 2} in score)")


def test_a_librarys_failure_is_not_the_users():
    """Called from here, raised in a package."""
    import pydantic

    found = verdict(raised(lambda: pydantic.create_model("X", __base__=3)))
    assert found.kind is Kind.UNKNOWN
    assert "pydantic/" in found.cause


# ------------------------------------------------------------------ Ray


def test_a_users_bug_is_found_behind_ray():
    """Ray drops the traceback; its text still says whose file it was."""
    found = verdict(raised(_raise, _task_error(raised(score, {}))))
    assert (found.kind, found.scope) == (Kind.USER_CODE, Scope.CODE)
    assert "test_real_exceptions.py" in found.cause
    assert "KeyError: 'answer'" in found.cause


def test_the_root_of_a_chain_is_found_behind_ray():
    """``raise ... from error`` in a task: the inner exception exists only in the text."""

    def fail():
        try:
            _raise(OSError(98, "Address already in use"))
        except OSError as error:
            raise RuntimeError("cannot start") from error

    found = verdict(raised(_raise, _task_error(raised(fail))))
    assert found.kind is Kind.PORT_CONFLICT
    assert "Address already in use" in found.cause


def test_a_failing_constructor_is_found_behind_actor_died():
    """ActorDiedError holds the constructor's error as text only."""
    import traceback

    from ray.exceptions import ActorDiedError, RayTaskError

    text = "".join(traceback.format_exception(raised(score, {})))
    error = ActorDiedError(
        RayTaskError("B.__init__", text, KeyError("answer"), "ray::B.__init__", 7, "10.0.0.1")
    )
    found = verdict(error)
    assert (found.kind, found.scope) == (Kind.USER_CODE, Scope.CODE)


def test_the_two_out_of_memory_errors_are_told_apart():
    """Same last name, other memory: torch's is the device, Ray's is the host."""
    import torch
    from ray.exceptions import OutOfMemoryError

    text = "1 worker(s) were killed due to the node running low on memory."
    assert (verdict(OutOfMemoryError(text)).kind, verdict(OutOfMemoryError("")).kind) == (Kind.HOST_OOM,) * 2
    assert (
        verdict(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")).kind is Kind.CUDA_OOM
    )
    behind = verdict(raised(_raise, _task_error(torch.OutOfMemoryError("CUDA out of memory."))))
    assert (behind.kind, behind.scope) == (Kind.CUDA_OOM, Scope.PROCESS)


def _ray_errors():
    from ray import exceptions as ray

    ref = "00" * 28
    return [
        (ray.ActorDiedError(), Kind.ACTOR_DIED),
        (ray.RayActorError(), Kind.ACTOR_DIED),
        (
            ray.ActorUnavailableError("RpcError: RPC Error message: Socket closed", b"\1" * 16),
            Kind.ACTOR_UNAVAILABLE,
        ),
        (ray.WorkerCrashedError(), Kind.ACTOR_DIED),
        (ray.NodeDiedError("the node is gone"), Kind.NODE_DIED),
        (ray.LocalRayletDiedError(), Kind.NODE_DIED),
        (ray.ObjectLostError(ref, None, ""), Kind.OBJECT_LOST),
        (ray.OwnerDiedError(ref, None, ""), Kind.OBJECT_LOST),
        (ray.ObjectReconstructionFailedError(ref), Kind.OBJECT_LOST),
        (ray.ObjectFetchTimedOutError(ref, None, ""), Kind.OBJECT_LOST),
        (ray.ObjectStoreFullError("no room"), Kind.OBJECT_STORE_FULL),
        (ray.GetTimeoutError("Get timed out: some object(s) not ready."), Kind.GET_TIMEOUT),
        (ray.RuntimeEnvSetupError("pip failed"), Kind.RUNTIME_ENV_FAILED),
        (ray.TaskUnschedulableError("no node"), Kind.SCHEDULING_TIMEOUT),
        (ray.ActorUnschedulableError("no node"), Kind.SCHEDULING_TIMEOUT),
        (ray.ActorPlacementGroupRemoved(), Kind.ACTOR_DIED),
    ]


def test_rays_own_errors_have_their_kinds():
    """Each class as Ray itself builds it."""
    for error, kind in _ray_errors():
        assert verdict(raised(_raise, error)).kind is kind, type(error)


def test_a_preempted_actor_is_preempted():
    """As the GCS words it; an owner that died may be a worker, so no node is named dead."""
    from ray.core.generated.common_pb2 import ActorDiedErrorContext
    from ray.exceptions import ActorDiedError

    def died(message):
        return verdict(ActorDiedError(ActorDiedErrorContext(actor_id=b"\1" * 16, error_message=message))).kind

    assert died("the actor's node was preempted: spot reclaim") is Kind.PREEMPTED
    assert died("The actor died because its node has died. Node Id: 62dced") is Kind.NODE_DIED
    assert died("The actor is dead because its owner has died. Owner Id: 01") is Kind.ACTOR_DIED
    assert died("The actor is dead because it was killed by `ray.kill`.") is Kind.ACTOR_DIED


# ------------------------------------------------------------------ torch


def test_torchs_own_errors_have_their_kinds():
    """Raised by torch itself, on the CPU."""
    import torch

    def diverge():
        grown = torch.ones(2, requires_grad=True)
        grown.grad = torch.tensor([float("nan"), 1.0])
        torch.nn.utils.clip_grad_norm_([grown], 1.0, error_if_nonfinite=True)

    cases = [
        (lambda: torch.empty(10**14), Kind.HOST_OOM),
        (diverge, Kind.NUMERIC_NAN),
        (lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1), Kind.CUDA_DEVICE_ASSERT),
        (lambda: torch.distributed.init_process_group("gloo"), Kind.LAUNCHER_MISCONFIG),
        (lambda: torch.zeros(2) @ torch.zeros(3), Kind.USER_CODE),
    ]
    for fail, kind in cases:
        assert verdict(raised(fail)).kind is kind, kind


def test_a_taken_port_is_a_port_conflict(monkeypatch):
    """From torch's store and from a plain socket."""
    import socket

    import torch.distributed

    with socket.socket() as taken, socket.socket() as second:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert verdict(raised(second.bind, ("127.0.0.1", port))).kind is Kind.PORT_CONFLICT
        store = raised(lambda: torch.distributed.TCPStore("127.0.0.1", port, is_master=True))
        assert verdict(store).kind is Kind.PORT_CONFLICT


def test_distributed_errors_belong_to_the_group():
    """Their classes say so, whatever their text."""
    import torch.distributed as dist

    for error, kind in [
        (dist.DistBackendError("NCCL error in: x.cpp:1, remote process exited"), Kind.NCCL_ERROR),
        (dist.DistStoreError("wait timeout after 300000ms, keys: /a"), Kind.GLOO_ERROR),
        (dist.DistNetworkError("The client socket has timed out after 600000ms"), Kind.GLOO_ERROR),
    ]:
        found = verdict(error)
        assert (found.kind, found.scope) == (kind, Scope.GROUP)


def test_the_offset_of_a_cpu_generator_is_the_engines_only_in_the_engine():
    """The same torch error in a user's own code is the user's."""
    import torch

    error = raised(lambda: torch.Generator().get_offset())
    assert verdict(error).kind is Kind.USER_CODE
    found = diagnose(Fault(records=facts_of(error, role=Role.ENGINE_WORKER)))
    assert (found.signature, found.cures) == ("vllm.seeded_partial_prefill", ("chunked_prefill_off",))
    assert (found.kind, found.scope, found.deterministic) == (Kind.ENGINE_INTERNAL_ERROR, Scope.ENGINE, True)


# ------------------------------------------------------------------ vLLM


def test_vllms_own_errors_have_their_kinds():
    """A refused request is the request's; a dead engine is the engine's; a bad setting is the job's."""
    pytest.importorskip("vllm")
    from vllm import SamplingParams
    from vllm.config import SchedulerConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.exceptions import LoRAAdapterNotFoundError
    from vllm.v1.engine.exceptions import EngineDeadError

    settings = {"max_model_len": 64, "is_encoder_decoder": False, "runner_type": "generate"}
    cases = [
        (EngineDeadError(), Kind.ENGINE_DEAD, Scope.ENGINE),
        (raised(lambda: SamplingParams(temperature=-1.0)), Kind.REQUEST_INVALID, Scope.REQUEST),
        (raised(lambda: SamplingParams(n=0)), Kind.REQUEST_INVALID, Scope.REQUEST),
        (LoRAAdapterNotFoundError("a", "/a"), Kind.REQUEST_INVALID, Scope.REQUEST),
        (raised(lambda: EngineArgs(swap_space=4)), Kind.CONFIG_INVALID, Scope.JOB),
        (raised(lambda: SchedulerConfig(max_num_seqs=0, **settings)), Kind.CONFIG_INVALID, Scope.JOB),
    ]
    for error, kind, scope in cases:
        found = verdict(error)
        assert (found.kind, found.scope) == (kind, scope), found.cause


# ------------------------------------------------------------------ facts of an exception


def test_a_long_message_keeps_both_ends():
    """Ray's wrappers say who failed at the start and why at the end."""
    fact = facts_of(ValueError("start" + "x" * 100_000 + "end"))[0]
    assert fact.message.startswith("start")
    assert fact.message.endswith("end")
    assert len(fact.message) <= 4_000


def test_a_broken_str_is_no_obstacle():
    """The user's exception raises while it is being printed."""

    class BrokenError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert "RuntimeError" in facts_of(BrokenError())[0].message
    assert verdict(raised(_raise, BrokenError())).kind is Kind.USER_CODE


def test_a_chain_that_bites_its_tail_ends():
    """``a from b from a`` is legal Python."""
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert len(facts_of(first)) == 2


def _raise(error):
    raise error
