"""SentToValidators near a switch of sessions is as quick as far from one, in virtual time; and the run can tell when not.

`tests/soak` plays 1,000 messages. A planted defect makes each promise fail.
"""

from __future__ import annotations

from tests.worlds.remp.switch_pace import run_pace

MESSAGES, VALIDATORS = 60, 9


def test_a_switch_delays_no_message_and_sent_to_validators_comes_first(run_seed: int) -> None:
    print(f"seed {run_seed}")
    pace = run_pace(run_seed, MESSAGES, VALIDATORS)
    print(pace.text)
    assert pace.switches >= 4
    assert pace.out_of_order == 0
    assert pace.unfinished == 0
    assert pace.near
    assert pace.ratio <= 2.0
