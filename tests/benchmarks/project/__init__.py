"""The spider that is timed."""
