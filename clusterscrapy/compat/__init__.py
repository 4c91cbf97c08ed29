"""What makes projects of other frontiers run on this one, unchanged."""
