"""What vLLM would answer wrongly without a word is refused by name, and what it answers rightly is not."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rayguard.config import Settings
from rayguard.engine.vllm.door import known_wrong, meetings
from rayguard.engine.vllm.door.finite import not_finite
from rayguard.engine.vllm.door.known_wrong import EngineTraits
from rayguard.engine.vllm.door.meetings import Meetings, refuse_settings
from rayguard.engine.vllm.kept.condition import Call
from rayguard.errors import ConfigError

TRAITS = EngineTraits(version="0.32", torch="2.13", prefix_caching=True, max_num_seqs=8)


class Params(SimpleNamespace):
    """Sampling options as far as they are looked at."""

    def __init__(self, **options):
        plain = {
            "logprobs": None,
            "logit_bias": None,
            "min_tokens": 0,
            "all_stop_token_ids": set(),
            "structured_outputs": None,
        }
        super().__init__(**{**plain, **options})
        self.__struct_fields__ = tuple(vars(self))


def request(name="a", *, lora=None, embeds=None, ids=None, mask=None, features=None, **options):
    return SimpleNamespace(
        request_id=name,
        sampling_params=Params(**options),
        lora_request=lora,
        prompt_embeds=embeds,
        prompt_token_ids=ids,
        prompt_is_token_ids=mask,
        mm_features=features,
    )


@pytest.fixture
def engine(monkeypatch):
    """Meetings before an engine of which ``traits`` are what is told, and its requests ``inside``."""
    inside, core = set(), SimpleNamespace()
    here = SimpleNamespace(inside=inside, core=core, traits=TRAITS)
    monkeypatch.setattr(meetings, "traits_of", lambda _: here.traits)
    here.meetings = Meetings(inside)

    def asks(one):
        reason = here.meetings.refusal(one, here.core)
        if not reason:
            inside.add(one.request_id)
        return reason

    here.asks = asks
    return here


FEATURE = [SimpleNamespace(modality="image", data={"pixels": SimpleNamespace(data=[torch.ones(2), None])})]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": math.inf}, "top_p is inf"),
        ({"logit_bias": {3: 1.0, 7: math.nan}}, "logit_bias[7] is nan"),
        ({"logit_bias": {7: math.inf}}, "logit_bias[7] is inf"),
        (
            {"embeds": torch.tensor([[1.0, 2.0], [3.0, math.nan]])},
            "prompt_embeds is not finite (nan at [1, 1])",
        ),
        ({"embeds": torch.tensor([[math.inf, -math.inf]])}, "inf at [0, 0], and 1 more"),
        ({"embeds": torch.tensor([[-math.inf, 0.0]], dtype=torch.bfloat16)}, "-inf at [0, 0]"),
        ({"embeds": torch.tensor([[1.0, math.nan]], dtype=torch.float16)}, "nan at [0, 1]"),
        ({"embeds": torch.tensor([[1.0, math.nan]]).to(torch.float8_e5m2)}, "nan at [0, 1]"),
        ({"embeds": torch.tensor([[math.inf, math.nan]], dtype=torch.float64)}, "inf at [0, 0], and 1 more"),
        (
            {
                "features": [
                    *FEATURE,
                    SimpleNamespace(
                        modality="audio", data={"mel": SimpleNamespace(data=[torch.tensor([math.nan])])}
                    ),
                ]
            },
            "mm_features[1] (audio): mel is not finite",
        ),
    ],
)
def test_what_is_not_finite_is_named(made, said, engine):
    """By its field, and where in it; nothing is taken note of."""
    assert said in not_finite(request(**made))
    assert said in engine.asks(request(**made))
    assert "RAYGUARD_ALLOW=not_finite" in engine.asks(request(**made))
    assert engine.inside == set()


@pytest.mark.parametrize(
    "made",
    [
        {"logit_bias": {7: -math.inf, 8: 3}, "seed": 2**70, "extra_args": {"a": math.nan}},
        {"embeds": torch.full((3, 2), 3e38)},  # whose sum is infinite
        {"embeds": torch.full((3, 2), 60000.0, dtype=torch.float16)},
        {"embeds": torch.zeros(0, 2)},
        {"features": [*FEATURE, SimpleNamespace(modality="image", data=None)]},
        {
            "features": [
                SimpleNamespace(
                    modality="image",
                    data={"pixel_mask": SimpleNamespace(data=torch.tensor([0.0, -math.inf]))},
                )
            ]
        },
        {
            "features": [
                SimpleNamespace(modality="image", data={"sizes": SimpleNamespace(data=torch.tensor([2, 3]))})
            ]
        },
        {"embeds": object()},
    ],
)
def test_what_is_finite_or_soundly_infinite_goes_in(made, engine):
    """A bias of -inf forbids a token; so does one in a mask."""
    assert engine.asks(request(**made)) == ""


def test_log_probabilities_by_token_do_not_meet_those_of_the_likeliest(engine):
    """Whichever came first stays; the other may come once it has ended."""
    assert engine.asks(request("likeliest", logprobs=3)) == ""
    assert engine.asks(request("none")) == ""
    assert engine.asks(request("sampled", logprobs=0)) == ""
    said = engine.asks(request("by token", logprobs=2, logprob_token_ids=[5, 6]))
    assert "pull/51789" in said
    assert "the other one is request 'likeliest'" in said
    assert "RAYGUARD_ALLOW=logprob_token_ids" in said
    engine.inside.remove("likeliest")
    assert engine.asks(request("by token", logprob_token_ids=[5, 6])) == ""
    assert not engine.meetings.would_spoil(request()), "it asks for none"
    engine.meetings.noted(Call(name="reset_prefix_cache"), True)
    assert engine.meetings.would_spoil(request(logprobs=3)), "they meet in a batch, not in the cache"
    assert "the other one is request 'by token'" in engine.asks(request("again", logprobs=1))
    assert engine.asks(request("sampled again", logprobs=0)) == "", "it loses nothing"
    assert engine.asks(request("more", logprob_token_ids=[7])) == ""
    engine.inside.clear()
    assert not engine.meetings.would_spoil(request(logprobs=3))


@pytest.mark.parametrize("other", [{"v2_runner": True}, {"max_num_seqs": 1}, {"version": "0.33"}])
def test_where_they_do_no_harm_they_may_meet(engine, other):
    """In vLLM's other runner, where one runs at a time, and in a version of which nothing is known."""
    engine.traits = replace(TRAITS, **other)
    assert engine.asks(request("a", logprobs=3)) == ""
    assert engine.asks(request("b", logprob_token_ids=[5, 6])) == ""


