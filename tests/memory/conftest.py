"""Where these tests write: in memory if there is such a place (see the ledger's tests)."""

from tests.ledger.conftest import tmp_path

__all__ = ["tmp_path"]
