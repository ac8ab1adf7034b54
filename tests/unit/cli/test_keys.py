"""`stagepost keys` as people use it: what it prints, what it refuses, and what it never tells."""

from __future__ import annotations

import json
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stagepost.cli.keys import keys
from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.dmq.keys import key_files
from stagepost.dmq.keys.pool_keys import FILE_NAMES
from stagepost.errors import ErrorCode, KeyFileError, SigningError, StorageError
from stagepost.ground.crypto import kes
from stagepost.ground.crypto.hashing import parse_pool_id
from stagepost.ground.files.audit import AUDIT_FILE, user_name


@pytest.fixture(autouse=True)
def _core_dump_limit_is_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(keys, [str(argument) for argument in arguments])


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    folder = tmp_path / "my-pool"
    assert run("new", folder, "--start-kes-period", 120, "--issue-number", 4).exit_code == 0
    return folder


def test_new_writes_the_five_files_with_secrets_closed(pool: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in pool.iterdir()}

    assert modes.keys() == set(FILE_NAMES)
    assert modes["cold.skey"] == modes["kes.skey"] == 0o600
    assert stat.S_IMODE(pool.stat().st_mode) == 0o700


def test_new_prints_pool_id_and_periods(tmp_path: Path) -> None:
    result = run("new", tmp_path / "a" / "b", "--start-kes-period", 120, "--json")

    (summary,) = objects(result)
    assert summary["files"] == list(FILE_NAMES)
    assert parse_pool_id(summary["pool_id"]).hex() == summary["pool_id_hex"]
    assert (summary["first_kes_period"], summary["last_kes_period"]) == (120, 183)
    assert summary["issue_number"] == 0
    assert summary["certificate_valid"] is True


def test_new_makes_other_keys_each_time(tmp_path: Path) -> None:
    ids = {objects(run("new", tmp_path / name, "--json"))[0]["pool_id"] for name in "ab"}

    assert len(ids) == 2


def test_new_overwrites_nothing(pool: Path) -> None:
    before = {path.name: path.read_bytes() for path in pool.iterdir()}
    result = run("new", pool)

    assert isinstance(result.exception, KeyFileError)
    assert "cold.skey" in result.exception.text
    assert {path.name: path.read_bytes() for path in pool.iterdir()} == before


def test_new_writes_nothing_if_a_single_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "opcert.cert").write_text("mine")
    result = run("new", tmp_path)

    assert isinstance(result.exception, KeyFileError)
    assert [path.name for path in tmp_path.iterdir()] == ["opcert.cert"]


def test_new_below_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert isinstance(run("new", tmp_path / "file").exception, StorageError)
    assert isinstance(run("new", tmp_path / "file" / "below").exception, StorageError)


def test_show_tells_all_about_a_folder_in_json(pool: Path) -> None:
    result = run("show", pool, "--json")

    shown = {Path(facts["file"]).name: facts for facts in objects(result)}
    assert result.exit_code == 0
    assert list(shown) == list(FILE_NAMES)
    assert len({shown[name]["pool_id"] for name in ("cold.skey", "cold.vkey", "opcert.cert")}) == 1
    assert shown["kes.skey"]["verification_key"] == shown["opcert.cert"]["kes_verification_key"]
    assert (shown["kes.skey"]["period"], shown["kes.skey"]["periods_left"]) == (0, 63)
    certificate = shown["opcert.cert"]
    assert (certificate["issue_number"], certificate["first_kes_period"]) == (4, 120)
    assert certificate["certificate_valid"] is True
    assert certificate["matches_cold_key"] is True
    assert certificate["matches_kes_key"] is True


def test_show_tells_the_same_in_words(pool: Path) -> None:
    result = run("show", pool / "kes.skey")

    assert "type                   KesSigningKey_ed25519_kes_2^6\n" in result.stdout
    assert "periods left           63\n" in result.stdout


def test_show_of_a_lone_certificate_has_nothing_to_compare_it_with(pool: Path) -> None:
    (facts,) = objects(run("show", pool / "opcert.cert", "--json"))

    assert facts["certificate_valid"] is True
    assert facts["matches_cold_key"] is None
    assert facts["matches_kes_key"] is None


def test_show_exits_with_1_if_the_certificate_is_forged(pool: Path) -> None:
    path = pool / "opcert.cert"
    envelope = json.loads(path.read_text())
    # The issue number, a single byte after the 32 of the KES key.
    assert envelope["cborHex"][72:74] == "04"
    envelope["cborHex"] = envelope["cborHex"][:72] + "05" + envelope["cborHex"][74:]
    path.write_text(json.dumps(envelope))
    result = run("show", path)

    assert result.exit_code == 1
    assert "certificate valid      no\n" in result.stdout


