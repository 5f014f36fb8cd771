"""The agent classes of a runtime: how each is built and opened, and the parts that they share."""
