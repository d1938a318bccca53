"""A slow, obvious simulator written from docs/semantics.md alone, and its own tests."""
