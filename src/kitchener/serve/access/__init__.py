"""Who asks, and what they may: keys, subjects, and the limits of each."""
