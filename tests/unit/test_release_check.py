"""Release check: the pages, lists and answers that it reads; nothing here needs a network."""

from __future__ import annotations

import json

from tools.release_check import (
    ROOT,
    SETS,
    direct_dependencies,
    pins,
    read_audit,
    review_faults,
    sbom_faults,
)

WANTED = {"click": "8.1", "pynacl": "1.5"}


def a_document(**versions: str) -> dict[str, object]:
    hashes = {"externalReferences": [{"hashes": [{"alg": "SHA-256", "content": "00"}]}]}
    components = [{"name": name, "version": version, **hashes} for name, version in versions.items()]
    return {"bomFormat": "CycloneDX", "components": components}


def test_every_direct_dependency_is_reviewed_and_no_other() -> None:
    wanted = direct_dependencies((ROOT / "pyproject.toml").read_text())
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert {"pynacl", "pyspark", "uvicorn"} <= wanted
    assert review_faults(page, wanted) == []
    assert review_faults(page, wanted | {"other"}) == ["docs/dependencies.md has no row for other"]
    assert len(review_faults(page, wanted - {"click"})) == 1


def test_a_list_of_components_has_every_pin_with_a_hash_and_nothing_else() -> None:
    assert sbom_faults(a_document(click="8.1", pynacl="1.5"), WANTED) == []
    assert sbom_faults(a_document(click="8.0", pynacl="1.5"), WANTED) == ["click 8.1 is missing"]
    assert sbom_faults(a_document(click="8.1", pynacl="1.5", other="1"), WANTED) == ["other is not pinned"]
    bare = {"bomFormat": "CycloneDX", "components": [{"name": "click", "version": "8.1"}]}
    assert sbom_faults(bare, {"click": "8.1"}) == ["click has no hash"]
    assert sbom_faults({}, WANTED) == ["it is not a CycloneDX document"]


def test_what_the_audit_does_not_answer_is_unknown_and_never_fine() -> None:
    told = [
        {"name": "click", "version": "8.1", "vulns": [{"id": "PYSEC-1"}]},
        {"name": "pynacl", "skip_reason": "not found"},
    ]
    audit = read_audit(json.dumps({"dependencies": told}), {**WANTED, "third": "1"})
    assert (audit.audited, audit.vulnerable) == (1, ["click 8.1: PYSEC-1"])
    assert audit.unknown == {"pynacl": "not found", "third": "not answered"}
    for nonsense in ("", "{}", "[]", "no JSON"):
        assert set(read_audit(nonsense, WANTED).unknown) == set(WANTED)


def test_pins_of_all_checked_files_are_read() -> None:
    for name in SETS:
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        starts = [line for line in text.splitlines() if line[:1].isalnum()]
        assert len(pins(text)) == len({line.partition("==")[0] for line in starts}) > 3
