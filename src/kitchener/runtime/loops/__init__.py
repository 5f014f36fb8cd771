"""The thread, the event loop and the task on which a runtime is opened, and what happens if it is closed on another."""
