"""Writes docs/promises.md from results: `python tools/promises_docs.py FILE`. A test compares the result.

`make soak` leaves one line per promise in results/promises.jsonl. The newest line of each promise, if its run had the
counts of a scale, is taken over into docs/promises.jsonl, which is kept with the page: whoever clones the repository can
make the page again without hours of running.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from stagepost.ground.statemachine.render import table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from rigs.promise_mutants import MUTANTS  # noqa: E402 - the script finds the repository first

NEWEST = ROOT / "results" / "promises.jsonl"
KEPT = "promises.jsonl"
SCALES = ("commit", "release")
GENERATED = "<!-- Written by `make docs` from promises.jsonl; changes made here are lost. -->"
ABOUT = """This page lists each promise of Stagepost, the test that tries to break it, and the result. A promise holds only with the result `kept`:
`not run` means that it is not promised yet, `broken` that it has a known fault. `make soak` repeats all tests at scale `commit`,
`make soak SCALE=release` with larger counts; `make test` runs a sample of them. A message is *accepted* when the caller has got a
positive answer. A *mutant* is a defect that the promise's own tests have noticed: `make soak` plants it and runs them, or a test plants it by itself."""

Line = Mapping[str, object]

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Durability and delivery": {
        "D1": "An accepted message is on disk, however the process ends.",
        "D2": "An accepted message is on disk after a power failure.",
        "D3": "Damage to stored files is noticed; readable rows are kept, the damaged file is set aside and reported.",
        "D4": "While a disk is full or fails, requests are refused with a reason and no accepted message is harmed; afterwards the node recovers.",
        "D5": "Reliable publishing: every message ends in exactly one reported status, and no message is lost without a report.",
        "D6": "A full queue drops no message without a report.",
        "D7": "Each message has one effect in the application, across repeated deliveries and restarts.",
        "D8": "The messages of one producer keep their order on one path.",
    },
    "Agreement among validators": {
        "B1": "If fewer than a third of the validators are faulty, honest validators deliver the same set of blocks.",
        "B2": "A message that reaches one honest validator reaches all of them, or expires for all of them.",
        "B3": "No message is included in a block twice.",
        "B4": "Delivery follows the causal order of the catchain.",
        "B5": "A change of session loses no open message, and reopens no ended message.",
        "B6": "There is a proof against every validator that makes a fork, and never one against an honest validator.",
        "B7": "Receipts are signed, checked against the right validator set, and contradictions between receipts of one validator are noticed.",
        "B8": "Once faults end, progress resumes.",
        "B9": "If a quorum is missing, validators report it.",
        "B10": "A message has at most one end, and every end has a proof that anybody can check.",
    },
    "Authentication and replay": {
        "S1": "A node accepts only messages with valid signatures of an eligible pool.",
        "S2": "A refused message changes no state that decides on later messages.",
        "S3": "A replay is refused while the message lives and afterwards, also after a restart.",
        "S4": "A clock that is set back does not make a node accept replays.",
        "S5": "Clocks that differ by up to 5 s cause no refusal; with a greater difference the refusal names it.",
        "S6": "A node never accepts a lower certificate number of a pool than before.",
        "S7": "Two messages of one pool for one slot are noticed and counted.",
        "S8": "A KES key only evolves forward; a crash at any step leaves one usable key.",
        "S9": "A key file that others can read or own is refused at the start.",
        "S10": "No secret appears in logs, errors, metrics, dumps or arguments.",
    },
    "Hostile input and load": {
        "N1": "A decoder answers every invalid input with a named refusal, and never fails otherwise.",
        "N2": "An independent decoder reads every accepted input in the same way.",
        "N3": "Memory stays below the sum of the limits.",
        "N4": "A slow peer is disconnected when its time limit is over, and honest peers are not slowed.",
        "N5": "A flood of forged messages does not stop honest traffic.",
        "N6": "A pool that floods with valid messages is limited, and other pools are not harmed.",
        "N7": "A node answers all of 10,000 open connections.",
        "N8": "Consumers that do not read slow no other consumer, and do not let memory grow.",
        "N9": "A full mempool refuses messages with a reason, drops no accepted message, and accepts messages again as others expire.",
        "N10": "A node with one honest peer among twenty hostile ones gets all messages.",
        "N11": "Four hostile identities for each honest one cannot hold messages back.",
    },
    "Pipeline and operation": {
        "P1": "Tables equal an independent recomputation from the log.",
        "P2": "After a driver was killed and started again, the results are as if it had run once.",
        "P3": "The same holds after a restart of a broker or of a log's writer.",
        "P4": "A second driver on the same checkpoint refuses to start.",
        "P5": "Invalid records go to the table `quarantine` with the reason.",
        "O1": "In a day with faults memory does not grow and no rule is broken.",
        "O2": "Two runs with the same seed are the same.",
        "O3": "A node with a million stored records is ready within 10 s.",
        "O4": "A stopped node ends or returns all work within 10 s.",
        "O5": "Dependencies are pinned by hash and scanned.",
        "O6": "The tests can fail: they catch planted defects.",
        "W1": "After losses, delays, crashes and partitions all nodes of a network hold the same messages.",
    },
}
"""The statements by id. W1 is our own addition."""