def test_show_exits_with_1_if_the_certificate_is_for_another_key(pool: Path) -> None:
    (pool / "kes.skey").unlink()
    key_files.save(pool / "kes.skey", kes.SigningKey.generate(bytes(32)))
    result = run("show", pool)

    assert result.exit_code == 1
    assert "matches kes key        no\n" in result.stdout


def test_show_exits_with_1_if_an_operators_key_file_was_evolved(pool: Path, tmp_path: Path) -> None:
    """As earlier versions of this program left it: cardano-node would sign wrongly with this file."""
    assert objects(run("show", pool / "kes.skey", "--json"))[0]["usable_by_cardano_node"] is True
    key = key_files.load_as(kes.SigningKey, pool / "kes.skey")
    key.evolve()
    envelope = json.loads((pool / "kes.skey").read_text())
    envelope["cborHex"] = "590260" + key.to_bytes().hex()
    (pool / "kes.skey").write_text(json.dumps(envelope))
    result = run("show", pool)

    assert result.exit_code == 1
    assert "usable by cardano node no\n" in result.stdout


def test_evolve_writes_a_new_file_and_leaves_the_old_one(pool: Path, tmp_path: Path) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_ino) for path in pool.iterdir()}
    (first,) = objects(run("evolve", pool / "kes.skey", "--out", tmp_path / "evolved" / "1", "--json"))
    arguments = ("--to", 40, "--out", tmp_path / "evolved" / "40", "--json")
    (second,) = objects(run("evolve", pool / "kes.skey", *arguments))

    assert (first["period"], first["periods_left"]) == (1, 62)
    assert (second["period"], second["periods_left"]) == (40, 23)
    assert second["file"] == str(tmp_path / "evolved" / "40")
    assert second["type"] == "StagepostEvolvedKesSigningKey_ed25519_kes_2^6"
    assert objects(run("show", tmp_path / "evolved" / "40", "--json")) == [second]
    assert {path.name: (path.read_bytes(), path.stat().st_ino) for path in pool.iterdir()} == before


