"""Starts a node's agent, as a process of its own: `python -I -S engines/__main__.py STATE_DIR NODE`.

The agent, and the supervisors that it forks, import the standard library and a few modules of this package, and nothing else of
Headway: they start quickly, stay small, and need no installed package. So the package is found by this file's own place, under
its short name.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

if __name__ == "__main__":
    # Last, so that no module beside the package stands in front of one of the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import_module("engines.agent").main(sys.argv[1:])
