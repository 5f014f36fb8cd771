"""HO1: runs one work order and is the only one to call a model."""
