"""One module a topic; each block of the snapshot is one function ``block(probe) -> dict`` that may raise.

A function returns its block's fields, raises :class:`~aorta.instrumentation._system.Absent` when the thing is not
there, and leaves the rest to the guard in :mod:`aorta.instrumentation._collect`.
"""
