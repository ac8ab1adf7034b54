"""SentToValidators near a switch of sessions is as quick as far from one, in virtual time.

`python -m tests.worlds.remp.switch_pace SEED` plays 1,000 messages.
"""

from __future__ import annotations

from stagepost.full_node.staged_sending import PAUSE_MAX_S
from tests.worlds.remp.switch_pace import run_pace, share

MESSAGES, VALIDATORS = 60, 9


def test_a_switch_delays_no_message_and_sent_to_validators_comes_first(run_seed: int) -> None:
    print(f"seed {run_seed}")
    pace = run_pace(run_seed, MESSAGES, VALIDATORS)
    print(pace.text)
    assert pace.switches >= 4
    assert pace.out_of_order == 0
    assert pace.unfinished == 0
    assert pace.near
    # Of so few messages the slowest decides: one or two pauses of staged sending are allowed, a round is not.
    assert share(pace.near, 0.99) <= 2.0 * max(share(pace.far, 0.99), PAUSE_MAX_S)
