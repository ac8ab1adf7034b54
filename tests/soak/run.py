"""Long runs that back the promises: as many tries as a release needs, on all processors.

    make soak                    the counts that a commit must hold, some hours; parts.py lists what is run
    make soak SCALE=release      the counts of a release, some days
    make fuzz                    one minute for every decoder, once by mutation and once guided by coverage

Progress goes to stderr, the table to stdout, every result to results/soak.jsonl and one line per promise to
results/promises.jsonl, from which `make docs` makes docs/promises.md. Exit code 1 if a promise was broken; each failure
is printed with the line that replays it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rigs import results
from rigs.results import OWN_COUNT, Result, by_promise, revision, write_lines
from tests.fuzz.harness import run_range
from tests.fuzz.mutate import input_for
from tests.fuzz.targets import TARGET_NAMES, target
from tests.soak.fuzz_runs import INPUTS_BY_SCALE
from tests.soak.parts import PART_NAMES, PARTS, Part, play
from tests.soak.runs import Run, say

TARGETED_PARTS = ("fuzz", "guided")
SHARED_PARTS = ("fuzz", "ends", "primes-ends", "primes-storms", "changes", "live-changes")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.index is not None:
        return replay(options.target, options.seed, options.index)
    if options.share != (1, 1):
        if options.seed is None:
            parser().error("--share needs --seed: all shares of a run have the same seed")
        if alien := sorted(set(options.only or ()) - set(SHARED_PARTS)):
            parser().error(
                f"--share: {', '.join(alien)} has no shares; these have: {', '.join(SHARED_PARTS)}"
            )
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    run = Run(
        options.scale,
        seed,
        options.inputs,
        options.seconds,
        options.target,
        options.processes,
        promises=tuple(options.promise or ()),
        share=options.share,
    )
    of_promises = [part.name for part in PARTS if not run.promises or set(run.promises) & set(part.promises)]
    if run.share != (1, 1):
        of_promises = [name for name in of_promises if name in SHARED_PARTS]
    chosen = options.only or (TARGETED_PARTS if options.target else of_promises)
    say(f"seed {seed} · revision {revision()} · scale {run.named_scale} · {', '.join(chosen)}")
    command = " ".join(["python", "tests/soak/run.py", *_shown(options, seed)])
    found: list[Result] = []
    for part in PARTS:
        if part.name not in chosen:
            continue
        say(f"part {part.name}")
        of_part = [{"part": part.name, "scale": run.named_scale, **one} for one in play(part, run)]
        write_lines("soak", command, of_part)
        found += of_part
    promises = [{**one, "scale": run.named_scale} for one in by_promise(in_all_parts(found, run.named_scale))]
    path = write_lines("promises", command, promises)
    print(table(promises))
    say(f"written to {path.name} and soak.jsonl in {path.parent.name}/")
    for text in _faults(found):
        print(f"\n{text}")
    return 0 if all(one["passed"] for one in found) else 1


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--scale", choices=sorted(INPUTS_BY_SCALE), default="commit", help="how many tries")
    found.add_argument(
        "--only", choices=PART_NAMES, action="append", help="run this part alone; may be repeated"
    )
    found.add_argument("--seconds", type=float, metavar="N", help="a time for each target instead of a count")
    found.add_argument("--inputs", type=int, metavar="N", help="a count of your own for each part")
    found.add_argument("--target", choices=TARGET_NAMES, help="one decoder alone")
    found.add_argument("--seed", type=int, metavar="N", help="repeat a run; a fresh one is drawn and printed")
    found.add_argument("--index", type=int, metavar="M", help="replay one input; needs --target and --seed")
    found.add_argument(
        "--promise", metavar="ID", action="append", help="try this promise alone; may be repeated"
    )
    found.add_argument(
        "--share",
        type=_share,
        default=(1, 1),
        metavar="K/N",
        help=f"run the K-th of N shares of {', '.join(SHARED_PARTS)}; the result comes with the last share of a seed and revision",
    )
    found.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    return found


def _share(text: str) -> tuple[int, int]:
    place, _, number = text.partition("/")
    if not (place.isdecimal() and number.isdecimal() and 1 <= int(place) <= int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, for example 3/20")
    return int(place), int(number)


def replay(name: str | None, seed: int | None, index: int) -> int:
    """One input again, with its whole traceback, and ready to be kept."""
    if name is None or seed is None:
        print("--index needs --target and --seed", file=sys.stderr)
        return 2
    chosen = target(name)
    data = input_for(chosen.samples, seed, index)
    print(f"# {name}, seed {seed}, index {index}, {len(data)} bytes\n{data.hex()}")
    outcome = run_range(chosen, seed, index, 1)
    if not outcome.failures:
        print("answered in order")
        return 0
    try:
        chosen.check(data)
    except Exception:
        traceback.print_exc()
    print(
        f"{outcome.failures[0].text}\nto keep it, save the two lines above as tests/fuzz/corpus/{name}/….hex"
    )
    return 1


def in_all_parts(found: Sequence[Result], scale: str) -> list[Result]:
    """Return the results of this run, and of the other parts of its promises: the newest ones of this clean revision and
    scale, or a sentence that a part was not run. Parts may be run by commands of their own, and none is forgotten.
    """
    if scale == OWN_COUNT or revision().endswith("-dirty"):
        return list(found)
    path = results.RESULTS / "soak.jsonl"
    lines: list[Result] = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    )
    here = [one for one in lines if (one["revision"], one["scale"]) == (revision(), scale)]
    joined: list[Result] = []
    for part in PARTS:
        ours = [one for one in found if one["part"] == part.name]
        joined += ours
        for promise in dict.fromkeys(str(one["promise"]) for one in found):
            if promise not in part.promises or any(one["promise"] == promise for one in ours):
                continue
            earlier = [one for one in here if (one["part"], one["promise"]) == (part.name, promise)]
            newest = max((str(one["date"]) for one in earlier), default="")
            joined += [one for one in earlier if one["date"] == newest]
            if not earlier:
                joined.append(_not_run(part, promise))
    return joined


def _not_run(part: Part, promise: str) -> Result:
    figure = f"part {part.name} was not run on this revision"
    return {"promise": promise, "part": part.name, "test": "", "figure": figure, "passed": True}


def table(promises: Sequence[Result]) -> str:
    """For people."""
    rows = ["promise  result  figure"]
    rows += [
        f"{one['promise']!s:8} {'kept' if one['passed'] else 'BROKEN':7} {one['figure']}" for one in promises
    ]
    return "\n".join(rows)


def _faults(results: Sequence[Result]) -> Iterator[str]:
    for one in results:
        faults = one.get("faults")
        yield from map(str, faults if isinstance(faults, list) else ())


def _shown(options: argparse.Namespace, seed: int) -> Iterator[str]:
    """The options with which this very run can be repeated."""
    given = {**vars(options), "seed": seed}
    del given["share"]  # all shares together are the run without shares
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                yield f"--{name} {one}"


if __name__ == "__main__":
    sys.exit(main())