def test_who_has_ended_is_not_kept_for_ever(engine):
    """A million requests leave a handful of names."""
    for n in range(1000):
        assert engine.asks(request(str(n), logprobs=3)) == ""
        engine.inside.discard(str(n))
    (claims,) = engine.meetings._claims.values()
    assert len(claims.holders["the likeliest"]) < 100


@pytest.mark.parametrize(
    "options",
    [
        {"bad_words_token_ids": [[5], [6], [7, 8]], "bad_words": ["x"]},
        {"logit_bias": {5: -math.inf, 6: -math.inf}},
        {"min_tokens": 1, "all_stop_token_ids": {5, 6, 0}},
        {"min_tokens": 1, "all_stop_token_ids": {5}, "logit_bias": {6: -math.inf}},
    ],
)
def test_a_request_that_leaves_no_token_is_refused(engine, options):
    """VLLM would answer with one that is not allowed."""
    assert "issues/57986" in engine.asks(request(allowed_token_ids=[5, 6], **options))
    assert engine.asks(request(allowed_token_ids=[5, 6, 9], **options)) == ""
    assert engine.asks(request(**options)) == ""


def test_stop_tokens_of_a_grammar_are_given_back_by_vllm(engine):
    """As min_tokens would leave nothing there."""
    options = {"allowed_token_ids": [5], "min_tokens": 1, "all_stop_token_ids": {5}}
    assert engine.asks(request(**options, structured_outputs=object())) == ""


