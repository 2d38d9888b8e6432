"""Where a command will listen on this machine: options of launchers, of ``ray start`` and of servers.

Only what is known to listen there: the port of a server to connect to is taken by right, and launchers that
look for a free port themselves (``torchrun --standalone``, ``accelerate launch`` on one machine) need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from rayguard.dialects.job_settings import LAST_PORT
from rayguard.dialects.values import value_of
from rayguard.dialects.words import options_of, program_of, serves_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RAY_WORKERS = {"min_worker_port": 10_002, "max_worker_port": 19_999}  # unless told otherwise
_RAY_HEAD = {"port": 6379, "dashboard_port": 8265, "ray_client_server_port": 10_001}
_RAY_PORTS = (
    *_RAY_HEAD,
    "metrics_export_port",
    "object_manager_port",
    "node_manager_port",
    "dashboard_agent_listen_port",
    "dashboard_agent_grpc_port",
    "runtime_env_agent_port",
)
_TORCH = ("torch.distributed.run", "torch.distributed.launch")
_SERVE = (("vllm", "serve"), ("trl", "vllm-serve"))
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")


def ports_of(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, int]:
    """Return where a command will listen on this machine, by the option or variable that says so."""
    program, module = program_of(words)
    named: dict[str, object] = {}
    if program in ("torchrun", "deepspeed", "accelerate") or module in _TORCH:
        named = _of_launcher(program, _before_the_script(words))
    elif _starts_ray(words):
        named = _of_ray(options_of(words), words)
    elif (program, *words[1:2]) in _SERVE or module in _SERVERS:
        named = _named(options_of(words), words, "port")
    elif program == "swift" and environment.get("NODE_RANK", "0") == "0":
        named = {"MASTER_PORT": value_of(environment.get("MASTER_PORT", ""))}
    named |= _of_weights(options_of(words), words)
    return {name: port for name, port in named.items() if _is_port(port)}


def worker_ports_of(words: Sequence[str]) -> tuple[int, int] | None:
    """Return the ports of Ray's workers that ``ray start`` sets, None for another command."""
    options = options_of(words)
    if not _starts_ray(words) or "worker_port_list" in options:
        return None
    first, last = (options.get(name, usual) for name, usual in _RAY_WORKERS.items())
    return (first, last) if _is_port(first) and _is_port(last) and 0 < first <= last else None


def _of_launcher(program: str, words: Sequence[str]) -> dict[str, object]:
    options = options_of(words)
    if str(options.get("node_rank", options.get("machine_rank", 0))) != "0" or "standalone" in options:
        return {}
    if program != "accelerate":
        return _named(options, words, "master_port")
    alone = str(options.get("num_machines", 1)) == "1"  # then it takes another port by itself
    return {} if alone else _named(options, words, "main_process_port")


def _of_ray(options: Mapping[str, object], words: Sequence[str]) -> dict[str, object]:
    usual: dict[str, object] = {}
    if "head" in options:
        usual = {
            f"--{name.replace('_', '-')}": port for name, port in _RAY_HEAD.items() if name not in options
        }
    return usual | _named(options, words, *_RAY_PORTS)


def _of_weights(options: Mapping[str, object], words: Sequence[str]) -> dict[str, object]:
    """Return where the group is made that weights go through: on the server's machine."""
    if options.get("vllm_mode") != "server" or not serves_here(options):
        return {}
    return _named(options, words, "vllm_group_port", "vllm_server_group_port")


def _starts_ray(words: Sequence[str]) -> bool:
    return program_of(words)[0] == "ray" and list(words[1:2]) == ["start"]


def _is_port(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= LAST_PORT


def _named(options: Mapping[str, object], words: Sequence[str], *names: str) -> dict[str, object]:
    """Return those of ``names`` that are options, as the command spells them."""
    found: dict[str, object] = {}
    for name in names:
        if name in options:
            dashed = f"--{name.replace('_', '-')}"
            spelled = any(word.partition("=")[0] == dashed for word in words)
            found[dashed if spelled else f"--{name}"] = options[name]
    return found


def _before_the_script(words: Sequence[str]) -> Sequence[str]:
    """Return a launcher's own words: what follows the script is the script's."""
    end = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    return words[:end]
