"""One trial: a light supervisor starts a fresh interpreter and turns every way it can end into a result.

Nothing is imported here: the supervisor's start-up time is paid once per trial, thousands of times.
"""
