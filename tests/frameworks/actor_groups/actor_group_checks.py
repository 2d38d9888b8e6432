"""What holds for OpenRLHF's groups that are looked after: for the small interface and for the real one.

Ranks are small. Their state is one number, or with ``collective`` a module of torch and its AdamW, whose
gradients go through an all-reduce.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from rayguard.frameworks.actor_groups import openrlhf, watched_get
from rayguard.frameworks.actor_groups.names import KEPT
from rayguard.frameworks.worker_groups.policy import GroupPolicy
from rayguard.recovery.journal import default_journal

QUICK = GroupPolicy(rebuild_s=120.0)
RELOAD_S = 3.0  # what a rank takes for ``reload_states``
_GET_S = 180.0


class Strategy:
    """In the place of ``DeepspeedStrategy``: what a group's ranks ask of it."""

    def __init__(self, folder, *, collective=False, load_enable=False):
        self.folder, self.collective = str(folder), collective
        self.args = SimpleNamespace(ckpt=SimpleNamespace(load_enable=load_enable))

    def setup_distributed(self):
        """Meet the other ranks."""
        if self.collective:
            import torch.distributed

            torch.distributed.init_process_group("gloo")

    def is_rank_0(self):
        """Say so: nobody prints a progress bar."""
        return False


@contextlib.contextmanager
def looked_after(launcher, policy=QUICK):
    """Have groups looked after for a while."""
    before = dict(vars(launcher)), dict(vars(launcher.RayActorGroup))
    assert openrlhf.attach(launcher, policy)
    try:
        yield
    finally:
        watched_get.unwatch()
        delattr(launcher, "__rayguard_groups__")
        launcher.placement_group = before[0]["placement_group"]
        for name, value in before[1].items():
            if not name.startswith("__"):
                setattr(launcher.RayActorGroup, name, value)
        del launcher.RayActorGroup._actor_handlers


def rank_class(launcher):  # noqa: C901 - all within one, as it is sent to the ranks
    """Return a class of ranks. It is sent to them whole, so all that it needs is within."""

    class PolicyModelActor(launcher.BaseModelActor):
        def init_model_from_pretrained(self, strategy, pretrain, max_steps=None):
            from pathlib import Path

            self._setup_distributed(strategy)
            self.folder, self.buffer, self.value, self.model = (
                Path(strategy.folder),
                [],
                float(pretrain),
                None,
            )
            if strategy.collective:
                import torch

                torch.manual_seed(7)
                self.model = torch.nn.Sequential(
                    torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
                )
                self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
            self.strike("init")
            return self._rank

        def strike(self, method):
            """Die here, where somebody has left word that this rank should."""
            import os
            import signal
            import threading

            word = self.folder / f"{method}-{self._rank}"
            if not word.exists():
                return
            if not word.read_text():
                word.unlink()
            elif method == "fit":  # each time, and the answer of the call before is under way
                threading.Event().wait(0.5)
            if self.model is None:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                self.learn(0.0)

        def append(self, experience):
            self.buffer.append(experience)

        def learn(self, number):
            if self.model is None:
                self.value = self.value * 1.25 + number * (self._rank + 1)
                return self.value
            import torch

            made = torch.arange(4, dtype=torch.float32) * (self._rank + 1) + number
            loss = (self.model(made) - number).pow(2).sum()
            self.optimizer.zero_grad()
            loss.backward()
            for one in self.model.parameters():
                torch.distributed.all_reduce(one.grad)
            self.optimizer.step()
            return loss.item()

        def fit(self, kl_ctl=0.0):
            if kl_ctl < 0:
                raise ValueError("no")
            found = [self.learn(number + kl_ctl) for number in self.buffer]
            self.strike("fit")
            self.buffer.clear()
            return {"losses": found}

        def reload_states(self):
            import threading

            threading.Event().wait(RELOAD_S)

        def forward(self, number):
            self.strike("forward")
            return [*self.state(), number]

        def state(self):
            if self.model is None:
                return [self.value]
            return [value for one in self.model.parameters() for value in one.detach().reshape(-1).tolist()]

        def get_checkpoint_states(self):
            import os

            return os.getpid(), self.state()

        def broadcast_to_vllm(self):
            self.strike("broadcast_to_vllm")

        def save_model(self):
            self.strike("save_model")
            return self._rank

        def save_checkpoint(self, tag):
            self.strike("save_checkpoint")

    return PolicyModelActor


