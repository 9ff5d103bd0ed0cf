"""Timed comparisons of icefloe with other engines; see README.md here."""
