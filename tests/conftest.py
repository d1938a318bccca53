"""Settings for all tests: property tests draw the same examples each time and have no deadline.

`HYPOTHESIS_PROFILE=explore pytest` draws new examples instead.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
