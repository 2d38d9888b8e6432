"""State that outlives a recycled process: whole, or an error that says where it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rayguard.actors.life import saved_state
from rayguard.actors.life.incarnation import Incarnation
from rayguard.errors import StateLostError

HERE = Incarnation(actor_id="ab" * 8, node_id="n1", pid=1, max_restarts=-1)


class Trainer:
    def __init__(self, step=0):
        self.step, self.loaded = step, False

    def state_dict(self):
        return {"step": self.step, "weights": bytes(3 << 20)}

    def load_state_dict(self, state):
        self.step, self.loaded = state["step"], len(state["weights"]) == 3 << 20


@pytest.fixture
def words(monkeypatch):
    """Ray's control process, in a dict."""
    table = {}

    class Memory:
        def __init__(self, actor_id, part):
            self.key = actor_id, part

        def load(self):
            return table.get(self.key, {})

        def save(self, values):
            table[self.key] = values
            return True

        def delete(self):
            table.pop(self.key, None)

    monkeypatch.setattr(saved_state, "ActorMemory", Memory)
    return table


def test_the_next_life_gets_the_state(words, tmp_path):
    saved_state.keep(Trainer(7), HERE, tmp_path)
    fresh = Trainer()
    assert saved_state.resume(fresh, HERE)
    assert (fresh.step, fresh.loaded) == (7, True)
    assert not words
    assert not list((tmp_path / "kept").glob("*")), "nothing is left behind"
    assert not saved_state.resume(Trainer(), HERE), "once"


def test_a_first_life_has_none(words):
    assert not saved_state.resume(Trainer(), HERE)


def test_only_this_user_can_read_it(words, tmp_path):
    word = saved_state.keep(Trainer(), HERE, tmp_path)
    assert Path(word.path).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("harm", ["cut", "flip", "gone"])
def test_a_damaged_state_is_never_taken_up(words, tmp_path, harm):
    path = Path(saved_state.keep(Trainer(7), HERE, tmp_path).path)
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes(data[:-1] if harm == "cut" else data)
    if harm == "gone":
        path.unlink()
    fresh = Trainer()
    with pytest.raises(StateLostError, match=path.name):
        saved_state.resume(fresh, HERE)
    assert not fresh.loaded


def test_a_class_that_lost_its_way_to_load_is_told_of_its_state(words, tmp_path):
    saved_state.keep(Trainer(7), HERE, tmp_path)
    with pytest.raises(StateLostError, match="no longer has load_state_dict"):
        saved_state.resume(object(), HERE)


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError()])
def test_nothing_is_left_where_the_state_cannot_be_had(words, tmp_path, error):
    trainer = Trainer()

    def state_dict():
        raise error

    trainer.state_dict = state_dict
    with pytest.raises(type(error)):
        saved_state.keep(trainer, HERE, tmp_path)
    assert not list((tmp_path / "kept").glob("*"))
    assert not words


def test_nothing_is_left_where_it_does_not_pickle(words, tmp_path):
    trainer = Trainer()
    trainer.state_dict = lambda: {"lock": __import__("threading").Lock()}
    with pytest.raises(TypeError):
        saved_state.keep(trainer, HERE, tmp_path)
    assert not list((tmp_path / "kept").glob("*"))


def test_a_recycling_that_did_not_happen_forgets_it(words, tmp_path):
    saved_state.keep(Trainer(7), HERE, tmp_path)
    saved_state.drop(HERE)
    assert not words
    assert not list((tmp_path / "kept").glob("*"))


def test_another_node_has_it_read_where_it_lies(words, tmp_path, monkeypatch):
    """Ray may start the next life anywhere."""
    saved_state.keep(Trainer(7), HERE, tmp_path)
    asked = []
    monkeypatch.setattr(
        saved_state, "_on", lambda node, do, path: asked.append((node, do.__name__)) or do(path)
    )
    monkeypatch.setattr("ray.get", lambda answer, timeout: answer)
    fresh = Trainer()
    assert saved_state.resume(fresh, replace(HERE, node_id="n2"))
    assert fresh.step == 7
    assert asked == [("n1", "_bytes_of"), ("n1", "_forget")], "forgotten only when it is safe here"
    assert not list((tmp_path / "kept").glob("*"))


def test_a_link_in_its_place_is_not_followed(words, tmp_path):
    """What is loaded is unpickled."""
    path = Path(saved_state.keep(Trainer(7), HERE, tmp_path).path)
    other = tmp_path / "other"
    path.replace(other)
    path.symlink_to(other)
    with pytest.raises(StateLostError):
        saved_state.resume(Trainer(), HERE)
