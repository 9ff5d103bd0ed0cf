"""Which files a statement can skip."""
