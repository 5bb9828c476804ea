"""Watch a release drain, and then a chat move to the next release.

    python -m examples.demo [draining | moving]

Everything runs on free ports of this host and is stopped again, also by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from examples import draining, moving

ACTS = {"draining": draining, "moving": moving}
INTERRUPTED = 130  # as shells have it: 128 and SIGINT


async def main(names: list[str]) -> int:
    """Play these acts; 0 if everything went as promised."""
    if unknown := sorted(set(names) - ACTS.keys()):
        raise SystemExit(f"no act {', '.join(unknown)}; there are {', '.join(ACTS)}")
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "this is one"
    for number in (signal.SIGTERM, signal.SIGHUP):  # asyncio itself minds SIGINT
        loop.add_signal_handler(number, task.cancel)
    went_well = True
    for name in names:
        act = ACTS[name]
        print(f"{act.TITLE}\n")
        with tempfile.TemporaryDirectory(prefix="drainmw-") as directory:
            went_well &= await act.play(Path(directory))
        print()
    return 0 if went_well else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(sys.argv[1:] or list(ACTS))))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(INTERRUPTED)
