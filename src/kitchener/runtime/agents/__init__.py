"""The agent classes of a runtime: how each is built and opened, and the components that they share."""
