"""A worker process for tests: admits requests of the key `a`, and says how many were.

python -m tests.contracts.adapters.rates_worker URL PREFIX REQUESTS SLOTS TRIES

It prints "ready", waits for a line, tries TRIES times, prints "admitted N", and holds what it has until stdin ends.
"""

import asyncio
import sys

from redis.asyncio import Redis

from responses_app.limits.rates import Rates
from responses_app.limits.redis import RedisLedger
from responses_app.protocol.rate_limits import Amount, LimitedSubject, Limits, RateLimited, Slot

LEASE_SECONDS, HEARTBEAT_SECONDS = 5.0, 0.5


async def main(url: str, prefix: str, requests: str, slots: str, tries: str) -> None:
    """Take what there is."""
    ledger = RedisLedger(
        lambda: Redis.from_url(url, socket_timeout=None),
        prefix=prefix,
        lease_seconds=LEASE_SECONDS,
        heartbeat_seconds=HEARTBEAT_SECONDS,
    )
    await ledger.start()
    rates = Rates(ledger)
    who = [LimitedSubject("key:a", Limits(requests_per_minute=int(requests), concurrent_responses=int(slots)))]

    async def ask() -> bool:
        try:
            await rates.admit(who, Amount(1, 0, 1), Slot.RESPONSE)
        except RateLimited:
            return False
        return True

    try:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        admitted = sum(await asyncio.gather(*(ask() for _ in range(int(tries)))))
        print(f"admitted {admitted}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await ledger.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
