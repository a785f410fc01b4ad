# Trial records to the matrix.


rule matrix:
    input:
        str(RUN.recipe),
        SWEEP.snapshots(),
        SWEEP.trial_files(),
    output:
        str(RUN.matrix_json),
        str(RUN.matrix_md),
        str(RUN.matrix_html),
        str(RUN.perf_md),
    # It fails when a trial's file turns out to be no valid record; only running that trial again helps.
    retries: 0
    params:
        plan=SWEEP.matrix_param(),
        command=lambda wildcards, input: SWEEP.matrix_command(),
    message:
        "matrix"
    # Ctrl-C reaches the whole foreground group; this is soon done, and better whole.
    shell:
        "trap '' INT; {params.command}"
