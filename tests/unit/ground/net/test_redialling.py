"""The loop that keeps connections up: dials, is told of ends, looks again by time or by news."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from stagepost.errors import ErrorCode, RemoteProtocolError, TransportError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.redialler import LOOK_AGAIN_S, Redialler


class Dialled:
    """Dials one peer in every step, and says when it wants to be asked again."""

    def __init__(self, outcome: str | Exception | None, again_s: float | None) -> None:
        self.outcome = outcome
        self.again_s = again_s
        self.steps: list[float] = []
        self.ends: list[tuple[str, str | None]] = []
        self.redialler: Redialler[str] = Redialler(
            lambda: asyncio.get_running_loop().time(),
            lambda who, violation: self.ends.append((who, violation)),
        )

    def step(self, now: float) -> float | None:
        self.steps.append(now)
        if len(self.steps) == 1:
            self.redialler.dial("peer", "its name", partial(self.converse))
        return None if self.again_s is None else now + self.again_s

    async def converse(self) -> str | None:
        await asyncio.sleep(1)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def run_for(self, seconds: float) -> None:
        running = asyncio.create_task(self.redialler.run(self.step))
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await self.redialler.stop()


@pytest.mark.parametrize(
    ("outcome", "violation"),
    [
        pytest.param(None, None, id="went away"),
        pytest.param("CBOR_LIMIT", "CBOR_LIMIT", id="broke a rule"),
        pytest.param(TransportError("no answer"), None, id="not reached"),
        pytest.param(
            RemoteProtocolError("no", code=ErrorCode.PROTOCOL_SIZE), "PROTOCOL_SIZE", id="broke a rule early"
        ),
        pytest.param(ZeroDivisionError(), None, id="a bug of ours"),
    ],
)
def test_every_end_is_told_with_the_rule_that_was_broken_and_is_news(
    outcome: str | Exception | None, violation: str | None
) -> None:
    async def main() -> Dialled:
        dialled = Dialled(outcome, None)
        await dialled.run_for(10)
        return dialled

    dialled = run_in_virtual_time(main())
    assert dialled.ends == [("peer", violation)]
    assert dialled.steps == [0.0, 1.0]


@pytest.mark.parametrize(("again_s", "steps"), [(None, 2), (20.0, 4), (1_000.0, 2)])
def test_it_looks_again_when_it_was_told_to_and_after_a_minute_at_the_latest(
    again_s: float | None, steps: int
) -> None:
    async def main() -> Dialled:
        dialled = Dialled(None, again_s)
        dialled.steps.append(-1.0)  # nobody is dialled
        await dialled.run_for(LOOK_AGAIN_S + 10)
        return dialled

    dialled = run_in_virtual_time(main())
    assert len(dialled.steps) - 1 == steps


def test_who_is_hung_up_on_and_all_others_at_the_stop_are_told_as_gone() -> None:
    async def main() -> Dialled:
        dialled = Dialled(None, None)
        for name in ("one", "other"):
            dialled.redialler.dial(name, name, lambda: asyncio.sleep(100, None))
        await asyncio.sleep(1)
        dialled.redialler.hang_up("one")
        dialled.redialler.hang_up("nobody")
        await asyncio.sleep(1)
        assert dialled.ends == [("one", None)]
        await dialled.redialler.stop()
        return dialled

    assert run_in_virtual_time(main()).ends == [("one", None), ("other", None)]
