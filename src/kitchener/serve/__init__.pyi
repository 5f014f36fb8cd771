"""Where each name of this package is defined: `__init__.py` reads this file, and so do type checkers."""

from kitchener.serve.application import open_server as open_server

__all__ = ["open_server"]
