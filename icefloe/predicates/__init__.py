"""SQL conditions as far as PyIceberg can judge them: for choosing files, never for judging rows."""
