"""File changes become a snapshot."""
