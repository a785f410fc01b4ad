"""How a sweep speaks to a person, and how bad input ends it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from aorta._jsonio import NotRegularError, told
from aorta.dag.lock import LockedError
from aorta.dag.settings import SettingsError
from aorta.plan.model import PlanFileError
from aorta.plan.rundir import RunDirError


def say(text: str) -> None:
    """Tells a person something on standard error."""
    print(f"aorta: {text}", file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    """Ends the process with exit code 2 after an error of one or more lines."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
    sys.exit(2)


@contextmanager
def bad_input_exits() -> Iterator[None]:
    """Turns every error that a user can put right into its message and exit code 2, without a traceback."""
    from aorta.recipe import RecipeSchemaError
    from aorta.registry import RegistryError

    try:
        yield
    except (SettingsError, RecipeSchemaError, RegistryError, RunDirError, PlanFileError) as error:
        refuse(str(error))
    except LockedError as error:
        refuse(str(error))
    except (OSError, NotRegularError) as error:
        # With the context of what was being done: making or reading the run directory.
        refuse(f"output: cannot use {told(error, 'a file that the system does not name')}")
