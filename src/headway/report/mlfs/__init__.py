"""The reproduction of MLFS: the paper's numbers, what is claimed and whether it holds, and the report."""
