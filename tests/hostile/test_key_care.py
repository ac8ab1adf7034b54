"""Secrets: who may read their files, and that nobody is ever told; the whole matrix and every command are in `make soak`."""

from __future__ import annotations

from base64 import b64encode

import pytest

from tests.hostile.canaries import Search, searching
from tests.hostile.key_evolution import evolving
from tests.hostile.key_permissions import permissions

SAMPLE_OF_MODES = (0o600, 0o400, 0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o677)
SECRET = bytes(range(100, 132))


def test_secret_files_that_others_can_reach_are_refused_by_every_command() -> None:
    figure, faults = permissions(SAMPLE_OF_MODES)

    assert not faults, f"{faults}\n{figure}"


def test_a_kill_at_any_step_of_an_evolution_leaves_one_usable_key() -> None:
    figure, faults = evolving((1,))

    assert not faults, f"{faults}\n{figure}"


@pytest.mark.slow
@pytest.mark.xdist_group("storms")
def test_no_secret_is_told_by_node_commands_errors_or_process_lists() -> None:
    figure, faults = searching(is_thorough=False)

    assert not faults, f"{faults}\n{figure}"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(SECRET, id="raw"),
        pytest.param(f"key={SECRET.hex().upper()}", id="hex"),
        pytest.param(f"5820{SECRET.hex()}ff", id="inside of CBOR in hex"),
        pytest.param(repr(SECRET), id="as Python shows it"),
        *(
            pytest.param(b64encode(bytes(offset) + SECRET + b"tail"), id=f"base64 from {offset}")
            for offset in range(3)
        ),
    ],
)
def test_a_secret_is_found_in_every_spelling(said: bytes | str) -> None:
    search = Search(secrets={SECRET})
    search.look("a log", "nothing here")
    assert not search.hits

    search.look("a log", said)

    assert search.hits == ["a secret is in a log"]
