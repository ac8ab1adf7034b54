"""The process of a validator that is to fail, in a devnet: `stagepost node validator`, behind links that are not honest.

python -m stagepost.devnet.devnet_member --fault lying --loss 0.02 --network … --key … --data …
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from stagepost.devnet.behaviours import Behaviour, Faulty
from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.dmq.keys import key_files
from stagepost.validator.process import run_validator

HONEST = "none"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="devnet_member", description=__doc__)
    for name in ("--network", "--key", "--data"):
        parser.add_argument(name, required=True, type=Path)
    parser.add_argument("--fault", default=HONEST, choices=[HONEST, *Behaviour])
    parser.add_argument("--loss", default=0.0, type=float)
    parser.add_argument("--shards", default=1, type=int)
    parser.add_argument("--message-timeout", required=True, type=float, metavar="SECONDS")
    options = parser.parse_args(arguments)
    seed = key_files.load_as(ColdSigningKey, options.key).seed
    behaviour = None if options.fault == HONEST else Behaviour(options.fault)
    return run_validator(
        options.network,
        options.key,
        options.data,
        shards=options.shards,
        message_timeout_s=options.message_timeout,
        log_level="WARNING",
        between=Faulty(seed, Random(seed), options.loss, behaviour),
    )


if __name__ == "__main__":
    sys.exit(main())
