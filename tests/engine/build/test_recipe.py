"""Wrong recipes are told before vLLM is imported; right ones, and those that cannot be read, are let through."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from rayguard.engine.build.recipe import checked, explained
from rayguard.engine.vllm.argument_names import names_in, written_names
from rayguard.errors import ConfigError

MODEL = "/no/such/model"
ARGS = {"model": MODEL, "max_num_seqs": 4}

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="reads the installed vLLM")


@pytest.fixture(autouse=True)
def _names_of_the_installed_vllm():
    """An earlier test of this process may have asked while something else stood for vLLM."""
    written_names.cache_clear()


class Owner:
    """Recipes as people write them; none of them is run."""

    path = ""

    def __init__(self, model=MODEL):
        self.model = model
        self.args = {"max_num_sequences": 4}

    def misspelt(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="m", max_num_sequs=4))

    def misspelt_beside(self, settings):
        from vllm import LLM

        return LLM("m", max_num_sequs=4, **settings.as_kwargs())

    def misspelt_async(self, settings):
        """With a docstring, and over several lines."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        args = AsyncEngineArgs(
            **settings.as_kwargs(
                model="m",  # a comment
                max_num_sequs=4,
            ),
        )
        return AsyncLLM.from_engine_args(args)

    def misspelt_kept(self, settings):
        import vllm

        kwargs = settings.as_kwargs(model="m", max_num_sequs=4)
        return vllm.LLM(**kwargs)

    def misspelt_of_self(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="m", **self.args))

    def no_such_path(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="/no/such/model"))

    def no_such_global(self, settings):
        from vllm import LLM

        return LLM(model=MODEL, **settings.as_kwargs())

    def no_such_attribute(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model=str(self.model)))

    def no_such_args(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(**ARGS))

    def no_such_by_place(self, settings):
        from vllm import LLM

        return LLM("/no/such/model", **settings.as_kwargs())

    def no_such_id(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="no-such-owner/no-such-model"))

    def no_such_tokenizer(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="", tokenizer="./no/such/tokenizer"))

    # -- nothing wrong, or nothing sure

    def right(self, settings):
        from vllm import LLM

        return LLM(
            **settings.as_kwargs(model="m", max_num_seqs=4, worker_cls=None, hf_overrides={"a": (1, 2)})
        )

    def fetches_it_first(self, settings):
        from vllm import LLM

        fetch(self.model)
        return LLM(**settings.as_kwargs(model=self.model))

    def sets_it_first(self, settings):
        from vllm import LLM

        self.model = find()
        return LLM(**settings.as_kwargs(model=self.model))

    def asks_the_version(self, settings):
        from vllm import LLM

        if settings is None:
            return LLM(**settings.as_kwargs(model="m", of_another_version=4))
        return LLM(**settings.as_kwargs(model="m"))

    def has_its_own_class(self, settings):
        from mine import LLM

        return LLM(**settings.as_kwargs(model="/no/such/model", flavour=1))

    def wraps_it(self, settings):
        from mine import Wrapped

        return Wrapped(**settings.as_kwargs(model="/no/such/model", flavour=1))

    def takes_one_out(self, settings):
        from vllm import LLM

        kwargs = settings.as_kwargs(model="m", flavour=1)
        kwargs.pop("flavour")
        return LLM(**kwargs)

    def loads_in_another_way(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="/no/such/model", load_format="mine"))

    def gets_a_url(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="s3://bucket/model"))


def fetch(model):
    raise AssertionError("no recipe is run")


find = fetch


