"""The web page of a lake: a server on loopback that reads, and one static page."""