@pytest.fixture
def adapter(tmp_path):
    """An adapter in files, which are written anew by ``write``."""
    folder = tmp_path / "policy"
    folder.mkdir()

    def write(text):
        (folder / "adapter_model.safetensors").write_text(text)

    def lora(number=1, name="policy", **more):
        return SimpleNamespace(
            **{
                "lora_int_id": number,
                "lora_name": name,
                "lora_path": str(folder),
                "load_inplace": False,
                **more,
            }
        )

    write("one")
    return SimpleNamespace(write=write, lora=lora)


def asked_again(engine, lora):
    return engine.asks(request("b", lora=lora))


@pytest.mark.parametrize(("again", "later"), [({"load_inplace": True}, 1), ({"number": 2}, 3)])
def test_an_adapter_loaded_again_from_other_files_is_refused_until_the_cache_is_dropped(
    engine, adapter, again, later
):
    """In place, or as if it were another one: vLLM's cache knows it by name and path."""
    assert engine.asks(request("a", lora=adapter.lora())) == ""
    assert asked_again(engine, adapter.lora(**again)) == "", "the files are the same"
    adapter.write("another")
    assert asked_again(engine, adapter.lora()) == "", "the engine has the old one, and answers with it"
    assert "issues/42125" in asked_again(engine, adapter.lora(**{**again, "number": later}))
    assert "issues/42125" in asked_again(engine, adapter.lora(number=later))
    assert asked_again(engine, adapter.lora(number=7, name="policy-2")) == "", "a name of its own"
    engine.meetings.noted(Call(name="reset_prefix_cache"), False)
    assert asked_again(engine, adapter.lora(number=later)) != ""
    engine.meetings.noted(Call(name="reset_prefix_cache"), True)
    assert asked_again(engine, adapter.lora(number=later)) == ""


@pytest.mark.parametrize(
    ("call", "drops"),
    [
        (Call(name="pause_scheduler"), True),
        (Call(name="pause_scheduler", kwargs={"clear_cache": False}), False),
        (Call(name="pause_scheduler", args=("keep", False)), False),
        (Call(name="sleep", args=(2,)), True),
        (Call(name="sleep", kwargs={"level": 0}), False),
        (Call(name="wake_up"), False),
    ],
)
def test_a_call_may_load_an_adapter_again_and_another_drop_the_cache(engine, adapter, call, drops):
    """``add_lora`` in place; a pause and a sleep drop the cache unless they are told not to."""
    assert engine.asks(request("a", lora=adapter.lora())) == ""
    adapter.write("another")
    engine.meetings.noted(Call(name="add_lora", args=(adapter.lora(load_inplace=True),)), True)
    assert asked_again(engine, adapter.lora()) != ""
    engine.meetings.noted(call, None)
    assert (asked_again(engine, adapter.lora()) == "") is drops


def test_another_engine_has_an_empty_cache_and_the_files_of_now(engine, adapter):
    """But for the requests that went over to it."""
    assert engine.asks(request("a", lora=adapter.lora())) == ""
    engine.inside.clear()
    adapter.write("another")
    engine.core = SimpleNamespace()
    assert asked_again(engine, adapter.lora()) == ""
    adapter.write("the third")
    engine.core = SimpleNamespace()
    assert asked_again(engine, adapter.lora()) != "", "one with the second runs on"


@pytest.mark.parametrize("how", ["no cache", "not read", "no files"])
def test_an_adapter_that_meets_no_old_one_is_not_refused(engine, adapter, how):
    """Without the cache, with a request that does not read it, and where nothing is known of the files."""
    engine.traits = replace(TRAITS, prefix_caching=how != "no cache")
    more = {"lora_path": "hub/name"} if how == "no files" else {}
    assert engine.asks(request("a", lora=adapter.lora(**more))) == ""
    adapter.write("another")
    options = {"skip_reading_prefix_cache": how == "not read"}
    assert engine.asks(request("b", lora=adapter.lora(load_inplace=True, **more), **options)) == ""


def mixed(rows, ids, mask):
    return {"embeds": torch.tensor(rows), "ids": ids, "mask": mask}


