# Trial records to the matrix.


rule matrix:
    input:
        RUN.recipe,
        RUN.host_env,
        SWEEP.snapshots(),
        SWEEP.trial_files(),
    output:
        SWEEP.pattern(RUN.matrix_json),
        SWEEP.pattern(RUN.matrix_md),
        SWEEP.pattern(RUN.perf_md),
    params:
        plan=SWEEP.matrix_param(),
    message:
        "matrix"
    shell:
        "{PYTHON:q} -m aorta.matrix {RUN.run_dir:q} --quiet"
