"""The injector: each planned fault once, at its step, on the process that was aimed at."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from rayguard.errors import ConfigError
from rayguard.testing.injector import SIGNALS, FaultInjector, PlannedFault, What


@pytest.fixture
def victim():
    """A process of our own that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(10)
    process.stdin.close()


def test_a_fault_is_due_at_its_step_until_it_happened(victim):
    """due() offers a fault at its own step only, and never again."""
    injector = FaultInjector().kill(actor=2, call=5)
    assert injector.due(4) == ()
    [fault] = injector.due(5)
    assert fault == PlannedFault(step=5, target=2, what=What.KILL_ACTOR)
    injector.strike(fault, psutil.Process(victim.pid))
    assert injector.due(5) == ()


def test_a_kill_kills_and_is_recorded_with_time_and_pid(victim):
    """The process is gone when strike() returns, and the record says which one and when."""
    injector = FaultInjector().kill(actor=0, call=1, what=What.KILL_CORE)
    before = time.time()
    fired = injector.strike(injector.plan[0], psutil.Process(victim.pid))
    assert victim.wait(10) == -signal.SIGKILL
    assert before <= fired.at <= time.time()
    assert fired.pid == victim.pid
    injector.assert_all_fired()


def test_a_frozen_process_is_stopped_not_dead(victim):
    """freeze() leaves the process there, in state T."""
    injector = FaultInjector().freeze(actor=0, call=1)
    injector.strike(injector.plan[0], psutil.Process(victim.pid))
    assert psutil.Process(victim.pid).status() == psutil.STATUS_STOPPED
    assert victim.poll() is None


def test_a_fault_that_happened_cannot_happen_again(victim):
    """Exactly once: the second record of a fault is an error, and so is one that nobody planned."""
    injector = FaultInjector([PlannedFault(step=1, target=0, what=What.SCHEDULER_ASSERTION)])
    injector.record(injector.plan[0], at=1.0, pid=7)
    with pytest.raises(ConfigError, match="already happened"):
        injector.record(injector.plan[0], at=2.0, pid=7)
    with pytest.raises(ConfigError, match="never planned"):
        injector.record(PlannedFault(step=9, target=0, what=What.KILL_CORE), at=2.0, pid=7)


def test_the_same_fault_cannot_be_planned_twice():
    """Two equal plans could not be told apart."""
    with pytest.raises(ConfigError, match="planned twice"):
        FaultInjector().kill(actor=0, call=1).kill(actor=0, call=1)


def test_what_never_fired_is_named():
    """The final check says which faults are missing."""
    injector = FaultInjector().kill(actor=1, call=3).freeze(actor=0, call=6)
    injector.record(injector.plan[0], at=1.0, pid=7)
    with pytest.raises(AssertionError, match=r"1 of 2 .*stop_core of 0 at step 6"):
        injector.assert_all_fired()


def test_a_pid_that_went_to_another_process_is_left_alone(victim):
    """Never a stranger: psutil remembers the start time of what was aimed at."""
    held = psutil.Process(victim.pid)
    held._ident = (held.pid, held.create_time() - 100.0)  # as if the number had belonged to an older process
    injector = FaultInjector().kill(actor=0, call=1)
    with pytest.raises(psutil.NoSuchProcess):
        injector.strike(injector.plan[0], held)
    assert victim.poll() is None
    assert injector.fired == []


def test_the_injector_never_strikes_itself():
    """A plan gone wrong must not kill the driver, nor init."""
    injector = FaultInjector().kill(actor=0, call=1)
    for pid in (psutil.Process().pid, 1):
        with pytest.raises(ConfigError, match="refusing"):
            injector.strike(injector.plan[0], psutil.Process(pid))


def test_what_no_signal_can_do_is_refused(victim):
    """A scheduler assertion is brought about by a fuse, not by os.kill."""
    assert What.SCHEDULER_ASSERTION not in SIGNALS
    injector = FaultInjector([PlannedFault(step=1, target=0, what=What.SCHEDULER_ASSERTION)])
    with pytest.raises(ConfigError, match="not done by a signal"):
        injector.strike(injector.plan[0], psutil.Process(victim.pid))
    assert victim.poll() is None
