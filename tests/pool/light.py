"""An actor that takes a pool's requests without an engine: for tests of pools on a real Ray."""

from __future__ import annotations


def _logging():
    """Return what lets a scripted actor keep a token log, but for its last tokens; pickled by value."""

    def log_of(member, behind):
        from rayguard.engine.tokens.log import TokenLog, log_path
        from rayguard.home import home
        from rayguard.pool.actors.outbox import Outbox

        log = TokenLog(log_path(home() / "tokens"))

        class Logging(Outbox):
            def begin(self, request_id, fingerprint):
                super().begin(request_id, fingerprint)
                log.begin(request_id, fingerprint)
                log.behind(behind)

            def append(self, entries):
                super().append(entries)
                log.append(entries)

            def done(self, request_id):
                super().done(request_id)
                log.end([request_id])

        member.outbox = Logging()
        return str(log.path)

    return log_of


def light():
    """Return an actor class that takes a pool's requests without an engine; pickled by value."""
    log_of = _logging()

    class Light:
        def __init__(self, turn_s, *, fit=True, behind=0):
            import uuid

            from rayguard.testing.scripted import Script, ScriptedActor

            if not fit:
                raise ValueError("no such model")
            self.member = ScriptedActor(uuid.uuid4().hex, Script(turn_s=turn_s))
            self.log = log_of(self.member, behind)

        async def rayguard_hello(self):
            from dataclasses import replace

            import ray

            from rayguard.process.identity import ProcessId

            me, here = ProcessId.me(), ray.get_runtime_context()
            said = await self.member.hello()
            where = {"node_id": here.get_node_id(), "actor_id": here.get_actor_id()}
            return replace(said, pid=me.pid, started=me.started, token_log=self.log, **where)

        async def rayguard_submit(self, session, orders):
            await self.member.submit(session, orders)

        async def rayguard_poll(self, session, taken, wait_s, pace_s):
            return await self.member.poll(session, taken, wait_s, pace_s)

        async def rayguard_abort(self, session, ids):
            await self.member.abort(session, ids)

        async def rayguard_update_weights(self, session):
            return await self.member.update_weights(session)

    return Light
