# The plan, as a recipe that can be run again.


rule resolved_recipe:
    output:
        str(RUN.recipe),
    params:
        recipe=SWEEP.recipe_param(),
    message:
        "resolved recipe"
    shell:
        "{PYTHON:q} -m aorta.dag.resolved --run-dir {RUN.run_dir:q}"
