"""`kitchener audit`: looks through all ledgers for what should not be on record. Explained in `docs/commands.md`."""

from cyclopts import App

from kitchener.cli.audit.leaks import find_leaks
from kitchener.cli.exits import NEGATIVE, OK
from kitchener.cli.options import JsonFlag, LedgerPaths, Options
from kitchener.cli.terminal.interrupt import run_to_end
from kitchener.cli.terminal.output import print_answer
from kitchener.errors import ConfigError

app = App(name="audit", help="Look for what should not be on record.")

_EVERYTHING = Options()


@app.command
def leaks(*, options: Options = _EVERYTHING, json: JsonFlag = False) -> int:
    """Look for items of one subject in a projection, prompt, signal or lesson of another, in all ledgers under the root.

    Compares references and ids; the report names what it cannot see. Exits with 1 if there is a leak. Takes no lock.

    For example:

        kitchener audit leaks
        kitchener audit leaks --root /backup/plane --json
    """

    async def work() -> int:
        paths = LedgerPaths(options.load().config)
        if options.root is not None and not paths.root.is_dir():
            raise ConfigError("--root", "", repr(str(options.root)), "is not a directory")
        report = await find_leaks(paths)
        print_answer(report, is_json=json)
        return NEGATIVE if report.leaks else OK

    return run_to_end(work)