class ActorRun:
    """A group of two, as a trainer makes and calls one."""

    def __init__(self, launcher, ray, folder, *, num_gpus=0, **of):
        self.ray, self.folder = ray, Path(folder)
        self._places = []
        with self._noted(launcher):
            self.group = launcher.RayActorGroup(1, 2, ray.remote(num_gpus=num_gpus)(rank_class(launcher)))
        self.strategy = Strategy(folder, **of)
        self.get(self.group.async_init_model_from_pretrained(self.strategy, "1.0", 10))

    @contextlib.contextmanager
    def _noted(self, launcher):
        """Have the place that a group reserves for itself given back at the end."""
        reserve = launcher.placement_group

        def noted(*args, **how):
            self._places.append(reserve(*args, **how))
            return self._places[-1]

        launcher.placement_group = noted
        try:
            yield
        finally:
            launcher.placement_group = reserve

    def get(self, refs):
        """Wait as a trainer does, but not for ever."""
        return self.ray.get(refs, timeout=_GET_S)

    def strike(self, method, rank, times=""):
        """Have a rank killed within its next call of a method, or ``"always"``."""
        (self.folder / f"{method}-{rank}").write_text(times)

    def step(self, numbers, kl_ctl=0.5):
        """Make a step as OpenRLHF's trainer does; return what ``fit`` answered."""
        self.get(self.group.async_run_method_batch(method_name="append", experience=list(numbers)))
        return self.get(self.group.async_run_method(method_name="fit", kl_ctl=kl_ctl))

    def forward(self, numbers):
        """Have all ranks say what they come to."""
        return self.get(self.group.async_run_method_batch(method_name="forward", number=list(numbers)))

    def ranks(self):
        """Return the process and the state of each rank."""
        return self.get(self.group.async_run_method("get_checkpoint_states"))

    def kill(self, rank):
        """Kill a rank between calls, and wait until its process has gone."""
        pid = self.ranks()[rank][0]
        os.kill(pid, signal.SIGKILL)
        assert ended(pid)

    def close(self):
        """Let go of the ranks, and of their place."""
        for rank in vars(self.group)["_actor_handlers"] if self.group is not None else ():
            self.ray.kill(rank)
        for place in self._places:
            self.ray.util.remove_placement_group(place)


def ended(pid):
    """Say whether a process ends within half a minute."""
    until = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        threading.Event().wait(0.05)
    return not Path(f"/proc/{pid}").exists()


@contextlib.contextmanager
def run_of(launcher, ray, folder, policy=QUICK, **of):
    """Return a run that is looked after, and end it."""
    with looked_after(launcher, policy):
        run = ActorRun(launcher, ray, folder, **of)
        try:
            yield run
        finally:
            run.close()


def incidents():
    """Return what was written of groups."""
    return [one for one in default_journal().read() if one.remedy == "restart_group"]


STEPS = ((1.0, 2.0), (3.0, -1.0), (0.5, 0.25), (2.0, 2.0))


def fault_free(launcher, ray, folder, **of):
    """Return what each step answers and where the ranks are at the end, bare."""
    run = ActorRun(launcher, ray, folder, **of)
    try:
        answers = [run.step(numbers) for numbers in STEPS]
        return answers, [state for _, state in run.ranks()]
    finally:
        run.close()