def statements() -> dict[str, str]:
    return {promise: text for group in GROUPS.values() for promise, text in group.items()}


def read_lines(path: Path) -> list[Line]:
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )


def newest(lines: Iterable[Line]) -> dict[str, Line]:
    """The last line by date of each promise; runs with counts of one's own prove nothing.

    Repeating a run until it passes would hide what it found, so the line says how many runs its revision had, and how
    many of them broke the promise.
    """
    known = statements()
    full = [line for line in lines if line["promise"] in known and line["scale"] in SCALES]
    found: dict[str, Line] = {}
    for promise in known:
        # By date: a line that was taken over before stands in both files.
        ours = {str(line["date"]): line for line in full if line["promise"] == promise}
        if ours:
            last = ours[max(ours)]
            same = [line for line in ours.values() if line["revision"] == last["revision"]]
            broken = sum(not line["passed"] for line in same)
            found[promise] = {
                **last,
                "runs": max(len(same), *(_count(line, "runs") for line in same)),
                "broken_runs": max(broken, *(_count(line, "broken_runs") for line in same)),
            }
    return found


def _count(line: Line, name: str) -> int:
    value = line.get(name, 0)
    return value if isinstance(value, int) else 0


def page(lines: Mapping[str, Line]) -> str:
    parts = [GENERATED, "# Promises", ABOUT, _summary(lines)]
    for title, promises in GROUPS.items():
        rows = (_row(promise, text, lines.get(promise)) for promise, text in promises.items())
        parts += [
            f"## {title}",
            table(("id", "promise", "result", "figure", "test", "scale, date, revision", "mutant"), rows),
        ]
    parts += ["## Where and how it was run", _circumstances(lines)]
    return "\n\n".join(parts) + "\n"


def _row(promise: str, text: str, line: Line | None) -> tuple[str, ...]:
    if line is None:
        return (promise, text, "not run", "–", "–", "–", _mutants(promise))
    when = f"{line['scale']}, {str(line['date'])[:10]}, `{line['revision']}`"
    state = "kept" if line["passed"] else "**broken**"
    if line["passed"] and line["broken_runs"]:
        state = f"kept; **broken in {line['broken_runs']} of {line['runs']} runs** of this revision"
    return (promise, text, state, _cell(line["figure"]), _cell(line["test"]), when, _mutants(promise))


def _mutants(promise: str) -> str:
    return _cell("; ".join(mutant.name for mutant in MUTANTS[promise]))


def _cell(value: object) -> str:
    """No text may end its cell."""
    return str(value).replace("|", "/").replace("\n", " ")


def _summary(lines: Mapping[str, Line]) -> str:
    kept = sum(bool(line["passed"]) for line in lines.values())
    broken = len(lines) - kept
    return f"{kept} kept, {broken} broken, {len(statements()) - len(lines)} not run."


def _circumstances(lines: Mapping[str, Line]) -> str:
    """Each command once, with the promises that it put to the test."""
    runs: dict[tuple[str, str], list[str]] = {}
    for promise, line in lines.items():
        memory = f", {line['memory_mb']} MB" if "memory_mb" in line else ""
        machine = f"{line['processors']} processors{memory}, {line['machine']}, Python {line['python']}"
        runs.setdefault((str(line["command"]), machine), []).append(promise)
    rows = ((", ".join(promises), f"`{command}`", where) for (command, where), promises in runs.items())
    return table(("promises", "command", "machine"), rows)


def main(page_path: Path, results: Path = NEWEST) -> None:
    kept = page_path.with_name(KEPT)
    lines = newest([*read_lines(kept), *read_lines(results)])
    kept.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines.values()), encoding="utf-8"
    )
    page_path.write_text(page(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
