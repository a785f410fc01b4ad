# Snapshots of where trials run: the host once, and each environment once; on a cluster taken by a job, like a trial.
HOST_ENVIRONMENTS = SWEEP.environment_names(isolated=False)
ISOLATED_ENVIRONMENTS = SWEEP.environment_names(isolated=True)


rule host_environment:
    output:
        str(RUN.host_env),
    resources:
        **SWEEP.snapshot_requests(),
    params:
        command=lambda wildcards, input: SWEEP.snapshot_command(None),
    message:
        "snapshot of the host"
    shell:
        "{params.command}"


if HOST_ENVIRONMENTS:

    rule environment:
        output:
            str(RUN.environment("{environment}")),
        wildcard_constraints:
            environment=SWEEP.alternatives(HOST_ENVIRONMENTS),
        resources:
            **SWEEP.snapshot_requests(),
        params:
            command=lambda wildcards, input: SWEEP.snapshot_command(wildcards.environment),
        message:
            "snapshot of environment {wildcards.environment}"
        shell:
            "{params.command}"


if ISOLATED_ENVIRONMENTS:

    # A container's snapshot can only come from inside it: a trial's workload leaves it, and this rule, after the
    # trials, keeps it or writes a placeholder. `update` stops Snakemake from deleting what the trials left.
    rule isolated_environment:
        input:
            lambda wildcards: [ancient(path) for path in SWEEP.trial_files(environment=wildcards.environment)],
        output:
            update(str(RUN.environment("{environment}"))),
        wildcard_constraints:
            environment=SWEEP.alternatives(ISOLATED_ENVIRONMENTS),
        resources:
            **SWEEP.snapshot_requests(),
        params:
            command=lambda wildcards, input: SWEEP.snapshot_command(wildcards.environment),
        message:
            "snapshot of isolated environment {wildcards.environment}"
        shell:
            "{params.command}"
