"""Starts a part of this package that runs as a process of its own: `python -I -S engines/__main__.py runner|agent …`.

The parts import each other, the standard library, and nothing else of Headway: they start in a few milliseconds, stay small,
and an upgrade of the environment can't break what runs. So the package is found by this file's own place, under its short name.
"""

from __future__ import annotations

import importlib
import os
import sys

PARTS = ("runner", "agent")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"expected one of {', '.join(PARTS)}")
    # Last, so that no module beside the package stands in front of one of the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    importlib.import_module(f"engines.{sys.argv[1]}").main(sys.argv[2:])