@pytest.mark.parametrize(
    "name", ["misspelt", "misspelt_beside", "misspelt_async", "misspelt_kept", "misspelt_of_self"]
)
def test_a_misspelt_argument_is_told_with_the_one_that_was_meant(name):
    """By its name, in one line."""
    with pytest.raises(
        ConfigError, match=r"knows no engine argument 'max_num_sequ.*did you mean 'max_num_seqs'"
    ):
        checked(getattr(Owner(), name))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("no_such_path", "model"),
        ("no_such_global", "model"),
        ("no_such_attribute", "model"),
        ("no_such_args", "model"),
        ("no_such_by_place", "model"),
        ("no_such_id", "model"),
        ("no_such_tokenizer", "tokenizer"),
    ],
)
def test_a_model_that_is_not_there_is_told(name, what, monkeypatch, tmp_path):
    """A path anywhere; a name on the Hub where nothing may be fetched."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("TRANSFORMERS_CACHE", raising=False)
    monkeypatch.delenv("VLLM_USE_MODELSCOPE", raising=False)
    with pytest.raises(ConfigError, match=rf"build_engine passes {what}='.*there is no such"):
        checked(getattr(Owner(), name))


def test_a_model_that_is_there_or_may_be_fetched_is_let_through(monkeypatch, tmp_path):
    """In the Hub's cache, on disk, or online."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    checked(Owner().no_such_id)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "models--no-such-owner--no-such-model").mkdir()
    checked(Owner().no_such_id)
    checked(Owner(model=str(tmp_path)).no_such_attribute)


@pytest.mark.parametrize(
    "name",
    [
        "right",
        "fetches_it_first",
        "sets_it_first",
        "asks_the_version",
        "has_its_own_class",
        "wraps_it",
        "takes_one_out",
        "loads_in_another_way",
        "gets_a_url",
    ],
)
def test_what_may_be_right_is_let_through(name):
    """A recipe that works without us works with us."""
    checked(getattr(Owner(), name))


def test_another_source_than_what_runs_says_nothing(monkeypatch):
    """A file that was edited since the job began is no evidence."""
    changed = textwrap.dedent(
        """
        def no_such_path(self, settings):
            from vllm import LLM
            return LLM(**settings.as_kwargs(model="/another/path", max_num_sequs=1))
        """
    )
    monkeypatch.setattr("inspect.getsource", lambda _: changed)
    checked(Owner().no_such_path)


def test_what_comes_at_run_time_is_checked_where_it_reaches_the_settings():
    """``**self.args`` may be made of a file; the first call of ``as_kwargs`` tells, before an engine starts."""
    owner = Owner()
    owner.args = None
    check = checked(owner.misspelt_of_self)
    assert check is not None
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        check({"max_num_sequs": 1})
    assert checked(owner.takes_one_out) is None


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (lambda: None, r"build_engine\(\) cannot be called with the settings"),
        (lambda a, b: None, r"write `def build_engine\(self, settings\)"),
        (3, "must be a function of the settings"),
    ],
)
def test_the_form_of_a_recipe_is_told(recipe, said):
    """What to write stands last."""
    with pytest.raises(ConfigError, match=said):
        checked(recipe)


def test_an_async_recipe_is_told():
    """It would return a coroutine after vLLM was imported."""

    async def recipe(settings):
        pass

    with pytest.raises(ConfigError, match="must not be async"):
        checked(recipe)


def test_vllms_own_refusal_names_the_argument_that_was_meant():
    """Where only vLLM could see it."""
    error = TypeError("EngineArgs.__init__() got an unexpected keyword argument 'max_num_sequs'")
    assert re.search("did you mean 'max_num_seqs'", str(explained(error)))
    other = TypeError("Mine.__init__() got an unexpected keyword argument 'max_num_sequs'")
    assert explained(other) is other


def test_a_source_of_another_shape_says_nothing():
    """A refactored vLLM switches the check off and refuses nobody."""
    assert names_in("class EngineArgs(Base):\n    model: str = ''\n", "") is None
    assert (
        names_in(
            "\nclass EngineArgs:\n    model: str = ''\n\nclass AsyncEngineArgs(EngineArgs):\n    a: int\n", ""
        )
        is None
    )


def test_names_are_read_without_importing_vllm():
    """That is what it is for."""
    names = written_names()
    assert names is not None
    assert {"model", "max_num_seqs", "enable_log_requests", "worker_cls", "chat_template"} <= names
    code = (
        "import sys; from rayguard.engine.vllm.argument_names import written_names; assert written_names();"
        "print([m for m in ('vllm', 'torch', 'ray') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
