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
NEWEST = ROOT / "results" / "promises.jsonl"
KEPT = "promises.jsonl"
SCALES = ("commit", "release")
GENERATED = "<!-- Written by `make docs` from promises.jsonl; changes made here are lost. -->"
ABOUT = """What Stagepost promises, what puts it to the test, and what came out. A promise counts only with a result of `kept`: what is
`not run` is not promised yet, and what is `broken` is a known fault. `make soak` repeats all of this at scale `commit`,
`make soak SCALE=release` with larger counts; `make test` runs a sample of it every time. "Accepted" means that the caller
was told yes."""

Line = Mapping[str, object]

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Durability and delivery": {
        "D1": "A message that was accepted is on disk, however the process ends.",
        "D2": "The same when the power fails.",
        "D3": "Damage to stored files is noticed; what can still be read is kept, what cannot is set aside and reported.",
        "D4": "A full or failing disk refuses requests with a reason, harms nothing that was accepted, and is recovered from.",
        "D5": "Reliable publishing: every message ends in one reported state, and nothing is lost in silence.",
        "D6": "A full queue drops nothing in silence.",
        "D7": "Each message takes effect once at the application, across repeats and restarts.",
        "D8": "On one path, the messages of one producer keep their order.",
    },
    "Agreement among validators": {
        "B1": "With fewer than a third faulty, honest validators deliver the same set.",
        "B2": "A message that reaches one honest validator reaches all, or expires for all.",
        "B3": "No message is collated twice.",
        "B4": "Delivery follows the causal order of the catchain.",
        "B5": "A change of session loses nothing that is alive and revives nothing that is not.",
        "B6": "A forker is proved and blamed; no honest validator ever is.",
        "B7": "Receipts are signed, checked against the right set, and may not contradict one another.",
        "B8": "Once faults end, progress resumes.",
        "B9": "Without a quorum, that is reported.",
    },
    "Authentication and replay": {
        "S1": "Only messages that are rightly signed by an eligible pool are taken.",
        "S2": "A message that is refused changes nothing by which later ones are judged.",
        "S3": "A replay is refused, as long as the message lives and afterwards, also after a restart.",
        "S4": "Setting the clock back opens no door to replays.",
        "S5": "Clocks that differ by up to 5 s cause no refusal; beyond that the refusal names the difference.",
        "S6": "The number of a pool's certificate never goes back.",
        "S7": "Two messages of one pool where there may be one are noticed and counted.",
        "S8": "KES keys only go forward; a crash at any step of that leaves one usable key.",
        "S9": "Secrets that others could read, or own, are refused at the start.",
        "S10": "No secret shows in logs, errors, metrics, dumps or arguments.",
    },
    "Hostile input and load": {
        "N1": "No input makes a decoder fail in any other way than by refusing in order.",
        "N2": "What the decoders accept, an independent decoder reads alike.",
        "N3": "Memory stays within what the limits add up to.",
        "N4": "A slow peer is gone when its time is over, and honest ones do not notice.",
        "N5": "A flood of forgeries costs the flooder; honest traffic goes on.",
        "N6": "A pool that floods with valid messages is limited without harm to others.",
        "N7": "10,000 open connections are all answered.",
        "N8": "Consumers that do not read slow nobody down and let nothing grow.",
        "N9": "A full mempool refuses clearly, drops nothing that it accepted, and recovers as messages expire.",
        "N10": "One honest peer among twenty hostile ones is enough.",
        "N11": "Four hostile identities for each honest one do not keep messages back.",
    },
    "Pipeline and operation": {
        "P1": "Tables equal a plain recomputation of the log.",
        "P2": "A killed driver leaves results as if it had run once.",
        "P3": "So does a broker or a log writer that is restarted.",
        "P4": "A second driver on the same checkpoint refuses to start.",
        "P5": "Bad rows go to a quarantine with the reason.",
        "O1": "A day with faults lets nothing grow and breaks no rule.",
        "O2": "The same seed is the same run.",
        "O3": "A node with a million stored records is ready within 10 s.",
        "O4": "A stop ends or hands back all work within 10 s.",
        "O5": "Dependencies are pinned by hash and scanned.",
        "O6": "The tests can fail: defects that are planted are caught.",
        "W1": "Whole networks that lose, delay, crash and are cut in two hold the same messages afterwards.",
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
            table(("id", "promise", "result", "figure", "test", "scale, date, revision"), rows),
        ]
    parts += ["## Where and how it was run", _circumstances(lines)]
    return "\n\n".join(parts) + "\n"


def _row(promise: str, text: str, line: Line | None) -> tuple[str, ...]:
    if line is None:
        return (promise, text, "not run", "–", "–", "–")
    when = f"{line['scale']}, {str(line['date'])[:10]}, `{line['revision']}`"
    state = "kept" if line["passed"] else "**broken**"
    if line["passed"] and line["broken_runs"]:
        state = f"kept; **broken in {line['broken_runs']} of {line['runs']} runs** of this revision"
    return (promise, text, state, _cell(line["figure"]), _cell(line["test"]), when)


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
