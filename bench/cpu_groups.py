"""Samples of where the processor time of a network in one process goes, by named group.

A sample belongs to the innermost function that is in a group. Time of threads beside the loop belongs to the disk.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from types import FrameType, TracebackType

EVERY_S = 0.004
"""Seconds of processor time between two samples."""
SIGNATURES, DISK, REST = "signatures", "disk", "the rest"

GROUPS = (
    (SIGNATURES, ("/ground/crypto/", "/ground/signatures/", "/nacl/")),
    (DISK, ("/ground/storage/", "/ground/files/", "/chain/node/store", "/validator/session_store", "/stagepost/topics/",
            "/full_node/status_topic")),
    ("agreement", ("/chain/agreement/", "/chain/node/agreement_runner")),
    ("links", ("/ground/", "/remp/links/", "/validator/links", "/full_node/links", "/asyncio/", "/selectors.py")),
    ("queue", ("/stagepost/catchain/", "/stagepost/remp/", "/stagepost/validator/")),
    ("chain", ("/stagepost/chain/",)),
    ("full node", ("/stagepost/full_node/",)),
)  # fmt: skip
"""Groups from the most particular to the least: the first group that holds a file has the file."""


def group_of(path: str) -> str | None:
    for name, parts in GROUPS:
        if any(part in path for part in parts):
            return name
    return None


class CpuGroups:
    """`with CpuGroups() as groups: …`, in the main thread; then `groups.shares()`."""

    def __init__(self) -> None:
        self._samples: Counter[str] = Counter()
        self._known: dict[str, str | None] = {}
        self._loop_s = self._others_s = 0.0

    def __enter__(self) -> CpuGroups:
        self._before = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        self._began = time.process_time(), time.thread_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, self._before)
        process, thread = (
            now - began
            for now, began in zip((time.process_time(), time.thread_time()), self._began, strict=True)
        )
        self._loop_s, self._others_s = thread, process - thread

    def shares(self, beside_s: float = 0.0) -> dict[str, float]:
        """Return each group's share of all processor time, the greatest first.

        `beside_s`: seconds that processes used which check signatures for this one.
        """
        samples = sum(self._samples.values())
        used = self._loop_s + self._others_s + beside_s
        if not samples or not used:
            return {}
        seconds = {name: count / samples * self._loop_s for name, count in self._samples.items()}
        seconds[DISK] = seconds.get(DISK, 0.0) + self._others_s
        seconds[SIGNATURES] = seconds.get(SIGNATURES, 0.0) + beside_s
        return {name: one / used for name, one in sorted(seconds.items(), key=lambda item: -item[1])}

    def _sample(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            path = frame.f_code.co_filename
            if path not in self._known:
                self._known[path] = group_of(path)
            group = self._known[path]
            if group is not None:
                if not path.endswith("selectors.py"):  # waiting, while another thread works
                    self._samples[group] += 1
                return
            frame = frame.f_back
        self._samples[REST] += 1
