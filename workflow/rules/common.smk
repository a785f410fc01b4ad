# Names that the rules share.
RUN = SWEEP.layout


wildcard_constraints:
    cell=SWEEP.alternatives(SWEEP.cell_names),
    trial="0|[1-9][0-9]*",


# A rule's command is a param that takes `input` as well: such a param is no reason to run a job again, so moving to
# another interpreter or release of aorta reruns nothing. What does count stands in a param of its own.


localrules:
    all,
    resolved_recipe,
    matrix,
