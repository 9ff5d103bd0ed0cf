"""The second writer, for every test of this folder."""

from support.races import Meanwhile, before_commit, before_swap, meanwhile, other

__all__ = ["Meanwhile", "before_commit", "before_swap", "meanwhile", "other"]
