"""The opaque-command flow: what is watched while a command runs, and what its end, its logs and its host say of it.

Nothing is imported here: a trial's supervisor imports the parts that it needs, before every trial.
"""
