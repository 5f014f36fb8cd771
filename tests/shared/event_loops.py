"""On which event loop a test that takes long runs in `make test`; `make soak` runs it on the other one, too.

For tests that are no tables, of what is not decided by the event loop. The cases of tables take turns by themselves (see
`tests/conftest.py`).
"""

from typing import Final

import pytest

ON_ASYNCIO: Final = pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.soak)])
ON_TRIO: Final = pytest.mark.parametrize("anyio_backend", ["trio", pytest.param("asyncio", marks=pytest.mark.soak)])
