"""Every misbehaviour against one real node: it answers each as the rules say, and goes on serving everybody else."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

from stagepost.dmq import conform
from stagepost.dmq.conform.cases import BY_NAME, CASES
from stagepost.dmq.conform.playbook import MustClose, MustGoOn, MustRefuse, MustReject
from stagepost.dmq.conform.runner import CaseResult, CaseState
from tests.hostile.planted import planted
from tests.hostile.trial import Cast, Trial
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.dmq.node_processes import ending

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]

# Those of the table of bad input that a connection can cause on a node without special settings.
CODES = {
    *("MUX_UNKNOWN_PROTOCOL", "MUX_TOO_LARGE", "MUX_TIMEOUT", "MUX_INGRESS_OVERFLOW"),
    *("HANDSHAKE_WRONG_NETWORK", "HANDSHAKE_NO_VERSION"),
    *("CBOR_TRUNCATED", "CBOR_LIMIT", "CBOR_INVALID"),
    *("PROTOCOL_STATE", "PROTOCOL_REQUEST", "PROTOCOL_WINDOW", "PROTOCOL_SIZE", "PROTOCOL_TIMEOUT"),
    *("MSG_BODY_SIZE", "MSG_BAD_ID", "MSG_EXPIRED", "MSG_EXPIRY_TOO_FAR", "MSG_DUPLICATE"),
    *(
        "POOL_UNKNOWN",
        "POOL_NOT_ELIGIBLE",
        "OPCERT_SIGNATURE",
        "OPCERT_COUNTER",
        "KES_PERIOD",
        "KES_SIGNATURE",
    ),
}
# The witness needs the line of each case; the node writes a hundred lines of one event, and then one a second.
EVERY_LINE = """
    from stagepost.ground.telemetry import logs
    logs.LINES_AT_ONCE = 1_000_000
"""


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, CaseResult]:
    """All rows that were asked for, played in one go: those that wait for a time limit wait together."""
    asked = {item.callspec.params["name"] for item in request.session.items if _plays(item)}  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("hostile")
    cast = Cast()
    stakes = write_stakes(folder / "pools.json", cast.everybody)
    victim = Victim(folder / "node", stakes, environment=planted(folder / "log", EVERY_LINE))
    with ending([victim]):
        victim.start()
        found = asyncio.run(Trial(victim, cast).run([row for row in CASES if row.name in asked]))
        assert victim.terminate() == 0
        assert not victim.faults_of_its_own()
    return found


def _plays(item: pytest.Item) -> bool:
    return getattr(item, "originalname", "") == "test_node_answers_as_the_rules_say"


@pytest.mark.parametrize("name", BY_NAME)
def test_node_answers_as_the_rules_say(name: str, verdicts: dict[str, CaseResult]) -> None:
    result = verdicts[name]
    assert result.state is CaseState.HOLDS, "\n".join([*result.faults, result.unserved, result.not_looked])


def test_every_code_that_a_connection_can_cause_is_caused() -> None:
    caused = {
        row.must.code for row in CASES if isinstance(row.must, MustClose | MustRefuse | MustReject | MustGoOn)
    }

    assert caused - {""} == CODES


def test_kit_shares_no_code_with_the_node() -> None:
    for path in Path(conform.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "stagepost":
                assert (node.module or "").startswith(("stagepost.dmq.conform", "stagepost.errors")), path
            if isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] != "stagepost" for alias in node.names), path
