"""The rounds of tool calls of one reply: which calls run, wait or are refused, and what a model is shown of them."""
