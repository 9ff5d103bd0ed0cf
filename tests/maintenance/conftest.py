"""The second writer, for every test of this folder."""

from support.races import before_commit, before_swap, meanwhile, other

__all__ = ["before_commit", "before_swap", "meanwhile", "other"]
