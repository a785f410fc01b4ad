# One job per (cell, trial): a supervisor that turns every end of the trial into a result file.


rule trial:
    input:
        # Taken before, but no reason to run a trial again.
        lambda wildcards: [ancient(path) for path in SWEEP.snapshots_before(wildcards.cell)],
    output:
        # `update`: an orphan of an earlier start may record the trial after the DAG was built, and a record that is
        # there is never deleted. The supervisor replaces it only if it is not this trial's.
        update(str(RUN.trial("{cell}", "{trial}"))),
    priority: lambda wildcards: -SWEEP.position(wildcards.cell, wildcards.trial)
    resources:
        **SWEEP.trial_requests(),
        device=SWEEP.devices_per_trial,
    params:
        request=lambda wildcards: SWEEP.trial_param(wildcards.cell),
        command=lambda wildcards, input: SWEEP.trial_command(wildcards.cell, wildcards.trial),
    message:
        "trial {wildcards.trial} of cell {wildcards.cell}"
    shell:
        "{params.command}"
