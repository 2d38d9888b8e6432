"""What runs in an engine slot, in plain types: what ``engine_status`` returns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rayguard.engine.protocol import SERVING
from rayguard.engine.standby.spare import NO_STANDBY
from rayguard.faults.fault import Role

if TYPE_CHECKING:
    from rayguard.engine.protocol import Engine
    from rayguard.engine.supervision.lifecycle import Lives
    from rayguard.engine.supervision.recovery import Recovery


def status_of(lives: Lives, recovery: Recovery, *, serving: bool) -> dict[str, Any]:
    """Return what runs there now."""
    engine, state, tally = lives.engine, recovery.state, recovery.tally
    progress = None if engine is None else engine.progress()
    known = () if engine is None else engine.processes()
    pids = {role: [k.process.pid for k in known if k.role is role] for role in Role}
    return {
        "epoch": lives.epoch,
        "rung": len(state.applied),
        "settings": list(state.applied),
        "serving": serving,
        "adopted": lives.adopted,
        **_standing(lives.engine, serving=serving),
        "weight_version": lives.weights.version,
        "weights_missing": lives.weights.changes.refusal,
        "requests_running": 0 if progress is None else len(progress.running),
        "tokens_generated": 0 if progress is None else progress.tokens,
        "restarts": tally.restarts,
        "pids": {"core": next(iter(pids[Role.ENGINE_CORE]), None), "workers": pids[Role.ENGINE_WORKER]},
        **(NO_STANDBY if lives.standby is None else lives.standby.status()),
    }


def _standing(engine: Engine | None, *, serving: bool) -> dict[str, object]:
    found = SERVING if engine is None else engine.standing()
    state = found.state if serving or found.state == "asleep" else "not serving"
    return {
        "state": state,
        "stopped_by": found.call,
        "stopped_s": round(time.monotonic() - found.since, 1) if found.call else 0.0,
    }
