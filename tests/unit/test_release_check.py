"""Release check: the pages, lists and answers that it reads; nothing here needs a network."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tools import advisories, release_check, wheel_trial
from tools.advisories import Advisories, Affected, Unreadable, is_affected, look_up, parse, read_advisories
from tools.release_check import (
    ADVISORIES_DAYS,
    ROOT,
    SETS,
    TOOL_SETS,
    direct_dependencies,
    folder_faults,
    pins,
    read_audit,
    review_faults,
    run_audit,
    sbom_faults,
)

WANTED = [("click", "8.1"), ("pynacl", "1.5")]
NOW = datetime(2026, 11, 19, tzinfo=UTC)


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
    assert sbom_faults(a_document(click="8.0", pynacl="1.5"), WANTED) == [
        "click 8.1 is missing",
        "click 8.0 is not pinned",
    ]
    assert sbom_faults(a_document(click="8.1", pynacl="1.5", other="1"), WANTED) == ["other 1 is not pinned"]
    bare = {"bomFormat": "CycloneDX", "components": [{"name": "click", "version": "8.1"}]}
    assert sbom_faults(bare, [("click", "8.1")]) == ["click has no hash"]
    assert sbom_faults({}, WANTED) == ["it is not a CycloneDX document"]


def test_what_the_audit_does_not_answer_is_unknown_and_never_fine() -> None:
    told = [
        {"name": "click", "version": "8.1", "vulns": [{"id": "PYSEC-1"}]},
        {"name": "pynacl", "skip_reason": "not found"},
    ]
    audit = read_audit(json.dumps({"dependencies": told}), [*WANTED, ("third", "1")])
    assert (audit.audited, audit.vulnerable) == (1, ["click 8.1: PYSEC-1"])
    assert audit.unknown == {"pynacl 1.5": "not found", "third 1": "not answered"}
    for nonsense in ("", "{}", "[]", "no JSON", '{"dependencies": [1]}'):
        assert set(read_audit(nonsense, WANTED).unknown) == {"click 8.1", "pynacl 1.5"}


def test_pins_of_all_checked_files_are_read() -> None:
    for name in (*SETS, *TOOL_SETS):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        starts = {line.split(" ", maxsplit=1)[0] for line in text.splitlines() if line[:1].isalnum()}
        assert {f"{package}=={version}" for package, version in pins(text)} == starts
        assert starts
    compiled = {path.stem for path in (ROOT / "requirements").glob("*.txt")}
    assert compiled == {*SETS, *TOOL_SETS}


def test_both_versions_of_a_package_are_pins_and_are_asked_for(tmp_path: Path) -> None:
    text = "numpy==2.4 ; python_full_version < '3.12' \\\n    --hash=sha256:00\nnumpy==2.5 ; python_full_version >= '3.12'\n"
    assert pins(text) == [("numpy", "2.4"), ("numpy", "2.5")]
    tool = tmp_path / "pip-audit"
    tool.write_text(
        "#!/bin/sh\nfor last; do :; done\ngrep -q ';' $last && exit 3\nversion=$(sed 's/.*==//' $last)\n"
        """printf '{"dependencies": [{"name": "numpy", "version": "%s", "vulns": [{"id": "PYSEC-%s"}]}]}' $version $version\n"""
    )
    tool.chmod(0o755)
    audit = run_audit(tool, pins(text))
    assert sorted(audit.vulnerable) == ["numpy 2.4: PYSEC-2.4", "numpy 2.5: PYSEC-2.5"]
    assert (audit.audited, audit.unknown) == (2, {})


# Advisories in a folder


def events(*pairs: tuple[str, str]) -> Affected:
    return Affected((), (pairs,))


REPAIRED = events(("introduced", "1.0"), ("fixed", "2.0"))
LAST = events(("introduced", "0"), ("last_affected", "2.0"))
TWICE = events(("introduced", "3.0"), ("fixed", "3.5"), ("introduced", "0"), ("fixed", "1.4"))


@pytest.mark.parametrize(
    ("affected", "inside", "outside"),
    [
        (
            REPAIRED,
            ("1.0", "1", "1.0.post1", "1.10", "1.9.9+local", "2.0rc1", "2.0.dev1"),
            ("1.0rc1", "0.9", "2.0"),
        ),
        (REPAIRED, ("v1.5",), ("2.0.0", "2.0+cpu", "2.0.post1", "1!1.5", "10")),
        (
            LAST,
            ("0", "0.dev0", "0.0a1", "2.0", "2.0.0", "2.0rc1"),
            ("2.0.post1", "2.0.1", "2.0+local", "1!0"),
        ),
        (TWICE, ("0.1", "1.3", "3.0", "3.4"), ("1.4", "2", "2.99", "3.5", "4")),
        (events(("introduced", "0")), ("0", "99", "1!1"), ()),
        (
            events(("introduced", "1"), ("fixed", "2"), ("introduced", "2"), ("last_affected", "2")),
            ("1", "2"),
            ("2.1",),
        ),
        (events(("introduced", "2"), ("last_affected", "2")), ("2",), ("1", "2.0.1")),
        (events(("introduced", "0"), ("limit", "3")), ("2.9",), ("3", "4")),
        (events(("introduced", "0"), ("limit", "*")), ("2.9", "99"), ()),
        (
            Affected(("1.0", "1.2.0", "not a version"), ()),
            ("1", "1.0.0", "1.2"),
            ("1.1", "1.2.1", "1.0.post1"),
        ),
        (Affected(("7",), (REPAIRED.ranges[0],)), ("7.0", "1.5"), ("6", "2.0")),
        (
            Affected((), (REPAIRED.ranges[0], (("introduced", "5"), ("fixed", "5.1")))),
            ("1.5", "5.0.9"),
            ("2.5", "5.1"),
        ),
    ],
)
def test_a_version_is_inside_of_lists_and_ranges_by_pep_440(
    affected: Affected, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    assert {one: is_affected(one, affected) for one in inside} == dict.fromkeys(inside, True)
    assert {one: is_affected(one, affected) for one in outside} == dict.fromkeys(outside, False)


@pytest.mark.parametrize(
    "affected",
    [Affected((), ()), events(("fixed", "2")), events(("introduced", "0"), ("fixed", "abcdef0"))],
    ids=["nothing", "no beginning", "no version"],
)
def test_an_advisory_that_does_not_say_which_versions_leaves_the_component_unknown(
    affected: Affected,
) -> None:
    with pytest.raises(Unreadable):
        is_affected("1", affected)
    found = Advisories(
        {"click": [advisories.Advisory("X-1", frozenset(["X-1"]), {"click": (affected,)}, False, None)]}
    )
    audit = look_up(found, [("click", "1"), ("pynacl", "1")])
    assert (audit.audited, list(audit.unknown)) == (1, ["click 1"])
    assert audit.unknown["click 1"].startswith("X-1: ")


def written(folder: Path, name: str, **values: object) -> dict[str, object]:
    """An advisory of click before 8.2, changed by `values`, as a file of the folder."""
    package = {"name": "Click", "ecosystem": "PyPI"}
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "8.2"}]}]
    document: dict[str, object] = {
        "id": name,
        "published": "2026-11-10T00:00:00Z",
        "affected": [{"package": package, "ranges": ranges}],
        **values,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document))
    return document


def test_a_fault_is_told_once_under_all_its_names_and_a_withdrawn_one_is_not(tmp_path: Path) -> None:
    written(tmp_path / "a", "PYSEC-1", aliases=["CVE-1"])
    written(tmp_path / "b", "GHSA-1", aliases=["CVE-1", "CVE-2"])
    written(tmp_path / "b", "GHSA-2", aliases=["CVE-3"])
    written(tmp_path / "b", "GHSA-3", aliases=["CVE-2"], withdrawn="2026-11-11T00:00:00Z")
    written(tmp_path / "b", "GHSA-4", withdrawn=None)
    written(tmp_path / ".git", "GHSA-5")
    found = read_advisories(tmp_path, NOW)
    assert (found.read, found.withdrawn, found.bad) == (5, 1, [])
    audit = look_up(found, WANTED)
    assert audit.vulnerable == [
        "click 8.1: GHSA-1 (CVE-1, CVE-2, PYSEC-1)",
        "click 8.1: GHSA-2 (CVE-3)",
        "click 8.1: GHSA-4",
    ]
    assert look_up(found, [("click", "8.2")]).vulnerable == []


def test_only_packages_of_the_ecosystem_count_and_names_are_compared_as_the_index_does(
    tmp_path: Path,
) -> None:
    package = {"name": "Ruamel_Yaml.Clib", "ecosystem": "PyPI"}
    versions = {
        "package": package,
        "versions": ["1.0"],
        "ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}],
    }
    npm = {"package": {"name": "click", "ecosystem": "npm"}, "versions": ["8.1"]}
    written(tmp_path, "PYSEC-1", affected=[versions, npm, {"versions": ["1"]}])
    written(tmp_path, "GHSA-1", affected=[npm])
    found = read_advisories(tmp_path, NOW)
    assert found.read == 1
    audit = look_up(found, [("ruamel-yaml-clib", "1"), ("ruamel-yaml-clib", "1.1"), ("click", "8.1")])
    assert (audit.audited, audit.vulnerable) == (3, ["ruamel-yaml-clib 1: PYSEC-1"])


def test_versions_of_yaml_files_stay_text(tmp_path: Path) -> None:
    (tmp_path / "PYSEC-1.yaml").write_text(
        "id: PYSEC-1\nwithdrawn: null\npublished: 2026-11-10T00:00:00.1234567Z\naffected:\n- package: {name: click, ecosystem: PyPI}\n"
        "  ranges:\n  - {type: ECOSYSTEM, events: [{introduced: 1.10}, {fixed: 1.20}]}\n  versions: [2.10]\n"
    )
    found = read_advisories(tmp_path, NOW)
    assert found.newest is not None
    audit = look_up(found, [("click", one) for one in ("1.1", "1.10", "1.19", "1.20", "2.1", "2.10")])
    assert audit.vulnerable == ["click 1.10: PYSEC-1", "click 1.19: PYSEC-1", "click 2.10: PYSEC-1"]


def test_a_bad_file_is_named_and_another_file_of_a_database_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, "PYSEC-1")
    written(tmp_path, "PYSEC-2", affected="click")
    written(tmp_path, "PYSEC-3", id=3)
    bad_event = {"package": {"name": "click", "ecosystem": "PyPI"}, "ranges": [{"events": [{"fixed": 8.2}]}]}
    written(tmp_path, "PYSEC-4", affected=[bad_event])
    for name, text in {
        "PYSEC-5.json": '{"id": ',
        "PYSEC-6.yaml": "id: [",
        "PYSEC-7.yaml": "",
        "PYSEC-8.json": "[" * 100_000,
        "settings.yaml": "false_positives: []",
        "notes.txt": "{",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "PYSEC-9.yaml").write_bytes(b"id: \xff\xfe")
    found = read_advisories(tmp_path, NOW)
    assert found.read == 1
    assert [one.partition(":")[0] for one in found.bad] == [
        *(f"PYSEC-{number}.json" for number in (2, 3, 4, 5)),
        *("PYSEC-6.yaml", "PYSEC-7.yaml", "PYSEC-8.json", "PYSEC-9.yaml"),
    ]
    assert len(folder_faults(found, tmp_path, ADVISORIES_DAYS, NOW)) == 8
    with pytest.raises(Unreadable, match="more than"):
        parse("PYSEC-1.json", None)
    with pytest.raises(Unreadable, match="is no folder"):
        read_advisories(tmp_path / "nowhere", NOW)


def test_an_old_or_empty_folder_is_no_database_of_today(tmp_path: Path) -> None:
    written(tmp_path, "PYSEC-1", published="2026-10-20T00:00:00Z")
    written(tmp_path, "PYSEC-2", published="2026-12-24T00:00:00Z")
    written(tmp_path, "PYSEC-3", published="no date")
    found = read_advisories(tmp_path, NOW)
    assert found.age_days(NOW) == ADVISORIES_DAYS
    assert folder_faults(found, tmp_path, ADVISORIES_DAYS, NOW) == []
    (told,) = folder_faults(found, tmp_path, ADVISORIES_DAYS, NOW + timedelta(days=1))
    assert "last 31 days" in told
    assert folder_faults(found, tmp_path, 31, NOW + timedelta(days=1)) == []
    assert len(folder_faults(Advisories(), tmp_path, 10**6, NOW)) == 1


def test_a_clone_is_read_with_a_work_tree_and_without(tmp_path: Path) -> None:
    written(tmp_path / "made" / "vulns", "PYSEC-1")
    (tmp_path / "made" / ".hidden").mkdir()
    (tmp_path / "made" / ".hidden" / "PYSEC-2.json").write_text("{")

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "made")
    git("-C", "made", "add", "--all")
    git("-C", "made", "commit", "-m", "advisories")
    git("clone", "--bare", "made", "bare")
    git("clone", "--no-checkout", "made", "empty")
    for clone in ("made", "bare", "empty"):
        found = read_advisories(tmp_path / clone, NOW)
        assert look_up(found, WANTED).vulnerable == ["click 8.1: PYSEC-1"]
        assert found.bad == []
    (tmp_path / "bare" / "HEAD").write_text("ref: refs/heads/nothing\n")
    with pytest.raises(Unreadable, match="git cannot read"):
        read_advisories(tmp_path / "bare", NOW)


def empty_list(tool: Path, requirements: Path, out: Path) -> str:
    out.write_text("{}")
    return ""


def no_network(tool: Path, wanted: object) -> advisories.Audit:
    return advisories.Audit(unknown={"click 8.1": "no network"})


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The whole check without its building and listing; the online database answers nothing."""
    monkeypatch.setattr(wheel_trial, "try_all", lambda given, out: wheel_trial.Trial())
    monkeypatch.setattr(release_check, "make_sbom", empty_list)
    monkeypatch.setattr(release_check, "sbom_faults", lambda document, wanted: [])
    monkeypatch.setattr(release_check, "run_audit", no_network)
    monkeypatch.setattr(release_check, "datetime", type("At", (), {"now": staticmethod(lambda zone: NOW)}))
    return tmp_path


