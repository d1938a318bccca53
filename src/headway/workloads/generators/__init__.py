"""The frozen generators: one module each, and what they share (`docs/workloads.md`)."""
