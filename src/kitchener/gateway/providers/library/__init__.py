"""Providers of kind `model`: vendors through a multi-provider library (the extra `models`)."""
