"""What holds for the tests of the clients of the server, as for those of the server itself."""

from tests.serve.conftest import processor_stands_still

__all__ = ["processor_stands_still"]
