"""One cause, one story: whatever the order in which incidents come, and however often."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from time import perf_counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.cluster.supervisor.stories import KEPT, Stories, slim, stories_of
from rayguard.cluster.supervisor.story_links import CRASH_LOOP
from rayguard.recovery.incident import Incident, Outcome

ACTORS = [f"{n:024x}01000000" for n in range(8)]
NODES = ["a" * 56, "b" * 56]


def incident(name, kind, at, **more):
    scope = {"actor_died": "process", "host_oom": "process", "user_code": "code", "nccl_error": "group"}
    known = {
        "scope": scope.get(kind, "node"),
        "cause": f"{kind} it was",
        "job_id": "01000000",
        "detected_at": at,
    }
    more = known | more
    return Incident(id=name, kind=kind, **more)


def over(one, at, outcome=Outcome.RECOVERED):
    return replace(one, closed_at=at, outcome=outcome)


def test_a_node_that_lost_its_gpu_is_one_story():
    """Eight actors die of it, here and there their callers say so."""
    gpu = incident(
        "g", "gpu_hardware", 100.0, node=NODES[0], signature="device.lost", cause="GPU 3 fell off the bus"
    )
    deaths = [
        incident(f"d{n}", "actor_died", 101.0 + n, actor_id=actor, node=NODES[0], remedy="restart_process")
        for n, actor in enumerate(ACTORS)
    ]
    caller = incident(
        "c",
        "actor_unavailable",
        103.0,
        scope="process",
        consequences=(f"ActorDiedError: {ACTORS[2]} is gone",),
    )
    other = incident("o", "actor_died", 102.0, actor_id="f" * 32, node=NODES[1])
    story, alone = stories_of([*deaths, caller, other, gpu])
    assert (story.kind, story.actors, len(story.incidents)) == ("gpu_hardware", 8, 10)
    assert story.sentence == "(8 actors): GPU 3 fell off the bus; restart_process x8; open".replace(
        "(8 actors): ", ""
    )
    assert alone.incidents == ("o",)


def test_a_lost_node_explains_actors_that_it_names():
    """The next life of an actor tells of its death from another node."""
    lost = incident(
        "n",
        "node_died",
        200.0,
        node=NODES[0],
        target="node 10.0.0.3",
        consequences=(f"actor {ACTORS[0]} (Worker)",),
    )
    next_life = incident("l", "actor_died", 198.0, actor_id=ACTORS[0], node=NODES[1])
    (story,) = stories_of([next_life, lost])
    assert story.kind == "node_died"
    assert story.actors == 1
    assert story.node == NODES[0]


def test_ranks_that_meet_one_cause_are_one_story_and_two_users_mistakes_are_two():
    """The signature joins where it names a cause; deaths that nobody can explain stay apart."""
    ranks = [
        incident(f"r{n}", "cuda_oom", 10.0 + n, scope="engine", signature="cuda.oom", actor_id=a)
        for n, a in enumerate(ACTORS)
    ]
    mistakes = [
        incident(f"u{n}", "user_code", 12.0, signature="code.error", cause=cause, actor_id=ACTORS[n])
        for n, cause in enumerate(["KeyError: 'reward'", "ZeroDivisionError: division by zero"])
    ]
    deaths = [
        incident(f"k{n}", "actor_died", 500.0, signature="process.gone", actor_id=ACTORS[n]) for n in (0, 1)
    ]
    stories = stories_of([*ranks, *mistakes, *deaths])
    assert sorted(len(story.incidents) for story in stories) == [1, 1, 1, 1, 8]


def test_victims_of_memory_on_one_node_are_one_story():
    """Ray's monitor takes one after the other."""
    victims = [
        incident(f"v{n}", "host_oom", 10.0 + 20 * n, actor_id=actor, node=NODES[0], signature="ray.host_oom")
        for n, actor in enumerate(ACTORS[:3])
    ]
    elsewhere = incident("w", "host_oom", 70.0, actor_id=ACTORS[5], node=NODES[1], signature="ray.host_oom")
    assert [story.actors for story in stories_of([elsewhere, *victims])] == [3, 1]


def test_a_crash_loop_is_one_story():
    """Its deaths are minutes apart, and the sentence names what is behind them."""
    deaths = [
        over(
            incident(f"d{n}", "actor_died", 100.0 * n, actor_id=ACTORS[0], incarnation=n, target="Hog"),
            100.0 * n + 5,
        )
        for n in range(4)
    ]
    loop = incident(
        "loop",
        "actor_died",
        310.0,
        actor_id=ACTORS[0],
        signature=CRASH_LOOP,
        cause="restarted 4 times for it",
        outcome=Outcome.FAILED,
    )
    (story,) = stories_of([*deaths, loop])
    assert story.signature == CRASH_LOOP
    assert story.sentence.startswith("restarted 4 times for it; ")
    assert not story.open


