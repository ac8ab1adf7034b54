"""The recipient of one system in a process of its own: `python -m bench.delivery.recipients KIND ADDRESS READY …`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path


def main() -> None:
    kind, address, ready, *rest = sys.argv[1:]
    match kind:
        case "nats":
            from bench.delivery.nats_systems import answer_requests

            asyncio.run(answer_requests(int(address), Path(ready)))
        case "redis":
            from bench.delivery.redis_systems import answer_stream

            asyncio.run(answer_stream(int(address), Path(ready)))
        case "mqtt":
            from bench.delivery.mqtt_systems import answer_messages

            asyncio.run(answer_messages(int(address), Path(ready)))
        case "hub":
            from bench.delivery.own_systems import receive_over_hub

            asyncio.run(receive_over_hub(Path(address), Path(ready), rest[0]))
        case "node":
            from bench.delivery.signed_systems import receive_over_node

            asyncio.run(receive_over_node(Path(address), Path(ready), Path(rest[0])))
        case _:
            raise SystemExit(f"no recipient is called {kind}")


if __name__ == "__main__":
    main()
