"""Build the small models (stub)."""
