"""The fleet of a gateway alone: engines given by URL, found out about here, where no control does it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidegate import logs
from tidegate.config import Settings
from tidegate.control.concerns import concerns
from tidegate.control.plan import make_plan, with_defaults
from tidegate.control.snapshot import Keys, ReplicaStatus, build
from tidegate.engines import continuation
from tidegate.engines.base import EngineFacts
from tidegate.engines.external import ExternalEngine, serving_name
from tidegate.errors import EngineStartError, StoreError
from tidegate.gateway.app import Gateway
from tidegate.gateway.fleet import Fleet
from tidegate.types import FleetSnapshot, ReplicaState

LOOK_S: Final = 1.0
"""How often missing engines are looked for."""
KEYS_S: Final = 0.5
"""How often keys are read: a revoked one is dead within a second."""


class FixedFleet:
    """Keeps a gateway's snapshot true: which engines answer, what they serve, which keys there are."""

    def __init__(
        self, settings: Settings, keys: Callable[[], Keys], touched: Callable[[], bool] = lambda: True
    ) -> None:
        """`settings` has pools of external engines only. `keys` blocks, and is called in a thread.

        `touched` says, without blocking, whether they may have changed since it was last called.
        """
        self._settings = with_defaults(settings)
        self._read_keys, self._touched = keys, touched
        self._keys = keys()
        self._keys_trouble = ""
        self._number = 0
        self._facts: dict[str, EngineFacts] = {}
        self._told: dict[str, str] = {}
        self._returns: dict[str, int] = {}
        """How often each had come back when it was looked at last."""
        self._checked: dict[str, EngineFacts] = {}
        """What was known of each when it was last asked whether it continues equally."""
        self._engines = {
            spec.id: ExternalEngine(spec.url, spec.options)  # type: ignore[arg-type]  # external pools have ExternalOptions
            for spec in make_plan(self._settings, {}).replicas
        }

    def snapshot(self) -> FleetSnapshot:
        """What is known now."""
        self._number += 1
        named = {
            pool.model: serving_name(facts.served_name)
            for pool in self._settings.pool
            for number in range(len(pool.urls))
            if (facts := self._facts.get(f"{pool.name}-{number}"))
        }
        plan = make_plan(self._settings, {}, named)
        if "auto" in {model.name for model in plan.models}:  # nobody has said yet what it is called
            plan = type(plan)()
        status = {key: self._status(key) for key in self._engines}
        return build(
            self._number,
            settings=self._settings.gateway,
            plan=plan,
            status=status,
            keys=self._keys,
            access_log=self._settings.log.access_log(),
            trace=self._settings.log.traced(),
            redis=self._settings.limits.redis(),
            policy=self._settings.policy(),
        )

    def _status(self, key: str) -> ReplicaStatus:
        engine, facts = self._engines[key], self._facts.get(key)
        state = ReplicaState.STARTING if facts is None else ReplicaState.READY
        return ReplicaStatus(state, engine.url, engine.dialect, engine.api_key, facts)

    async def watch(self, gateway: Gateway) -> None:
        """Look for engines and keys until cancelled."""
        for sentence in concerns(self._settings, keys=self._keys.views):
            logs.get().warning("look at the settings", advice=sentence)
        for engine in self._engines.values():
            await engine.start()
        async with asyncio.TaskGroup() as watches:
            watches.create_task(self._watch_engines(gateway, watches))
            watches.create_task(self._watch_keys(gateway))

    async def _watch_engines(self, gateway: Gateway, checks: asyncio.TaskGroup) -> None:
        while True:
            keys = list(self._engines)
            found = await asyncio.gather(*(self._look(gateway, key) for key in keys))
            if any(found) or not gateway.fleet.snapshot.number:
                gateway.apply(self.snapshot())
                for key in self._unchecked(gateway.fleet):
                    self._checked[key] = self._facts[key]
                    checks.create_task(self._check(gateway, key, self._facts[key]), name=f"continuation of {key}")
            await asyncio.sleep(LOOK_S)

    def _unchecked(self, fleet: Fleet) -> list[str]:
        """Engines that may have to go on with another's answers, and were not asked whether they can."""
        serving = [model.replicas for model in fleet.models.values() if len(model.replicas) > 1]
        keys = (replica.view.id for replicas in serving for replica in replicas)
        return [key for key in keys if key in self._facts and not self._is_checked(key)]

    def _is_checked(self, key: str) -> bool:
        facts = self._facts[key]
        return facts.continues or self._checked.get(key) is facts

    async def _watch_keys(self, gateway: Gateway) -> None:
        """An engine that is slow to answer does not keep a revoked key alive."""
        while True:
            if (self._touched() or self._keys_trouble) and await self._keys_changed():
                gateway.apply(self.snapshot())
            await asyncio.sleep(KEYS_S)

    async def _look(self, gateway: Gateway, key: str) -> bool:
        """Whether something new is known of one engine. One that answered is asked again only once it was away."""
        replica = gateway.fleet.replicas.get(key)
        known = self._facts.get(key)
        returns = replica.returns if replica is not None else 0
        if known is not None and returns == self._returns.get(key, 0):
            return False
        engine = self._engines[key]
        try:
            facts = await engine.ready()
        except EngineStartError as error:
            if self._told.get(key) != str(error):
                self._told[key] = str(error)
                logs.get().warning("engine not ready", replica=key, cause=str(error))
            return False
        self._told.pop(key, None)
        if known is not None and replace(facts, continues=known.continues) == known:
            self._returns[key] = returns
            return False
        self._returns[key] = 0  # other facts are another replica to the gateway
        self._facts[key] = facts
        logs.get().info("engine ready", replica=key, url=engine.url, dialect=engine.dialect, model=facts.served_name)
        return True

    async def _check(self, gateway: Gateway, key: str, facts: EngineFacts) -> None:
        """Beside all else: may it go on with the answers of another?"""
        engine = self._engines[key]
        equal = await continuation.continues(engine.url, engine.api_key, engine.dialect, facts.served_name)
        logs.get().info("engine checked", replica=key, continues=equal)
        if equal and self._facts.get(key) is facts:
            self._facts[key] = replace(facts, continues=True)
            gateway.apply(self.snapshot())

    async def _keys_changed(self) -> bool:
        try:
            keys = await asyncio.to_thread(self._read_keys)
        except StoreError as error:
            if str(error) != self._keys_trouble:
                self._keys_trouble = str(error)
                logs.get().warning("keys cannot be read; those known stay", cause=str(error))
            return False
        self._keys_trouble = ""
        changed = keys != self._keys
        self._keys = keys
        return changed
