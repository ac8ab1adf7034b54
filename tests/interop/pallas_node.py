"""A cardano-node made with pallas, which answers with a ledger's bytes; as a program, the guide's node beside it.

Run as a program inside new mount and network namespaces with the words PROGRAM ROLE COUNT ROOT.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.interop.peer_programs import PeerProgram
from tests.worlds.dmq.cardano_answers import LedgerState
from tests.worlds.dmq.untouched_machine import run_inside


@asynccontextmanager
async def pallas_node(
    program: Path, ledger: LedgerState, socket: Path, log: Path
) -> AsyncIterator[PeerProgram]:
    async with PeerProgram.started(program, "state-server", socket, log=log, magic=ledger.magic) as peer:
        await peer.hear("listening")
        for question, answer in ledger.answers().items():
            await peer.do("answer", question.hex(), answer.hex())
            await peer.hear("will-answer")
        yield peer


class PallasNode:
    def __init__(self, program: Path, ledger: LedgerState) -> None:
        self._program = program
        self._ledger = ledger
        self._running = AsyncExitStack()

    async def start(self, socket: Path) -> None:
        log = socket.parent / "pallas-log"
        await self._running.enter_async_context(pallas_node(self._program, self._ledger, socket, log))

    async def stop(self) -> None:
        await self._running.aclose()


if __name__ == "__main__":
    program_given, role_given, count_given, root_given = sys.argv[1:]
    run_inside(
        role_given,
        int(count_given),
        Path(root_given),
        lambda ledger: PallasNode(Path(program_given), ledger),
    )
