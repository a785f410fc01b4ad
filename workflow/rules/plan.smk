# The plan, as a recipe that can be run again.


rule resolved_recipe:
    output:
        str(RUN.recipe),
    params:
        recipe=SWEEP.recipe_param(),
        command=lambda wildcards, input: SWEEP.recipe_command(),
    message:
        "resolved recipe"
    # Ctrl-C reaches the whole foreground group; this is soon done, and better whole.
    shell:
        "trap '' INT; {params.command}"
