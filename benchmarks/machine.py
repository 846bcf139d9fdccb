"""Where figures come from: machine, versions and the state of the source."""

import os
import platform
from pathlib import Path
from typing import Any

import lightning
import torch

from eigen2.runtime.provenance import describe_run, processor

ROOT = Path(__file__).parents[1]


def describe_machine() -> dict[str, Any]:
    """What a figure depends on beside the code; None where it cannot be known, or there is no accelerator."""
    run = describe_run()
    return {
        "machine": processor(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "commit": run["commit"],
        "dirty": run["dirty"],
    }
