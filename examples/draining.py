"""The demo's first act, one release that drains: real traffic on `app.py`, a begin
in the middle, the proof.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import websockets

from drainmw.client import ControlClient
from drainmw.console import revision
from drainmw.tokens import generate
from examples.stage import Release, Timeline, local_client, serving

TITLE = "One release drains under real traffic, and proves it."
BEGIN_AFTER = 1.5  # seconds of ordinary traffic
VISITORS = 4
FAILURES = (httpx.HTTPError, OSError, websockets.WebSocketException)


async def visitor(release: Release, timeline: Timeline, stop: asyncio.Event) -> None:
    """One small request after another, on one connection."""
    async with local_client(release.url) as client:
        while not stop.is_set():
            try:
                answer = await client.get("/")
            except FAILURES as exc:
                timeline.tally["broken"] += 1
                timeline.say("visitor", f"broken: {exc!r}")
                return
            if answer.status_code == 200:
                timeline.tally["admitted"] += 1
            else:
                timeline.tally["refused"] += 1
                if timeline.tally["refused"] == 1:
                    headers = answer.headers
                    timeline.say(
                        "visitor",
                        f"refused: {answer.status_code}, "
                        f"retry-after {headers['retry-after']}, "
                        f"drainmw-refused {headers['drainmw-refused']}, "
                        f"connection {headers['connection']}",
                    )
            await asyncio.sleep(0.02)


async def customer(release: Release, timeline: Timeline) -> None:
    """A slow request that is in flight when the drain begins."""
    async with local_client(release.url) as client:
        answer = await client.get("/invoice", params={"seconds": BEGIN_AFTER + 1})
        timeline.tally["finished"] += answer.status_code == 200
        timeline.say(
            "customer",
            f"slow request finished: {answer.status_code} {answer.text!r}, "
            f"connection {answer.headers.get('connection', 'kept')}",
        )


async def listener(release: Release, timeline: Timeline) -> None:
    """An event stream."""
    count = 0
    async with (
        local_client(release.url) as client,
        client.stream("GET", "/ticks") as answer,
    ):
        async for line in answer.aiter_lines():
            count += line == "data: tick"
    timeline.tally["finished"] += 1
    timeline.say("listener", f"event stream ended complete, after {count} ticks")


async def chatter(release: Release, timeline: Timeline) -> None:
    """A WebSocket."""
    url = release.url.replace("http://", "ws://")
    async with websockets.connect(f"{url}/chat", proxy=None) as socket:
        await socket.send("hello")
        with contextlib.suppress(websockets.ConnectionClosed):
            async for text in socket:
                if text == "goodbye":
                    timeline.say("chatter", "websocket told: goodbye")
        timeline.tally["finished"] += socket.close_code == 1012
        timeline.say("chatter", f"websocket closed with {socket.close_code}")


async def shopper(release: Release, timeline: Timeline) -> None:
    """Work that goes on after its answer."""
    await asyncio.sleep(BEGIN_AFTER - 0.5)
    async with local_client(release.url) as client:
        await client.post("/orders")
        timeline.say("shopper", "ordered: answered at once, confirmed in 1.5 s")
        await client.post("/shipments")
        timeline.say("shopper", "shipment started: a job of 3 s")


async def operator(release: Release, timeline: Timeline) -> bool:
    """Begin, watch, and read the proof."""
    await asyncio.sleep(BEGIN_AFTER)
    nonce = generate()
    with ControlClient(control=release.control) as control:
        own = control.report()["revision"] or ""
        control.begin(nonce, own, "c" * 40, 15_000)
        timeline.say("operator", f"begin: {revision(own)[:7]} drains for ccccccc")
        shown = ""
        while True:
            status = await asyncio.to_thread(control.status, nonce)
            counters = "  ".join(f"{k} {v}" for k, v in status["inFlight"].items())
            line = f"{status['status']}:  {counters}"
            if line != shown:
                timeline.say("operator", line)
                shown = line
            if status["status"] != "draining":
                return status["status"] == "drained"
            await asyncio.sleep(0.05)


async def play(directory: Path) -> bool:
    """Whether everything went as promised."""
    timeline = Timeline()
    async with serving("examples.app:app", "b" * 40, directory / "app.sock") as release:
        timeline.say("release", f"serving on {release.url}")
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(VISITORS):
                group.create_task(visitor(release, timeline, stop))
            for client in (customer, listener, chatter, shopper):
                group.create_task(client(release, timeline))
            drained = await operator(release, timeline)
            stop.set()
        code = await release.stop()
        timeline.say("release", f"stopped by SIGTERM, exit code {code}")
    tally = timeline.tally
    print(
        f"\n{tally['admitted']} small requests admitted, {tally['refused']} refused, "
        f"{tally['broken']} broken; {tally['finished']} of 3 long ones finished; "
        f"{'drained' if drained else 'NOT drained'}."
    )
    as_promised = drained and code == 0 and not tally["broken"]
    return as_promised and tally["finished"] == 3
