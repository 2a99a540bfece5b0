"""``sparring adapters``, ``gate``, ``promote`` and ``rollback``: what may serve, and what does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from negotiation.roles import Role
from sparring.commands.options import ConfigOption, JsonOption, print_json, say, settings_from
from sparring.errors import RefusedError

RoleOption = Annotated[Role, typer.Option(help="Whose adapter.")]
VersionOption = Annotated[int | None, typer.Option(min=1, help="Version number (default: the newest candidate).")]


def adapters(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Versions of both roles: which are ready, which earned promotion, which is champion."""
    from sparring.compose import open_registry
    from sparring.models import resolve_base_model
    from sparring.versions import list_versions

    settings = settings_from(config)
    registry = open_registry(settings, resolve_base_model(settings.base_model))
    found = [version for role in Role for version in list_versions(registry, role)]
    if as_json:
        print_json([asdict(version) for version in found])
        return
    for version in found:
        earned = "earned" if version.earned else "not earned"
        typer.echo(f"{version.name:<18} {version.state:<10} {earned:<12} {', '.join(version.aliases)}")


def gate(
    role: RoleOption = Role.AGENT,
    version: VersionOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a version with the champion on the same unseen scenarios. Exit code 1 if it may not be promoted."""
    from sparring.judge import judge_version

    settings = settings_from(config)
    judged = judge_version(settings, role, version)
    if as_json:
        print_json(asdict(judged))
    else:
        typer.echo(f"{judged.candidate} against {judged.champion}: {judged.decision.pairs} paired conversations")
        for name, interval in judged.decision.differences.items():
            typer.echo(f"  {name.replace('_', ' ')}: {interval}")
        for reason in judged.decision.reasons:
            typer.echo(f"  {reason}")
    if not judged.decision.promote:
        raise RefusedError(f"{judged.candidate} may not replace {judged.champion}")


def promote(role: RoleOption = Role.AGENT, version: VersionOption = None, config: ConfigOption = None) -> None:
    """Make a version champion, if the gate lets it through. The running service swaps by itself."""
    from sparring.judge import promote_version

    settings = settings_from(config)
    judged = promote_version(settings, role, version)
    say(f"{judged.candidate} is champion now; it was {judged.champion}")


def rollback(
    role: RoleOption = Role.AGENT,
    to: Annotated[int | None, typer.Option(min=1, help="Version (default: the champion before).")] = None,
    config: ConfigOption = None,
) -> None:
    """Make an earlier version champion again, at once and without the gate. Open conversations are not disturbed."""
    from sparring.compose import open_registry
    from sparring.judge import roll_back
    from sparring.models import resolve_base_model

    settings = settings_from(config)
    registry = open_registry(settings, resolve_base_model(settings.base_model))
    before, after = roll_back(registry, role, to)
    say(f"{role}@{after} is champion again; it was {role}@{before}")