def check_steps_under_deaths(launcher, ray, folder, expected, **of):
    """Rank 1 dies within an update, rank 0 within the next and between calls: all is as without."""
    before = len(incidents())
    with run_of(launcher, ray, folder, **of) as run:
        first = [pid for pid, _ in run.ranks()]
        handles = vars(run.group)["_actor_handlers"]
        answers = [run.step(STEPS[0])]
        run.strike("fit", 1)
        answers.append(run.step(STEPS[1]))
        assert not {pid for pid, _ in run.ranks()} & set(first), "all processes are new ones"
        assert vars(run.group)["_actor_handlers"] is handles, "in the very same list"
        run.strike("fit", 0)
        answers.append(run.step(STEPS[2]))
        run.kill(0)
        answers.append(run.step(STEPS[3]))
        assert not list(run.folder.glob("fit-*")), "all faults fired"
        assert (answers, [state for _, state in run.ranks()]) == expected
    told = incidents()[before:]
    assert [one.outcome.value for one in told] == ["recovered"] * 3
    assert "rank 1 died in fit" in told[0].cause
    return max(one.recover_s for one in told)


def check_references_that_were_under_way(launcher, ray, folder, **of):
    """A rank dies with calls of two kinds under way: each reference comes to what it would have."""
    with run_of(launcher, ray, folder, **of) as run:
        run.step((1.0, 2.0))
        states = [state for _, state in run.ranks()]
        expected = [[[*state, number]] for state, number in zip(states, (5.0, 6.0), strict=True)]
        run.strike("forward", 1)
        before = run.group.async_run_method_batch(method_name="forward", number=[5.0, 6.0])
        run.group.async_run_method_batch(method_name="append", experience=[3.0, 3.0])  # nobody waits for it
        fitted = run.group.async_run_method(method_name="fit")
        after = run.group.async_run_method_batch(method_name="forward", number=[7.0, 8.0])
        other = ray.put("another's")
        ready, _ = ray.wait(before, num_returns=2, timeout=30)
        assert len(ready) == 2
        assert run.get([*before, other]) == [*expected, "another's"]
        assert run.get(before[1]) == expected[1], "a second time"
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(run.get, [fitted, list(reversed(fitted))]))
        assert found[0] == found[1][::-1]
        now = [state for _, state in run.ranks()]
        assert now != states, "the update counts, once"
        assert run.get(after) == [[[*now[0], 7.0]], [[*now[1], 8.0]]], "as it stood in the row"
        assert not list(folder.glob("forward-*"))
        assert incidents()[-1].outcome.value == "recovered"


def check_that_a_recovery_is_no_update(launcher, ray, folder):
    """What new ranks took to make, and what was made again before, is not added to the update that died."""
    with run_of(launcher, ray, folder) as run:
        record = vars(run.group)[KEPT].group.record
        run.get(run.group.async_run_method("reload_states"))
        run.step((1.0, 2.0))
        before_s = record.took_s
        assert before_s >= RELOAD_S
        run.strike("fit", 1)
        run.step((3.0, -1.0))
        assert incidents()[-1].outcome.value == "recovered"
        assert incidents()[-1].recover_s > RELOAD_S, "what came before was made again"
        assert not record.doubt
        assert record.took_s - before_s < RELOAD_S / 2


def failed_with(run, why, method="get_checkpoint_states"):
    """Say whether the next call fails as it would bare, and the incident says why."""
    from ray.exceptions import RayActorError

    try:
        run.get(run.group.async_run_method(method))
    except RayActorError:
        last = incidents()[-1]
        return last.outcome.value == "failed" and any(why in note for note in last.notes)
    return False


def trainer_of(ray, run, launcher, policy):
    """Return an actor that trains with a group; with a policy it looks after that."""

    class Trainer:
        def __init__(self, group, folder):
            if policy is not None:
                openrlhf.attach(launcher, policy)
            self.group, self.folder = group, folder

        def fit(self, steps, strike=None):
            import ray

            for at, numbers in enumerate(steps):
                if strike is not None and at == strike[0]:
                    (Path(self.folder) / f"fit-{strike[1]}").write_text("")
                batch = list(numbers)
                ray.get(self.group.async_run_method_batch(method_name="append", experience=batch))
                ray.get(self.group.async_run_method(method_name="fit", kl_ctl=0.5))
            return ray.get(self.group.async_run_method("get_checkpoint_states"))

    return ray.remote(num_cpus=0)(Trainer).remote(run.group, str(run.folder))


