"""The policies by name, and the registry that lists them; each is a function from a view to a plan."""
