"""A workload module that cannot be imported: something it needs is not installed."""

import a_module_that_nobody_installed  # noqa: F401


class Broken:
    """Never reached."""

    def run(self) -> None:
        """Never reached."""
