"""A worker process for tests: take slots, print "holding N", hold them until stdin ends.

python -m tests.contracts.adapters.connection_worker URL PREFIX LIMIT COUNT LEASE_SECONDS HEARTBEAT_SECONDS
"""

import asyncio
import sys

from redis.asyncio import Redis

from responses_app.limits.rates import ConnectionLimit
from responses_app.limits.redis import RedisLedger


async def main(url: str, prefix: str, limit: str, count: str, lease: str, heartbeat: str) -> None:
    """Hold `count` slots of `limit`."""
    ledger = RedisLedger(
        lambda: Redis.from_url(url, socket_timeout=None),
        prefix=prefix,
        lease_seconds=float(lease),
        heartbeat_seconds=float(heartbeat),
    )
    await ledger.start()
    connections = ConnectionLimit(ledger, int(limit))
    try:
        for _ in range(int(count)):
            await connections.acquire()
        print(f"holding {connections.open_connections}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await ledger.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
