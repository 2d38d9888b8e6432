"""An actor that takes a pool's requests without an engine: for tests of pools on a real Ray."""

from __future__ import annotations


def light():
    """Return an actor class that takes a pool's requests without an engine; pickled by value."""

    class Light:
        def __init__(self, turn_s, *, fit=True):
            import uuid

            from rayguard.testing.scripted import Script, ScriptedActor

            if not fit:
                raise ValueError("no such model")
            self.member = ScriptedActor(uuid.uuid4().hex, Script(turn_s=turn_s))

        async def rayguard_hello(self):
            from dataclasses import replace

            import ray

            from rayguard.process.identity import ProcessId

            me, here = ProcessId.me(), ray.get_runtime_context()
            said = await self.member.hello()
            where = {"node_id": here.get_node_id(), "actor_id": here.get_actor_id()}
            return replace(said, pid=me.pid, started=me.started, **where)

        async def rayguard_submit(self, session, orders):
            await self.member.submit(session, orders)

        async def rayguard_poll(self, session, taken, wait_s):
            return await self.member.poll(session, taken, wait_s)

        async def rayguard_abort(self, session, ids):
            await self.member.abort(session, ids)

        async def rayguard_update_weights(self, session):
            return await self.member.update_weights(session)

    return Light