def test_evolve_needs_a_name_and_refuses_one_that_is_taken_or_beside_the_key(
    pool: Path, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("mine")

    assert run("evolve", pool / "kes.skey").exit_code == 2
    for out in (tmp_path / "taken", pool / "kes.skey", pool / "evolved"):
        assert isinstance(run("evolve", pool / "kes.skey", "--out", out).exception, KeyFileError)
    assert (tmp_path / "taken").read_text() == "mine"
    assert {path.name for path in pool.iterdir()} == set(FILE_NAMES)


def test_evolve_refuses_to_go_back_or_past_the_end(pool: Path, tmp_path: Path) -> None:
    evolved, other = tmp_path / "evolved" / "40", tmp_path / "evolved" / "other"
    run("evolve", pool / "kes.skey", "--to", 40, "--out", evolved)

    assert isinstance(run("evolve", evolved, "--to", 39, "--out", other).exception, SigningError)
    assert isinstance(run("evolve", evolved, "--to", 64, "--out", other).exception, kes.KesExhausted)
    assert run("evolve", evolved, "--to", -1, "--out", other).exit_code == 2
    assert not other.exists()


def test_evolve_of_another_kind_of_file_says_so(pool: Path, tmp_path: Path) -> None:
    error = run("evolve", pool / "cold.skey", "--out", tmp_path / "evolved").exception

    assert isinstance(error, KeyFileError)
    assert "holds a cold signing key" in error.text


def test_open_permissions_are_refused_with_the_command_that_helps(pool: Path, tmp_path: Path) -> None:
    (pool / "kes.skey").chmod(0o644)

    for arguments in (("show",), ("evolve", "--out", tmp_path / "evolved")):
        error = run(*arguments, pool / "kes.skey").exception
        assert isinstance(error, KeyFileError)
        assert error.code is ErrorCode.KEY_PERMISSIONS
        assert error.advice == f"chmod 600 {pool / 'kes.skey'}"


def test_missing_files_and_empty_folders_are_storage_errors(tmp_path: Path) -> None:
    for arguments in (
        ("show", tmp_path / "none"),
        ("evolve", tmp_path / "none", "--out", tmp_path / "out"),
        ("show", tmp_path),
    ):
        assert isinstance(run(*arguments).exception, StorageError)


def test_no_secret_is_ever_printed(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    results = [run("new", folder), run("show", folder), run("show", folder, "--json")]
    kes_key = key_files.load_as(kes.SigningKey, folder / "kes.skey").to_bytes()
    evolve = ("evolve", folder / "kes.skey", "--out", tmp_path / "evolved" / "1")
    results += [run(*evolve), run(*evolve, "--to", 0), run("show", tmp_path / "evolved" / "1")]
    cold = key_files.load_as(ColdSigningKey, folder / "cold.skey").seed
    secrets = [cold.hex(), *(kes_key[at : at + 32].hex() for at in (0, *range(32, 608, 96)))]

    for result in results:
        assert not any(secret in f"{result.output} {result.exception!r}" for secret in secrets)


def test_core_dumps_are_off_while_secrets_are_in_memory(pool: Path, tmp_path: Path) -> None:
    run("evolve", pool / "kes.skey", "--out", tmp_path / "evolved" / "1")

    assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0


@pytest.mark.parametrize("command", [(), ("new",), ("show",), ("evolve",)])
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")

    assert result.exit_code == 0
    assert "Example:\n    stagepost keys" in result.stdout


def states(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode)
        for path in folder.iterdir()
    }


def test_renew_keeps_the_cold_key_and_takes_the_next_number(pool: Path, tmp_path: Path) -> None:
    before = states(pool)
    result = run("renew", pool, "--out", tmp_path / "renewed", "--start-kes-period", 160, "--json")
    (summary,) = objects(result)
    assert (summary["issue_number"], summary["first_kes_period"], summary["last_kes_period"]) == (5, 160, 223)
    assert {name: state for name, state in states(pool).items() if name != AUDIT_FILE} == before
    new = tmp_path / "renewed"
    assert {path.name for path in new.iterdir()} == {"kes.skey", "kes.vkey", "opcert.cert"}
    assert stat.S_IMODE((new / "kes.skey").stat().st_mode) == 0o600
    old_shown, new_shown = (
        objects(run("show", folder / "opcert.cert", "--json"))[0] for folder in (pool, new)
    )
    assert old_shown["pool_id"] == new_shown["pool_id"]
    assert old_shown["kes_verification_key"] != new_shown["kes_verification_key"]
    assert run("show", new).exit_code == 0
    # Renewed again, from the new certificate, with the cold key elsewhere.
    args = (
        "--out",
        tmp_path / "third",
        "--start-kes-period",
        161,
        "--cold-key",
        pool / "cold.skey",
        "--json",
    )
    assert objects(run("renew", new, *args))[0]["issue_number"] == 6


def test_renew_writes_an_audit_line_before_it_begins_and_nothing_without_one(
    pool: Path, tmp_path: Path
) -> None:
    arguments = ("renew", pool, "--out", tmp_path / "renewed", "--start-kes-period", 160)
    (pool / AUDIT_FILE).mkdir()
    refused = run(*arguments)
    assert isinstance(refused.exception, StorageError)
    assert "so the action was not begun" in refused.exception.text
    assert not (tmp_path / "renewed").exists()
    (pool / AUDIT_FILE).rmdir()

    assert run(*arguments).exit_code == 0
    (line,) = (json.loads(one) for one in (pool / AUDIT_FILE).read_text().splitlines())
    assert line["what"] == f"keys renew to {tmp_path / 'renewed'}: certificate 5 from KES period 160"
    assert (line["who"], line["through"]) == (user_name(), "cli")


def test_renew_overwrites_nothing_and_refuses_what_does_not_fit(pool: Path, tmp_path: Path) -> None:
    before = states(pool)
    refused: list[tuple[object, ...]] = [
        ("renew", pool, "--out", pool, "--start-kes-period", 160),
        ("renew", pool, "--out", tmp_path / "new", "--start-kes-period", 119),
        ("renew", tmp_path, "--out", tmp_path / "new", "--start-kes-period", 160),
    ]
    other = tmp_path / "other"
    assert run("new", other).exit_code == 0
    cold = ("--cold-key", other / "cold.skey")
    refused.append(("renew", pool, "--out", tmp_path / "new", "--start-kes-period", 160, *cold))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "kes.skey").write_text("mine")
    refused.append(("renew", pool, "--out", tmp_path / "taken", "--start-kes-period", 160))
    for arguments in refused:
        assert isinstance(run(*arguments).exception, KeyFileError | StorageError), arguments
    assert states(pool) == before
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "taken" / "kes.skey").read_text() == "mine"
    (pool / "cold.skey").chmod(0o644)
    result = run("renew", pool, "--out", tmp_path / "new", "--start-kes-period", 160)
    assert isinstance(result.exception, KeyFileError)
    assert result.exception.code is ErrorCode.KEY_PERMISSIONS
