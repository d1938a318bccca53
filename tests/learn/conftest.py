"""Training needs PyTorch, an extra: without it these tests are left out."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_nets.py", "test_learning.py", "test_training.py"]
