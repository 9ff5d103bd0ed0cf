"""Which files a statement can skip, from metadata alone."""