def check_a_group_that_another_process_trains(launcher, ray, folder, **of):
    """As OpenRLHF has it: one process makes a group and its models, an actor trains, the first one saves."""
    before = len(incidents())
    with run_of(launcher, ray, folder, **of) as run:
        first = {pid for pid, _ in run.ranks()}
        trainer = trainer_of(ray, run, launcher, QUICK)
        found = run.get(trainer.fit.remote(STEPS, (2, 0)))
        assert not list(folder.glob("fit-*")), "the fault fired"
        assert not {pid for pid, _ in found} & first
        assert run.get(run.group.async_save_model()) == [0, 1], "the first process has the new ranks"
        assert run.ranks() == found
        assert [one.outcome.value for one in incidents()[before:]] == ["recovered"]
        run.kill(1)
        assert failed_with(run, "sent to another process"), "which alone knows the updates"
        return [state for _, state in found]


def check_a_trainer_that_keeps_no_account(launcher, ray, folder):
    """Its updates are known to nobody: ranks that died are not brought back to a state without them."""
    with run_of(launcher, ray, folder) as run:
        trainer = trainer_of(ray, run, launcher, None)
        run.get(trainer.fit.remote(STEPS[:1]))
        run.kill(0)
        assert failed_with(run, "sent to another process", "save_model")


def check_where_nothing_is_done(launcher, ray, folder):
    """What may not be made again, or is not known: the caller has the error that he would have had."""
    import pytest

    before = len(incidents())
    with run_of(launcher, ray, folder) as run:
        with pytest.raises(ValueError, match="no"):
            run.step((1.0, 2.0), kl_ctl=-1.0)
        assert len(incidents()) == before
        run.kill(0)
        assert failed_with(run, "fit raised RayTaskError(ValueError) in the midst of its work")
    with run_of(launcher, ray, folder) as run:
        assert len(run.group._actor_handlers) == 2
        run.kill(0)
        assert failed_with(run, "handles of its ranks were given to others")
    with run_of(launcher, ray, folder) as run:
        run.get(run.group.async_run_method("state"))
        run.kill(0)
        assert failed_with(run, "what state does to its ranks is not known")
    with run_of(launcher, ray, folder, load_enable=True) as run:
        run.kill(0)
        assert failed_with(run, "it may have begun from a checkpoint")


def check_what_is_not_made_twice(launcher, ray, folder):
    """A call that was not sent leaves no doubt; a push and a save are not made again."""
    import pytest

    with run_of(launcher, ray, folder) as run:
        with pytest.raises(ValueError, match="Insufficient batch size"):
            run.group.async_run_method_batch(method_name="append", experience=[1.0])
        run.kill(1)
        assert [state for _, state in run.ranks()] == [[1.0], [1.0]]
        pids = [pid for pid, _ in run.ranks()]
        run.strike("broadcast_to_vllm", 0)
        assert failed_with(run, "died in broadcast_to_vllm", "broadcast_to_vllm"), "engines wait in it"
        os.kill(pids[1], 0)  # where nothing is done, those that live go on living
    with run_of(launcher, ray, folder) as run:
        run.strike("save_checkpoint", 0)
        with pytest.raises(ray.exceptions.RayActorError):
            run.get(run.group.async_run_method("save_checkpoint", tag="global_step1"))
        assert any("died in save_checkpoint" in note for note in incidents()[-1].notes)


def check_a_call_that_always_ends_them(launcher, ray, folder):
    """It is made three times; then its caller has the error, as bare."""
    import pytest

    before = len(incidents())
    with run_of(launcher, ray, folder) as run:
        run.strike("fit", 1, "always")
        with pytest.raises(ray.exceptions.RayActorError):
            run.step((1.0, 2.0))
    told = incidents()[before:]
    assert [one.outcome.value for one in told] == ["failed"] * 3
    assert "fit was made 3 times" in told[-1].notes[0]


