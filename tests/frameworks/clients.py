"""Clients with the methods and signatures of the real ones; weights go over HTTP in the place of NCCL.

``contract`` compares them with the real classes where those are installed (``test_server_clients``).
"""

# ruff: noqa: PLR0913, PLR0917, TRY002 - as the real ones are
from __future__ import annotations

import contextlib
from dataclasses import dataclass

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry


def send(client, weights, port, url):
    """Stand for a broadcast over the group of ``port``."""
    body = {"port": port, "weights": {name: one.flatten().tolist() for name, one in weights}}
    client_session = requests.Session()
    with client_session:
        answer = client_session.post(f"{url}/weights", json=body)
    if answer.status_code != 200:
        raise RuntimeError(f"NCCL: {answer.text}")


class TrlClient:
    """``trl.generation.vllm_client.VLLMClient`` of TRL 1.16."""

    def __init__(
        self, base_url=None, host="0.0.0.0", server_port=8000, group_port=51216, connection_timeout=0.0
    ):
        self.session = requests.Session()
        retry = Retry(
            total=5, connect=5, read=5, status=3, status_forcelist=[500, 502, 503], backoff_factor=0.01,
            allowed_methods=["POST", "GET"],
        )  # fmt: skip
        self.session.mount("http://", HTTPAdapter(max_retries=retry))
        self.base_url = base_url or f"http://{host}:{server_port}"
        self.group_port = group_port
        self.communicator = None
        self._updating_weights = False

    def _post(self, url, **kwargs):
        response = self.session.post(url, **kwargs)
        if response.status_code != 200:
            raise Exception(f"Request failed: {response.status_code}, {response.text}")
        return response.json()

    def generate(
        self, prompts, features=None, n=1, repetition_penalty=1.0, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=16,
        logprobs=0, structured_outputs_regex=None, generation_kwargs=None,
    ):  # fmt: skip
        choices = self._post(f"{self.base_url}/v1/completions", json={"model": "m", "prompt": prompts})[
            "choices"
        ]
        return {"completion_ids": [choice["token_ids"] for choice in choices]}

    def chat(
        self, messages, n=1, repetition_penalty=1.0, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=16,
        logprobs=0, structured_outputs_regex=None, generation_kwargs=None, chat_template_kwargs=None, tools=None,
        chat_template=None, max_concurrent_requests=64,
    ):  # fmt: skip
        return self.generate(messages)

    def init_communicator(self, device=0):
        info = {"init_info": {"master_port": self.group_port}}
        self._post(f"{self.base_url}/init_weight_transfer_engine", json=info)
        self.communicator = self.group_port

    @contextlib.contextmanager
    def weight_update(self):
        self._post(f"{self.base_url}/start_weight_update", json={})
        self._updating_weights = True
        try:
            yield
        finally:
            self._updating_weights = False
            self._post(f"{self.base_url}/finish_weight_update", json={})

    def update_named_param(self, name, weights):
        self.update_named_params([(name, "float32", list(weights.shape))], iter([(name, weights)]))

    def update_named_params(self, metadata, named_params):
        if not self._updating_weights:
            self._post(f"{self.base_url}/start_weight_update", json={})
        self._post(f"{self.base_url}/update_weights", json={"names": [name for name, *_ in metadata]})
        for one in named_params:
            send(self, [one], self.communicator, self.base_url)
        if not self._updating_weights:
            self._post(f"{self.base_url}/finish_weight_update", json={})

    def update_model_params(self, model):
        named = [(name, one.data) for name, one in model.named_parameters()]
        self.update_named_params([(name, "float32", list(one.shape)) for name, one in named], iter(named))

    def reset_prefix_cache(self):
        self._post(f"{self.base_url}/reset_prefix_cache")

    def close_communicator(self):
        self.communicator = None


class OldTrlClient:
    """The same of TRL 1.10 and before: one call for each parameter, the group is the server's."""

    def __init__(
        self, base_url=None, host="0.0.0.0", server_port=8000, group_port=51216, connection_timeout=0.0
    ):
        TrlClient.__init__(self, base_url, host, server_port, group_port, connection_timeout)

    _post = TrlClient._post

    def generate(
        self, prompts, images=None, n=1, repetition_penalty=1.0, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0,
        max_tokens=16, logprobs=0, structured_outputs_regex=None, generation_kwargs=None,
    ):  # fmt: skip
        return TrlClient.generate(self, prompts)

    def chat(
        self, messages, n=1, repetition_penalty=1.0, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=16,
        logprobs=0, structured_outputs_regex=None, generation_kwargs=None, chat_template_kwargs=None, tools=None,
        chat_template=None,
    ):  # fmt: skip
        return self.generate(messages)

    def init_communicator(self, device=0):
        self._post(f"{self.base_url}/init_communicator/", json={"port": self.group_port})
        self.communicator = self.group_port

    def update_named_param(self, name, weights):
        self._post(f"{self.base_url}/update_named_param/", json={"name": name})
        send(self, [(name, weights)], self.communicator, self.base_url)

    def update_model_params(self, model):
        for name, one in model.named_parameters():
            self.update_named_param(name, one.data)

    def reset_prefix_cache(self):
        self._post(f"{self.base_url}/reset_prefix_cache/")

    def close_communicator(self):
        self._post(f"{self.base_url}/close_communicator/")
        self.communicator = None


