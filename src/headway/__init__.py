"""Headway: a scheduler for shared clusters of training jobs that looks at the progress each job makes."""

__version__ = "0.1.0"