def check_updates_that_are_too_many(launcher, ray, folder):
    """They are let go, and the death is as bare."""
    with run_of(launcher, ray, folder, GroupPolicy(rebuild_s=120.0, kept_bytes=3 << 20)) as run:
        batch = ["a" * (1 << 20), "b" * (1 << 20)]
        run.get(run.group.async_run_method_batch(method_name="append", experience=batch))
        run.kill(0)
        assert [state for _, state in run.ranks()] == [[1.0], [1.0]]
        run.get(run.group.async_run_method_batch(method_name="append", experience=batch))
        run.kill(0)
        assert failed_with(run, "GiB to keep")


def check_ranks_that_do_not_come_back(launcher, ray, folder):
    """A new one dies as it is initialised: the error is that of the first death, and nothing is left."""
    import pytest

    with run_of(launcher, ray, folder) as run:
        run.step((1.0, 2.0))
        pids = [pid for pid, _ in run.ranks()]
        run.strike("fit", 1)
        run.strike("init", 0, "always")
        with pytest.raises(ray.exceptions.RayActorError):
            run.step((1.0, 2.0))
        last = incidents()[-1]
        assert last.outcome.value == "failed"
        assert "new ranks could not be brought to where the old ones were" in last.notes[0]
        assert all(map(ended, pids))
        with pytest.raises(ray.exceptions.RayActorError):
            run.ranks()


def check_a_group_that_is_let_go(launcher, ray, folder):
    """Its ranks end as ever, also with answers that nobody has asked for."""
    with run_of(launcher, ray, folder) as run:
        run.step((1.0, 2.0))
        run.strike("fit", 1)
        run.step((1.0, 2.0))
        pids = [pid for pid, _ in run.ranks()]
        refs = run.group.async_run_method("get_checkpoint_states")
        run.group = None
        assert all(map(ended, pids))
        assert [pid for pid, _ in run.get(refs)] == pids


def check_all_else_that_is_asked_for(launcher, ray, folder):
    """With calls of a group under way, Ray's own says what it always says."""
    import pytest
    from ray.exceptions import GetTimeoutError, RayTaskError

    @ray.remote(num_cpus=0)
    def fails():
        raise KeyError("mine")

    @ray.remote(num_cpus=0)
    def slow():
        threading.Event().wait(2)

    with run_of(launcher, ray, folder) as run:
        pending = run.group.async_run_method("get_checkpoint_states")
        assert ray.get([]) == []
        assert ray.get([ray.put(1), ray.put(2)]) == [1, 2]
        with pytest.raises(KeyError, match="mine"):
            ray.get(fails.remote())
        with pytest.raises(RayTaskError):
            ray.get([pending[0], fails.remote()])
        for odd in ((pending[0],), [pending], None, "a"):
            told = []
            for get in (ray.get, ray.get.bare):
                with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Ray's own raises
                    get(odd)
                told.append((type(caught.value), str(caught.value)))
            assert told[0] == told[1]
        with pytest.raises(GetTimeoutError):
            ray.get(slow.remote(), timeout=0.1)
        assert len(run.get(pending)) == 2


def check_a_caller_that_waits_for_a_while(launcher, ray, folder):
    """He has his time and no more, and the next one finds the ranks back."""
    import pytest
    from ray.exceptions import GetTimeoutError

    with run_of(launcher, ray, folder) as run:
        run.step((1.0, 2.0))
        expected = run.ranks()
        run.kill(1)
        refs = run.group.async_run_method("get_checkpoint_states")
        began = time.monotonic()
        with pytest.raises(GetTimeoutError):
            ray.get(refs, timeout=0.2)
        assert time.monotonic() - began < 5
        assert [state for _, state in run.get(refs)] == [state for _, state in expected]
