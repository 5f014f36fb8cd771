"""What holds for the tests of the operators' files, some of which run a server: how fast the machine is decides nothing."""

from tests.serve.conftest import processor_stands_still

__all__ = ["processor_stands_still"]
