"""What HO1 may run for a model: typed functions within limits of time, size and threads."""
