# Names that the rules share.
from aorta.dag.sweep import python_command, supervisor_path

RUN = SWEEP.layout
PYTHON = python_command()
SUPERVISOR = supervisor_path()


wildcard_constraints:
    cell=SWEEP.alternatives(SWEEP.cell_names),
    trial="0|[1-9][0-9]*",


localrules:
    all,
    resolved_recipe,
    host_environment,
    matrix,
