"""Placement kernels: given who goes first, find where each gang fits."""
