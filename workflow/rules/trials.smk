# One job per (cell, trial): a supervisor that turns every end of the trial into a result file.


rule trial:
    input:
        # Taken before, but no reason to run a trial again.
        lambda wildcards: [ancient(path) for path in SWEEP.snapshots_before(wildcards.cell)],
    output:
        str(RUN.trial("{cell}", "{trial}")),
    priority: lambda wildcards: -SWEEP.position(wildcards.cell, wildcards.trial)
    resources:
        device=1,
    params:
        request=lambda wildcards: SWEEP.trial_param(wildcards.cell, wildcards.trial),
        command=lambda wildcards, input: SWEEP.trial_command(wildcards.cell, wildcards.trial),
    message:
        "trial {wildcards.trial} of cell {wildcards.cell}"
    shell:
        "{params.command}"