def test_rows_that_are_not_used_must_be_zero_where_the_token_is(engine):
    """Else the prefix cache takes the prompt for one that uses them; vLLM's own chat prompts have zeros there."""
    used, unused = [1.0, 2.0], [0.0, 0.0]
    wrong = mixed([used, used], [0, 9], [True, False])
    assert "issues/56655" in engine.asks(request(**wrong))
    for right in (
        mixed([unused, used], [0, 9], [True, False]),
        mixed([used, used], [0, 9], [False, True]),
        mixed([used, used], [0, 9], None),
        mixed([used, used], None, None),
    ):
        assert engine.asks(request(**right)) == "", right
    engine.traits = replace(TRAITS, prefix_caching=False)
    engine.core = SimpleNamespace()
    assert engine.asks(request(**wrong)) == ""


def test_a_penalty_on_a_prompt_without_tokens_is_refused(engine):
    """It would fall on the tokens of another request, which had the row of the batch before."""
    embeds = torch.ones(2, 2)
    assert "issues/57719" in engine.asks(request(embeds=embeds, repetition_penalty=1.1))
    for right in (
        {"repetition_penalty": 1.0},
        {"frequency_penalty": 1.5},
        {"repetition_penalty": 1.1, "ids": [1, 2]},
    ):
        assert engine.asks(request(embeds=embeds, **right)) == "", right
    assert engine.asks(request(repetition_penalty=1.1)) == ""
    engine.traits, engine.core = replace(TRAITS, v2_runner=True), SimpleNamespace()
    assert engine.asks(request(embeds=embeds, repetition_penalty=1.1)) == ""


def test_a_cache_too_large_for_flex_attention_is_refused(monkeypatch):
    """And one element less is not, nor another backend, nor a torch where it may be mended."""
    large = replace(TRAITS, attention=frozenset({"FLEX_ATTENTION"}), layer_elements=2**31)
    monkeypatch.setattr(meetings, "traits_of", lambda config: config)
    with pytest.raises(ConfigError, match="issues/50427"):
        refuse_settings(large)
    for other in (
        {"layer_elements": 2**31 - 1},
        {"attention": frozenset({"FLASH_ATTN"})},
        {"torch": "2.14"},
        {"version": "0.33"},
    ):
        refuse_settings(replace(large, **other))
    monkeypatch.setenv("RAYGUARD_ALLOW", "flex_attention")
    refuse_settings(large)


def test_who_wants_it_all_the_same_says_so_by_name(engine, monkeypatch):
    """And a name that is none is told at once."""
    monkeypatch.setenv("RAYGUARD_ALLOW", "no_token_left, not_finite")
    engine.meetings = Meetings(engine.inside)
    assert engine.asks(request("a", temperature=math.nan)) == ""
    assert engine.asks(request("b", allowed_token_ids=[5], logit_bias={5: -math.inf})) == ""
    assert engine.asks(request("c", logprobs=3)) == ""
    assert engine.asks(request("d", logprob_token_ids=[5, 6])) != ""
    monkeypatch.setenv("RAYGUARD_ALLOW", "everything")
    assert Settings().allow == "everything"
    with pytest.raises(ConfigError, match=r"names everything; known are adapter_files, .*no_token_left"):
        refuse_settings(None)


@pytest.mark.parametrize("in_process", [False, True])
def test_an_engine_is_known_by_its_settings(monkeypatch, in_process):
    """Also one whose core runs in the very process of its frontend, where the client keeps none."""
    monkeypatch.setattr(
        meetings, "traits_of", lambda config: TRAITS if config == "settings" else EngineTraits()
    )
    core = SimpleNamespace(vllm_config="settings")
    asked = request(allowed_token_ids=[5], logit_bias={5: -math.inf})
    assert Meetings().refusal(asked, SimpleNamespace(engine_core=core) if in_process else core) != ""
    assert Meetings().refusal(asked, SimpleNamespace()) == "", "of which nothing is known"


def test_each_entry_has_a_thread_and_a_way_out():
    """And a name of its own."""
    entries = (*known_wrong.REQUESTS, *known_wrong.SETTINGS)
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        said = entry.sentence("x", "0.32")
        assert "https://github.com/vllm-project/vllm/" in said
        assert entry.instead in said
