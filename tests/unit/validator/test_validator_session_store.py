"""The store of a validator's sessions on a real disk: what is there after an end, a crash or damage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from rigs.catchain_keys import public_key_of, seed_of
from rigs.one_session_ledger import WHOLE_SHARD
from rigs.remp_overlay_world import SEQNO, message_bytes, parse
from stagepost.catchain.member import MemberOptions
from stagepost.errors import StagepostError
from stagepost.ground.loop.clock import SystemClock
from stagepost.remp.links.overlay import RESYNC_WAIT_S, Answered
from stagepost.remp.queue.effects import Telling
from stagepost.remp.queue.message_cache import MessageCache
from stagepost.validator.session_plan import SessionOptions, SessionPlan
from stagepost.validator.session_runner import SessionRunner
from stagepost.validator.session_store import STORE_FILE, BodyRow, SessionStore, open_session_store
from tests.worlds.ground.damaged_files import change_row
from tests.worlds.ground.failing_disk import Disk

ONE, TWO = b"1" * 32, b"2" * 32


async def put_block(store: SessionStore, session_id: bytes, frame: bytes) -> None:
    await waited(lambda written: store.put_block(session_id, frame, written))


async def waited(act: Callable[[Callable[[], None]], None]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    act(lambda: done.set_result(None))
    await done


def body(session_id: bytes, number: int, full_node: bytes = b"") -> BodyRow:
    return BodyRow(session_id, parse(message_bytes(number)).message_id, message_bytes(number), full_node)


async def filled(folder: Path) -> None:
    store = open_session_store(folder)
    for session_id in (ONE, TWO):
        store.begin(session_id, 10)
    for number in range(20):
        await put_block(store, ONE if number % 2 else TWO, b"block %d" % number)
    store.put_body(body(ONE, 1, b"full node"))
    store.put_body(body(TWO, 2))
    await store.close()


def test_blocks_come_back_in_the_order_in_which_they_were_written_each_with_its_session(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        await filled(tmp_path)
        store = open_session_store(tmp_path)
        assert store.damage == ()
        assert store.sessions == {ONE: 10, TWO: 10}
        assert len(store.look_at(ONE).frames) == 10
        content = store.load(ONE)
        assert store.look_at(ONE).frames == ()
        assert content.frames == tuple(b"block %d" % number for number in range(1, 20, 2))
        assert content.bodies == (body(ONE, 1, b"full node"),)
        assert not content.is_suspect
        assert store.load(b"3" * 32).frames == ()
        assert store.found_body(body(TWO, 2).message_id) == message_bytes(2)
        # Numbers go on where they were.
        await put_block(store, ONE, b"later")
        await store.close()
        again = open_session_store(tmp_path)
        assert again.load(ONE).frames[-1] == b"later"
        assert len(again.load(TWO).frames) == 10
        await again.close()

    asyncio.run(main())


def test_a_body_that_a_full_node_was_promised_is_not_replaced_by_anothers_copy(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_session_store(tmp_path)
        store.put_body(body(ONE, 1))
        store.put_body(body(ONE, 1, b"full node"))
        await put_block(store, ONE, b"behind it")
        store.put_body(body(ONE, 1))
        await store.close()
        again = open_session_store(tmp_path)
        assert again.load(ONE).bodies == (body(ONE, 1, b"full node"),)
        await again.close()

    asyncio.run(main())


def test_a_session_that_is_over_goes_with_everything_that_was_kept_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        await filled(tmp_path)
        store = open_session_store(tmp_path)
        store.put_block(ONE, b"in the same group", lambda: None)
        store.remove([ONE])
        assert store.found_body(body(ONE, 1).message_id) is None
        await store.close()
        again = open_session_store(tmp_path)
        assert again.damage == ()
        assert again.sessions == {TWO: 10}
        assert again.load(ONE).frames == ()
        assert again.load(ONE).bodies == ()
        assert len(again.load(TWO).frames) == 10
        await again.close()

    asyncio.run(main())


def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_session_store(tmp_path)
        with pytest.raises(StagepostError, match=r"store of sessions in .* is in use by process"):
            open_session_store(tmp_path)
        await store.close()

    asyncio.run(main())


def test_what_a_failing_disk_refused_is_written_later_and_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = open_session_store(tmp_path, connect=disk.connect)
        await put_block(store, ONE, b"first")
        disk.fails_at = disk.calls + 1
        heard: list[str] = []
        store.on_error = lambda error: heard.append(error.text)
        await put_block(store, ONE, b"second")
        assert store.writes_failed == 1
        assert "cannot be written" in heard[0]
        assert store.fault is None
        await store.close()
        again = open_session_store(tmp_path)
        assert again.load(ONE).frames == (b"first", b"second")
        assert again.damage == ()
        await again.close()

    asyncio.run(main())


DAMAGES = {
    "a row that was changed": (
        "UPDATE blocks SET content = ? WHERE key = 3",
        "a row of blocks was set aside",
    ),
    "a row that is gone": ("DELETE FROM blocks WHERE ? AND key = 3", "rows of blocks are missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_after_damage_a_member_listens_for_long_before_it_speaks(tmp_path: Path, damage: str) -> None:
    """Its last blocks may be what is gone: it would fork. Others remember them."""
    statement, sentence = DAMAGES[damage]

    async def main() -> None:
        await filled(tmp_path)
        change_row(tmp_path / STORE_FILE, statement, b"1")
        store = open_session_store(tmp_path)
        assert sentence in store.damage[0]
        # Nothing is left of it that could be read, but that may be the damage.
        runner = a_runner(store, b"3" * 32)
        runner.start(NoLinks())
        assert runner.member.next_wake < runner_starts_at(runner)
        assert runner_starts_at(runner) > SystemClock().mono_s() + RESYNC_WAIT_S - 10
        runner.stop()
        await store.close()
        whole = open_session_store(tmp_path)
        other = a_runner(whole, b"3" * 32)
        other.start(NoLinks())
        assert runner_starts_at(other) < SystemClock().mono_s() + 10, "damage is told once"
        other.stop()
        await whole.close()

    asyncio.run(main())


class NoLinks:
    def push(self, peer: int, frame: bytes) -> bool:
        return False

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        asyncio.get_running_loop().call_soon(answered, None)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        raise AssertionError(text)


def a_runner(store: SessionStore, session_id: bytes) -> SessionRunner:
    def tell(tells: Sequence[Telling]) -> None:
        raise AssertionError("nothing happened")

    keys = tuple(public_key_of(number) for number in range(4))
    plan = SessionPlan(session_id, keys, 0, frozenset(range(4)), SEQNO, WHOLE_SHARD)
    options = SessionOptions(member=MemberOptions(start_wait_s=0.5))
    cache = MessageCache()
    return SessionRunner(plan, seed_of(0), cache, store, SystemClock(), Random(1), parse, tell, options)


def runner_starts_at(runner: SessionRunner) -> float:
    return runner.member._starts_at
