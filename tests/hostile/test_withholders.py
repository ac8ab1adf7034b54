"""Peers that announce a message and do not supply it, at a real node; `make soak` has 320 of them, and measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.planted import planted
from tests.hostile.withholders import MISDEEDS, withholding

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]

WITHHOLDERS = 96
BEGINS_ANEW_WITH_EACH_COPY = """
    from stagepost.dmq.downloads import Downloads
    arrived = Downloads.arrived
    def arrived_and_forgotten(downloads, claimant, message_id):
        arrived(downloads, claimant, message_id)
        downloads._table[message_id].began = None
    Downloads.arrived = arrived_and_forgotten
"""
ONE_BY_ONE = """
    from stagepost.dmq import downloads
    downloads.DOUBLE_S = 60.0
"""


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_peers_that_supply_nothing_do_not_hold_a_message_back(misdeed: str) -> None:
    figure, faults = withholding(WITHHOLDERS, misdeed)

    assert not faults, f"{faults}\n{figure}"


@pytest.mark.parametrize(
    ("misdeed", "code"),
    [
        pytest.param("bring forged copies", BEGINS_ANEW_WITH_EACH_COPY, id="begins anew with each copy"),
        pytest.param("say nothing", ONE_BY_ONE, id="one by one"),
    ],
)
def test_a_defect_planted_in_downloads_is_noticed(tmp_path: Path, misdeed: str, code: str) -> None:
    _, faults = withholding(WITHHOLDERS, misdeed, planted(tmp_path, code))

    assert [one for one in faults if "did not come" in one]
