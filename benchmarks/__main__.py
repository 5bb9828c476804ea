"""Every benchmark in its quick form, or one of them with its own options.

scripts/bench [NAME [OPTIONS]]: overhead, instructions, idle, memory, messages,
sockets, handoff, workers.
"""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "overhead",
    "instructions",
    "idle",
    "memory",
    "messages",
    "sockets",
    "handoff",
    "workers",
)


def main(arguments: list[str]) -> int:
    """Run them, each in a process of its own; 1 where a limit is not kept."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if arguments and arguments[0] not in NAMES:
        print(f"{arguments[0]} is none of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    missed = []
    for name in arguments[:1] or NAMES:
        print(f"## {name}\n", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments[1:]]
        if subprocess.run(command).returncode:
            missed.append(name)
        print(flush=True)
    if missed:
        print(f"above a limit, or failed: {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
