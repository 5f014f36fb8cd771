"""What holds for the tests of hostile connections to the server, as for those of the server itself."""

from tests.serve.conftest import processor_stands_still

__all__ = ["processor_stands_still"]
