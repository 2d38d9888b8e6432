"""Who holds what: every process in one row, an engine under its actor, strangers under nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.memory.holders import Process, spoken, table

RAYLET = ("/venv/ray/core/src/ray/raylet/raylet", "--node_id=1")


def process(pid, parent, name, private=100, **more):
    arguments = name if isinstance(name, tuple) else (name,)
    return Process(pid=pid, parent=parent, arguments=arguments, private=private, **more)


DRIVER = process(10, 1, ("/venv/bin/python", "-u", "train.py", "--lr=1"), driver=True)
NODE = process(20, 10, RAYLET)
ACTOR = process(30, 20, "ray::Rollout.generate", 200, shared=50, objects=7)
PREFORK = process(31, 30, "rayguard::prefork", 10, shared=20)
CORE = process(32, 31, "VLLM::EngineCore", 500, shared=90, device=900)


def rows(*processes, **options):
    return {row.name: row for row in table(processes, **options).rows}


def test_an_engines_tree_is_in_the_row_of_its_actor():
    """Sums of what each holds alone; the largest of what they share."""
    found = rows(DRIVER, NODE, ACTOR, PREFORK, CORE)
    row = found["ray::Rollout.generate"]
    assert (row.pid, row.processes, row.private, row.shared) == (30, 3, 710, 90)
    assert (row.device, row.objects) == (900, 7)
    assert found.keys() == {"python train.py", "raylet", "ray::Rollout.generate"}


def test_data_loader_workers_count_for_their_driver_and_raylets_for_themselves():
    """A local raylet is a child of the driver that started it."""
    worker = process(11, 10, ("/venv/bin/python", "-c", "from multiprocessing"), 40)
    found = rows(DRIVER, NODE, worker)
    assert found["python train.py"].private == 140
    assert found["raylet"].private == 100


def test_an_engine_whose_actor_died_has_no_owner():
    """The raylet or init adopted it; neither holds its memory."""
    for parent in (20, 1, 99):
        init = process(1, 0, "/sbin/init")
        found = rows(init, DRIVER, NODE, process(32, parent, "VLLM::EngineCore", 500))
        assert found["VLLM::EngineCore (no owner)"].private == 500


def test_an_engine_without_ray_belongs_to_the_program_that_started_it():
    """`vllm serve` on a machine without a cluster."""
    serve = process(5, 1, ("/venv/bin/python", "/venv/bin/vllm", "serve"), 60)
    found = rows(process(1, 0, "/sbin/init"), serve, process(6, 5, "VLLM::EngineCore", 500))
    assert found["python vllm"].private == 560


def test_a_guarded_process_heads_its_own_row():
    """Whatever it is called."""
    child = process(41, 10, ("/usr/bin/python3", "x.py"), 30, guarded="Trainer")
    assert rows(DRIVER, child)["python x.py"].guarded == "Trainer"


def test_the_top_is_shown_and_the_rest_summed_up():
    """Nothing vanishes."""
    many = [process(pid, 1, f"p{pid}", pid, pss=pid) for pid in range(2, 22)]
    found = table(many, top=3)
    assert [row.private for row in found.rows] == [21, 20, 19]
    assert (found.others.processes, found.others.private, found.others.pss) == (
        17,
        sum(range(2, 19)),
        sum(range(2, 19)),
    )


def test_what_cannot_be_read_is_counted_and_in_no_row():
    """Other users' processes under hidepid."""
    found = table([ACTOR, process(50, 1, "?", None)])
    assert (len(found.rows), found.unreadable, found.others) == (1, 1, None)


def test_a_partly_known_pss_is_unknown():
    """The sum of a part would look like the whole."""
    core = process(32, 30, "VLLM::EngineCore", 500, pss=400)
    assert rows(ACTOR, core)["ray::Rollout.generate"].pss is None
    actor = process(30, 20, "ray::Rollout.generate", 200, pss=0)
    assert rows(actor, core)["ray::Rollout.generate"].pss == 400


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ray::Rollout.generate()", ), "ray::Rollout.generate()"),
        (("ray::IDLE   ",), "ray::IDLE"),
        (RAYLET, "raylet"),
        (("/usr/bin/python3.11", "-u", "-X", "dev", "/home/u/train.py", "--x"), "python train.py"),
        (("python", "-m", "verl.trainer.main", "a=b"), "python -m verl.trainer.main"),
        (("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"), "python -c from multiprocessing.spawn import spawn_"),
        (("python",), "python"),
        (("python", "/venv/lib/ray/dashboard/dashboard.py"), "ray dashboard.py"),
        (("nginx: master process",), "nginx"),
        (("",), "(no name)"),
        ((), "(no name)"),
        (("/",), "/"),
    ],
)  # fmt: skip
def test_processes_are_called_by_what_people_call_them(arguments, expected):
    """Titles, scripts, modules, programs."""
    assert spoken(arguments) == expected


NAMES = st.sampled_from(
    ["ray::A", "ray::IDLE", "VLLM::EngineCore", "rayguard::prefork", RAYLET, ("python", "t.py"), "bash", ""]
)


@given(
    st.lists(
        st.tuples(st.integers(0, 15), NAMES, st.one_of(st.none(), st.integers(0, 1000)), st.booleans()),
        max_size=15,
    ),
    st.integers(1, 5),
)
def test_every_process_is_counted_exactly_once(drawn, top):
    """In a row, among the others or as unreadable; whatever the family tree, rings included."""
    everybody = [
        process(pid, parent, name, private, driver=driver)
        for pid, (parent, name, private, driver) in enumerate(drawn)
    ]
    found = table(everybody, top=top)
    shown = [*found.rows, *([found.others] if found.others else [])]
    assert sum(row.processes for row in shown) + found.unreadable == len(everybody)
    assert sum(row.private for row in shown) == sum(one.private or 0 for one in everybody)
    assert len(found.rows) <= top
