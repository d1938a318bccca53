"""MLFS (Wang, Liu, Shen, CoNEXT 2020): MLF-H, a heuristic on the features of training jobs, and MLF-C, load control."""
