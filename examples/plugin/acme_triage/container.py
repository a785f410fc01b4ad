"""A Docker-aware workload: it starts the container that the cell's environment names. aorta itself starts none."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from aorta.run import docker_env_flags
from aorta.workloads import ConfigProblem, Workload, WorkloadResult


class ContainerWorkload(Workload):
    """Runs a command in the environment's image, once a step; a step that ends with another status than 0 fails.

    Settings: ``command`` (a shell command; default ``true``) and ``docker`` (the Docker program; default ``docker``).
    """

    # Without this, aorta warns that the cell names an image and that its trials run on the host.
    acts_on = frozenset({"docker"})

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> list[ConfigProblem]:
        """Names settings that would be ignored."""
        return [
            ConfigProblem(key=key, message="unknown key; known keys: command, docker")
            for key in config
            if key not in ("command", "docker")
        ]

    def setup(self) -> None:
        """Finds Docker; raising here makes the trial a setup failure, not a failed check."""
        self.image = self.config["_aorta_environment"]["docker"]
        if self.image is None:
            raise RuntimeError("the cell's environment names no image; use {docker: IMAGE} or a registered environment")
        program = self.config.get("docker", "docker")
        found = shutil.which(program)
        if found is None:
            raise RuntimeError(f"{program!r} is not on PATH; install Docker, or set workload_config.docker")
        self.docker = found

    def run(self) -> WorkloadResult:
        """Starts a container a step; the first one leaves the snapshot from inside, where one is still wanted."""
        times: list[float] = []
        failures: list[dict[str, Any]] = []
        for step in range(self.config["steps"]):
            started = time.perf_counter()
            ended = subprocess.run(self._command(probe=step == 0), capture_output=True, text=True, check=False)
            times.append((time.perf_counter() - started) * 1000)
            self._keep_output(step, ended.stdout, ended.stderr)
            if ended.returncode != 0:
                last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
                failures.append({"step": step, "hint": f"the container ended with status {ended.returncode}: {last}"})
        return WorkloadResult(
            passed=not failures,
            failure_count=len(failures),
            first_failure_iteration=failures[0]["step"] if failures else None,
            failure_details=failures,
            total_iterations=len(times),
            step_times_ms=times,
            main_work_started=True,
            executed_iterations=len(times),
            configured_iterations=self.config["steps"],
            metrics={"image": self.image},
        )

    def _command(self, *, probe: bool) -> list[str]:
        """Returns the command line of one container."""
        mounts: list[str] = []
        command = self.config.get("command", "true")
        wanted = self.config.get("_aorta_env_probe") if probe else None
        if wanted is not None:
            # The snapshot comes from inside, with the source tree of aorta and a bare Python: no install needed.
            out_dir, out_name = os.path.split(wanted["out"])
            mounts = ["-v", f"{wanted['src']}:/opt/aorta_src:ro", "-v", f"{out_dir}:/aorta_out"]
            command = (
                "PYTHONPATH=/opt/aorta_src python3 -m aorta.instrumentation._probe_main "
                f"/aorta_out/{out_name} && {command}"
            )
        # Exactly the trial's variables: nothing of the host leaks in.
        variables = docker_env_flags(self.config["_aorta_trial_env"])
        return [self.docker, "run", "--rm", *mounts, *variables, self.image, "bash", "-c", command]

    def _keep_output(self, step: int, stdout: str, stderr: str) -> None:
        """Keeps a container's output beside the trial's own logs; aorta holds <prefix>.stdout.log open itself."""
        if not self.config.get("_aorta_save_logs"):
            return
        for name, text in (("stdout", stdout), ("stderr", stderr)):
            with open(f"{self.config['_aorta_log_prefix']}.step{step}.{name}.log", "w", encoding="utf-8") as file:
                file.write(text)
