# Runs a recipe: one job per (cell, trial), one per environment, then the matrix.
#   snakemake --config recipe=recipes/training/example-training-ddp-smoke.yaml
from snakemake.utils import min_version

from aorta.dag import open_sweep

min_version("9.27")


configfile: f"{workflow.basedir}/config/config.yaml"


SWEEP = open_sweep(config, main_process=workflow.is_main_process)
SWEEP.set_up(workflow)


include: "workflow/rules/common.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/environments.smk"
include: "workflow/rules/trials.smk"
include: "workflow/rules/matrix.smk"


rule all:
    default_target: True
    input:
        lambda wildcards: SWEEP.targets(),


onstart:
    SWEEP.start(workflow)


onsuccess:
    SWEEP.show()


onerror:
    SWEEP.show_partial()