class SwiftInferClient:
    """``swift.rlhf_trainers.vllm_client.VLLMInferClient`` of ms-swift 4.6."""

    def __init__(self, base_urls=None, hosts=("0.0.0.0",), server_ports=(8000,), connection_timeout=240.0):
        self.base_urls = list(base_urls)
        self.num_servers = len(self.base_urls)
        self.sessions = [requests.Session() for _ in self.base_urls]

    def _each(self, path, bodies):
        def posted(session, url, body):
            try:
                answer = session.post(f"{url}/{path}/", json=body)
            except requests.exceptions.RequestException as error:
                return None, error
            if answer.status_code != 200:
                said = (
                    f"failed: {answer.status_code}, {answer.text}"
                    if path == "infer"
                    else f"update failed: {answer.text}"
                )
                return None, Exception(f"Server 0 {said}")
            return answer.json(), None

        done = [posted(*one) for one in zip(self.sessions, self.base_urls, bodies, strict=True)]
        errors = [error for _, error in done if error is not None]
        if errors:
            raise RuntimeError(f"Multiple errors: {errors}")
        return [answer for answer, _ in done]

    def infer(
        self, infer_requests, request_config=None, metrics=None, *, use_tqdm=None, adapter_request=None
    ):
        size = -(-len(infer_requests) // self.num_servers)
        chunks = [infer_requests[at * size : (at + 1) * size] for at in range(self.num_servers)]
        return [one for some in self._each("infer", [{"infer_requests": c} for c in chunks]) for one in some]


class SwiftClient(SwiftInferClient):
    """``swift.rlhf_trainers.vllm_client.VLLMClient`` of ms-swift 4.6."""

    def __init__(
        self,
        base_urls=None,
        hosts=("0.0.0.0",),
        server_ports=(8000,),
        group_ports=None,
        connection_timeout=240.0,
    ):
        SwiftInferClient.__init__(self, base_urls)
        self.group_ports = [(group_ports or 51216) + at for at in range(self.num_servers)]
        self.pynccl_comms = []

    def init_communicator(self, device=0):
        self._each("init_communicator", [{"port": port} for port in self.group_ports])
        self.pynccl_comms = list(self.group_ports)

    def _broadcast(self, weights):
        for url, port in zip(self.base_urls, self.pynccl_comms, strict=True):
            send(self, weights, port, url)

    def update_named_param(self, name, weights):
        self._each("update_named_param", [{"name": name}] * self.num_servers)
        self._broadcast([(name, weights)])

    def update_adapter_flattened_param(self, peft_config, metadatas, flattened_tensor):
        self._each("update_adapter_flattened_param", [{}] * self.num_servers)
        self._broadcast([("adapter", flattened_tensor)])

    def update_adapter_param(self, peft_config, lora_params):
        self._each("update_adapter_param", [{}] * self.num_servers)
        self._broadcast(list(lora_params.items()))

    def update_flattened_params(self, metadatas, flattened_tensor):
        self._each(
            "update_flattened_params", [{"metadatas": [one.name for one in metadatas]}] * self.num_servers
        )
        self._broadcast([(metadatas[0].name, flattened_tensor)])

    def process_weights_after_loading(self):
        self._each("process_weights_after_loading", [{}] * self.num_servers)

    def update_model_params(self, model):
        for name, one in model.named_parameters():
            self.update_named_param(name, one.data)

    def reset_prefix_cache(self):
        self._each("reset_prefix_cache", [{}] * self.num_servers)

    def reset_encoder_cache(self):
        self._each("reset_encoder_cache", [{}] * self.num_servers)

    def reset_mm_cache(self):
        self._each("reset_mm_cache", [{}] * self.num_servers)

    def get_engine_type(self):
        return self._each("get_engine_type", [{}] * self.num_servers)[0]

    def get_model_state_keys(self):
        return []

    def close_communicator(self):
        with contextlib.suppress(Exception):
            self._each("close_communicator", [{}] * self.num_servers)


@dataclass
class Bucket:
    """One of ms-swift's descriptions of a flattened tensor."""

    name: str


def fresh(cls):
    """Return a copy of a client's class, and of its base, for one test: guarding changes a class for good."""
    base = fresh(SwiftInferClient) if cls is SwiftClient else object
    members = {name: one for name, one in vars(cls).items() if name not in {"__dict__", "__weakref__"}}
    return type(cls.__name__, (base,), members)