def test_the_exit_code_tells_a_fault_from_what_could_not_be_looked_at(
    checked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*arguments: str) -> int:
        return release_check.main(["--out", str(checked / "out"), *arguments])

    assert ended() == 2
    assert ended("--offline") == 0
    folder = checked / "advisories"
    folder.mkdir()
    assert ended("--advisories", str(folder)) == 2
    written(
        folder, "PYSEC-1", affected=[{"package": {"name": "other", "ecosystem": "PyPI"}, "versions": ["1"]}]
    )
    capsys.readouterr()
    assert ended("--advisories", str(folder)) == 0
    assert "1 advisories of Python packages" in capsys.readouterr().out
    (folder / "PYSEC-2.json").write_text("{")
    assert ended("--advisories", str(folder)) == 2
    written(
        folder,
        "PYSEC-2",
        affected=[
            {
                "package": {"name": "click", "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
            }
        ],
    )
    assert ended("--advisories", str(folder)) == 1
    assert "fault: base: known fault in click " in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        ended("--advisories", str(checked / "nowhere"))
    assert caught.value.code == 2


def test_an_old_folder_is_taken_when_its_age_is_named(checked: Path) -> None:
    folder = checked / "advisories"
    written(
        folder,
        "PYSEC-1",
        published="2026-08-11T00:00:00Z",
        affected=[{"package": {"name": "other", "ecosystem": "PyPI"}, "versions": ["1"]}],
    )
    given = ["--out", str(checked / "out"), "--advisories", str(folder)]
    assert release_check.main(given) == 2
    assert release_check.main([*given, "--advisories-days", "99"]) == 2
    assert release_check.main([*given, "--advisories-days", "100"]) == 0
