"""Files and their locations."""