def test_the_death_of_one_rank_explains_the_errors_of_the_group():
    """Who reports the broken ring is not who broke it."""
    ring = [incident(f"n{n}", "nccl_error", 11.0 + n, actor_id=ACTORS[n]) for n in range(1, 4)]
    (story,) = stories_of([*ring, incident("d", "actor_died", 10.0, actor_id=ACTORS[0], cause="killed")])
    assert story.cause == "killed"
    assert story.actors == 4


def test_what_a_later_life_served_or_death_took_is_over():
    """An incident that nobody closes does not stay open for ever."""
    first = incident("a", "actor_died", 10.0, actor_id=ACTORS[0], incarnation=0)
    second = over(incident("b", "actor_died", 20.0, actor_id=ACTORS[0], incarnation=1), 22.0)
    assert stories_of([first])[0].open
    assert stories_of([second, first])[0].ended_at == 22.0
    stories = Stories()
    stories.add(first)
    stories.actor_gone(ACTORS[0], 15.0)
    assert stories.all()[0].ended_at == 15.0


KINDS = [
    "actor_died",
    "host_oom",
    "user_code",
    "nccl_error",
    "gpu_hardware",
    "node_died",
    "actor_unavailable",
]


@st.composite
def incidents(draw):
    number = draw(st.integers(0, 14))
    made = []
    for n in range(number):
        kind = draw(st.sampled_from(KINDS))
        one = incident(
            f"i{n}",
            kind,
            draw(st.sampled_from([0.0, 5.0, 12.0, 30.0, 70.0, 200.0, 1000.0])),
            actor_id=draw(st.sampled_from(["", *ACTORS[:4]])),
            node=draw(st.sampled_from(["", *NODES])),
            job_id=draw(st.sampled_from(["01000000", "02000000"])),
            signature=draw(st.sampled_from(["unknown", "x", "y", CRASH_LOOP])),
            evidence=tuple(draw(st.lists(st.sampled_from(ACTORS[:4]), max_size=1))),
            incarnation=draw(st.integers(0, 2)),
        )
        made.append(one)
        if draw(st.booleans()):
            made.append(over(one, one.detected_at + draw(st.sampled_from([0.0, 3.0, 100.0]))))
    return made


@given(incidents(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_order_of_arrival_does_not_matter(made, chance):
    """Nor that records come twice, nor that the stories were looked at in between."""
    wanted = stories_of(made)
    shuffled = [*made, *chance.sample(made, len(made) // 2)]
    chance.shuffle(shuffled)
    live = Stories()
    for one in shuffled:
        live.add(one)
        if chance.random() < 0.3:
            live.all()
    assert live.all() == wanted
    assert sorted(one for story in wanted for one in story.incidents) == sorted({one.id for one in made})


@given(incidents())
@settings(max_examples=60)
def test_what_is_kept_of_an_incident_makes_the_same_links(made):
    """A supervisor that comes back from its memory tells the same stories."""
    kept = [Incident.from_json(json.loads(json.dumps(slim(one).to_json()))) for one in made]
    assert stories_of(kept) == stories_of(made)


def test_adding_costs_the_same_among_many():
    """Every incident looks at its neighbours only; what is over for long is forgotten."""
    chance = random.Random(1)

    def cost(number):
        stories, rounds = Stories(), []
        many = [
            incident(
                f"{n}",
                chance.choice(KINDS),
                7.0 * n,
                actor_id=f"{n % 1000:024x}01000000",
                node=NODES[n % 2],
                outcome=Outcome.RECOVERED,
            )
            for n in range(number)
        ]
        for one in many:
            began = perf_counter()
            stories.add(one)
            rounds.append(perf_counter() - began)
        return sorted(rounds)[number // 2]

    few, more = (min(cost(number) for _ in range(3)) for number in (50, 1_500))
    print(f"one incident more: {few * 1e6:.0f} us among 50, {more * 1e6:.0f} us among 1,500")
    assert more < 5 * few


def test_memory_is_bounded():
    """The oldest stories that are over go first; an open one stays."""
    stories = Stories()
    stories.add(incident("open", "actor_died", 0.0, actor_id=ACTORS[0]))
    for n in range(2 * KEPT):
        stories.add(
            over(incident(f"{n}", "user_code", 1000.0 * (n + 1), cause=f"cause {n}"), 1000.0 * (n + 1))
        )
    assert len(stories) <= KEPT
    assert stories.all()[0].id == "open"
