"""`kitchener approval`: tool calls that wait for a person."""
