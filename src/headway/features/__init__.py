"""What learned policies see: one table of numbers about jobs, nodes and the cluster, by name and all about 0 to 1."""
