"""The TL schema holds the objects of the vector file, line for line, with the ids stated there."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def normalised(schema: str) -> dict[str, str]:
    """Constructor name → its line as it is hashed: no comments, brackets or semicolons, single spaces."""
    statements = re.sub(r"//.*|---\w+---", "", schema).split(";")
    lines = (" ".join(re.sub(r"[()]", " ", statement).split()) for statement in statements)
    return {line.split()[0]: re.sub(r": ", ":", line) for line in lines if line}


def test_tl_schema_gives_every_published_constructor_id() -> None:
    items = json.loads((ROOT / "tests/vectors/remp/tl_constructor_ids.json").read_text())["items"]

    lines = normalised((ROOT / "specs/remp.tl").read_text())

    assert lines == {item["name"]: item["line"] for item in items}
    assert {name: f"{zlib.crc32(line.encode()):08x}" for name, line in lines.items()} == {
        item["name"]: item["id"] for item in items
    }


def test_cddl_defines_every_rule_it_uses_and_uses_every_rule_it_defines() -> None:
    text = re.sub(r";.*", "", (ROOT / "specs/dmq.cddl").read_text())
    prelude = {"any", "bool", "bstr", "tstr", "uint", "size"}
    # Named for readers: the version numbers stand in tables whose keys may be any number.
    for_readers = {"dmq-wire", "node-to-node-version", "node-to-client-version"}

    defined = re.findall(r"^([a-z][a-z0-9-]*)\s*=", text, re.MULTILINE)
    bodies = re.sub(r"^[a-z][a-z0-9-]*\s*=|[a-z][a-z-]*:", "", text, flags=re.MULTILINE)
    used = set(re.findall(r"[a-z][a-z0-9-]*", bodies))

    assert len(defined) == len(set(defined))
    assert used - prelude == set(defined) - for_readers
