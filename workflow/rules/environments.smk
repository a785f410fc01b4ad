# Snapshots of where trials run: the host once, and each environment once.
HOST_ENVIRONMENTS = SWEEP.environment_names(isolated=False)
ISOLATED_ENVIRONMENTS = SWEEP.environment_names(isolated=True)


rule host_environment:
    output:
        str(RUN.host_env),
    message:
        "snapshot of the host"
    shell:
        "{PYTHON:q} -m aorta.instrumentation.snapshot --run-dir {RUN.run_dir:q} --host --out {output:q}"


if HOST_ENVIRONMENTS:

    rule environment:
        output:
            str(RUN.environment("{environment}")),
        wildcard_constraints:
            environment=SWEEP.alternatives(HOST_ENVIRONMENTS),
        message:
            "snapshot of environment {wildcards.environment}"
        shell:
            "{PYTHON:q} -m aorta.instrumentation.snapshot --run-dir {RUN.run_dir:q}"
            " --environment {wildcards.environment:q} --out {output:q}"


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
        message:
            "snapshot of isolated environment {wildcards.environment}"
        shell:
            "{PYTHON:q} -m aorta.instrumentation.snapshot --run-dir {RUN.run_dir:q}"
            " --environment {wildcards.environment:q} --out {output:q}"
