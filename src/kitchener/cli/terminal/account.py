"""Finds the account that runs the command, to record who made a decision."""

import getpass
import os


def account_name() -> str | None:
    """The name of the account; None: the machine does not know one."""
    try:
        import pwd  # only POSIX has it
    except ImportError:
        try:
            return getpass.getuser()
        except (KeyError, OSError, ImportError):
            return None
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # an account without a name, as in some containers
        return None
