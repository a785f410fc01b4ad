"""What the plugin registers by name: a mitigation is a mapping of variables, an environment a mapping of fields."""

from __future__ import annotations

from typing import Any, Final

SERIAL_COPIES: Final[dict[str, str]] = {"HSA_ENABLE_SDMA": "0", "GPU_MAX_HW_QUEUES": "1"}

NIGHTLY: Final[dict[str, Any]] = {"docker": "acme/rocm:nightly", "env": {"ACME_CHANNEL": "nightly"}}
