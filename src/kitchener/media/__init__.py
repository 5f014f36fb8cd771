"""Content that is no text: what kind it is, and where its bytes are stored."""
