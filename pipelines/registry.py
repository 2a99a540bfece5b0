"""The registry of adapters on MLflow: one registered model per role, versions that never change, two aliases.

``agent@7`` *is* version 7 of the registered model ``sparring-agent``. The name stands in the adapter's manifest, so
the number must be known before the adapter is written: :meth:`MlflowRegistry.reserve` creates the versions first,
and :meth:`MlflowRegistry.register` fills them. A version is tagged ``reserved``, then ``ready``; only a ready one
takes an alias. Adapters are logged as plain files with a digest (MLflow's PEFT flavor has saved keys that do not
load again).

Works with ``sqlite:///...`` (one machine) and with the address of an MLflow server. MLflow's aliases have no
compare-and-set, so changes take a lease: a file lock in the cache directory, which therefore holds among the
processes of one machine. One worker promotes; serving only reads.

Importing this module imports MLflow, which takes seconds.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from negotiation.adapter import MANIFEST_FILE, AdapterManifest, AdapterName
from negotiation.roles import Role

EXPERIMENT = "sparring"
CHAMPION, CHALLENGER = "champion", "challenger"
STATE_TAG, DIGEST_TAG = "sparring.state", "sparring.manifest_sha256"
PROMOTED_TAG = "sparring.promoted"
RESERVED, READY, SKIPPED = "reserved", "ready", "skipped"
_METRICS_PER_CALL = 1000
_PARAMS_PER_CALL = 100


class RegistryError(RuntimeError):
    """The registry and what is asked of it do not fit together. Names the version and the remedy."""


class AdapterUnavailable(OSError):
    """The adapter's files can not be had just now; trying again may help."""


@dataclass(frozen=True)
class ChampionAdapter:
    """A registered adapter. ``fetch`` gives a local directory with its verified files.

    It raises AdapterUnavailable (an OSError) where they can not be had, RegistryError where they are not the
    ones that were registered.
    """

    name: str
    digest: str
    fetch: Callable[[], Path]


def model_name(role: Role) -> str:
    return f"sparring-{role}"


class MlflowRegistry:
    """Tracking and registry of one deployment."""

    def __init__(self, tracking_uri: str, cache_dir: Path, *, artifact_root: Path | None = None) -> None:
        """``artifact_root`` (default: ``mlflow-artifacts`` next to the cache) is where files go when
        ``tracking_uri`` is a database; an MLflow server decides for itself."""
        self.tracking_uri = tracking_uri
        self._cache = cache_dir.absolute()
        self._cache.mkdir(parents=True, exist_ok=True)
        self._lease = FileLock(self._cache / "registry.lock")
        # Several processes that create the database at once race in its migrations.
        with self._lease:
            self.client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
            self._experiment = self._ensure_experiment(artifact_root or self._cache.parent / "mlflow-artifacts")
            for role in Role:
                if not self.client.search_registered_models(filter_string=f"name = '{model_name(role)}'"):
                    self.client.create_registered_model(model_name(role))

    def _ensure_experiment(self, artifact_root: Path) -> str:
        found = self.client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            return str(found.experiment_id)
        local = self.tracking_uri.startswith("sqlite:")
        location = artifact_root.absolute().as_uri() if local else None
        return str(self.client.create_experiment(EXPERIMENT, artifact_location=location))

    # -- runs ----------------------------------------------------------------------------------------------------

    def start_run(self, name: str, tags: Mapping[str, str] | None = None) -> str:
        """A new run's id."""
        return str(self.client.create_run(self._experiment, run_name=name, tags=dict(tags or {})).info.run_id)

    def end_run(self, run_id: str, *, failed: bool = False) -> None:
        self.client.set_terminated(run_id, status="FAILED" if failed else "FINISHED")

    def log_params(self, run_id: str, params: Mapping[str, object]) -> None:
        """Logging the same value again is no error; a different one is (MLflow's rule)."""
        rows = [Param(key, str(value)[:6000]) for key, value in params.items()]
        for start in range(0, len(rows), _PARAMS_PER_CALL):
            self.client.log_batch(run_id, params=rows[start : start + _PARAMS_PER_CALL])

    def log_metrics(self, run_id: str, rows: list[tuple[str, float, int]], timestamp_ms: int) -> None:
        """Rows of (name, value, step)."""
        metrics = [Metric(key, float(value), timestamp_ms, step) for key, value, step in rows]
        for start in range(0, len(metrics), _METRICS_PER_CALL):
            self.client.log_batch(run_id, metrics=metrics[start : start + _METRICS_PER_CALL])

    def log_file(self, run_id: str, path: Path) -> None:
        self.client.log_artifact(run_id, str(path))

    # -- versions ------------------------------------------------------------------------------------------------

    def reserve(self, run_id: str) -> int:
        """Create the next version of both roles under one number, for adapters that this run will write.

        Where the two models have drifted apart (a crash between the two), the one behind catches up with versions
        tagged ``skipped``.
        """
        uri = self.client.get_run(run_id).info.artifact_uri
        with self._lease:
            made = {role: self._create_version(role, uri, run_id) for role in Role}
            target = max(made.values())
            for role in Role:
                while made[role] < target:
                    self._tag(role, made[role], STATE_TAG, SKIPPED)
                    made[role] = self._create_version(role, uri, run_id)
                if made[role] > target:
                    raise RegistryError(
                        f"{model_name(role)} went from under {target} to {made[role]} in one step: something else "
                        "creates versions; let one worker do it"
                    )
        return target

    def _create_version(self, role: Role, artifact_uri: str, run_id: str) -> int:
        created = self.client.create_model_version(
            model_name(role),
            source=f"{artifact_uri}/{_artifact_path(role)}",
            run_id=run_id,
            tags={STATE_TAG: RESERVED},
        )
        return int(created.version)

    def register(self, role: Role, directory: Path, run_id: str, tags: Mapping[str, str]) -> int:
        """Fill the reserved version that the adapter's manifest names; returns it. Repeating it changes nothing.

        Raises RegistryError where the manifest names another role, a version that this run did not reserve, or
        a version that already holds other files.
        """
        manifest, digest = read_manifest(directory)
        name = AdapterName.parse(manifest.name)
        if name.role is not role or name.step is not None:
            raise RegistryError(f"{directory} holds {manifest.name}, not a final adapter of the {role}")
        with self._lease:
            version = self._version(role, name.version)
            if version.run_id != run_id:
                raise RegistryError(f"{name} was reserved by run {version.run_id}, not by {run_id}: reserve first")
            state = version.tags.get(STATE_TAG)
            if state == READY:
                if version.tags.get(DIGEST_TAG) != digest:
                    raise RegistryError(f"{name} is registered with other files and never changes: reserve anew")
                return name.version
            if state != RESERVED:
                raise RegistryError(f"{name} is {state!r} in the registry, not {RESERVED!r}: reserve a version first")
            self.client.log_artifacts(run_id, str(directory), _artifact_path(role))
            for key, value in {**tags, DIGEST_TAG: digest, STATE_TAG: READY}.items():
                self._tag(role, name.version, key, value)
        return name.version

    def version(self, role: Role, alias: str) -> int | None:
        """The version that an alias stands for, or None."""
        aliases = self.client.get_registered_model(model_name(role)).aliases
        return int(aliases[alias]) if alias in aliases else None

    def set_alias(self, role: Role, alias: str, version: int) -> None:
        """Raises RegistryError unless the version is ready."""
        with self._lease:
            self._ready(role, version)
            self.client.set_registered_model_alias(model_name(role), alias, str(version))

    def promote(self, role: Role, version: int, *, expected: int | None) -> None:
        """Make a version champion, if ``expected`` still is: what was judged is what is replaced."""
        with self._lease:
            current = self.version(role, CHAMPION)
            if current == version:
                return
            if current != expected:
                raise RegistryError(
                    f"the champion of {model_name(role)} is version {current}, but {role}@{version} was judged "
                    f"against {expected}: evaluate it against {role}@{current} first"
                )
            self.set_alias(role, CHAMPION, version)
            self._tag(role, version, PROMOTED_TAG, "true")

    def champion(self, role: Role) -> ChampionAdapter | None:
        """The adapter that should be serving, or None before the bootstrap."""
        version = self.version(role, CHAMPION)
        return None if version is None else self.adapter(role, version)

    def adapter(self, role: Role, version: int) -> ChampionAdapter:
        """A ready version, by number. Raises RegistryError for one that is not."""
        digest = self._ready(role, version).tags[DIGEST_TAG]
        name = AdapterName(role=role, version=version)
        return ChampionAdapter(str(name), digest, lambda: self._fetch(name, digest))

    def bootstrap(self, write: Callable[[AdapterName, Path], object]) -> dict[Role, int]:
        """Give each role a champion if it has none: version 1, written by ``write(name, directory)``.

        Returns the champions' versions. Safe to repeat, and to interrupt.
        """
        with self._lease:
            missing = [role for role in Role if self.version(role, CHAMPION) is None]
            for role in missing:
                name = AdapterName(role=role, version=1)
                if not self.client.search_model_versions(f"name = '{model_name(role)}'"):
                    reserved = self.reserve(self.start_run("bootstrap"))
                    if reserved != name.version:
                        raise RegistryError(f"the first version of {model_name(role)} came out as {reserved}, not 1")
                version = self._version(role, name.version)
                if version.tags.get(STATE_TAG) != READY:
                    with tempfile.TemporaryDirectory(dir=self._cache) as folder:
                        directory = Path(folder) / str(name)
                        write(name, directory)
                        self.register(role, directory, _run_id(version), {"sparring.origin": "bootstrap"})
                self.set_alias(role, CHAMPION, name.version)
                if all(self.version(other, CHAMPION) for other in Role):
                    self.end_run(_run_id(version))
        return {role: int(self._version(role, self.version(role, CHAMPION) or 0).version) for role in Role}

    def _version(self, role: Role, version: int) -> ModelVersion:
        try:
            return self.client.get_model_version(model_name(role), str(version))
        except MlflowException as error:
            raise RegistryError(f"{role}@{version} is not in the registry at {self.tracking_uri}: {error}") from error

    def _ready(self, role: Role, version: int) -> ModelVersion:
        found = self._version(role, version)
        state = found.tags.get(STATE_TAG)
        if state != READY:
            raise RegistryError(f"{role}@{version} is {state!r}, not {READY!r}: its files never arrived; train again")
        return found

    def _tag(self, role: Role, version: int, key: str, value: str) -> None:
        self.client.set_model_version_tag(model_name(role), str(version), key, value)

    def _fetch(self, name: AdapterName, digest: str) -> Path:
        target = self._cache / str(name)
        with FileLock(self._cache / f"{name}.lock"):
            if not target.exists():
                run_id = _run_id(self._version(name.role, name.version))
                with tempfile.TemporaryDirectory(dir=self._cache, prefix=".fetch-") as folder:
                    try:
                        fetched = self.client.download_artifacts(run_id, _artifact_path(name.role), folder)
                    except MlflowException as error:
                        raise AdapterUnavailable(
                            f"{name} can not be fetched from {self.tracking_uri}: {error}"
                        ) from error
                    _check_files(Path(fetched), str(name), digest)
                    Path(fetched).rename(target)
                return target
            _check_files(target, str(name), digest)
        return target


def read_manifest(directory: Path) -> tuple[AdapterManifest, str]:
    """An adapter directory's manifest and its sha256, which stands for all files since it holds their digests."""
    raw = (directory / MANIFEST_FILE).read_bytes()
    return AdapterManifest.model_validate_json(raw), hashlib.sha256(raw).hexdigest()


def _run_id(version: ModelVersion) -> str:
    if not version.run_id:
        raise RegistryError(f"version {version.version} of {version.name} belongs to no run: it was not made here")
    return str(version.run_id)


def _artifact_path(role: Role) -> str:
    return f"adapters/{role}"


def _check_files(directory: Path, name: str, digest: str) -> None:
    manifest, found = read_manifest(directory)
    if found != digest or manifest.name != name:
        raise RegistryError(f"{directory}: manifest {found[:12]} is not {digest[:12]} of {name}")
    for file, expected in manifest.files.items():
        if Path(file).name != file:
            raise RegistryError(f"{directory}: file name {file!r} in the manifest is a path, must be a plain name")
        actual = hashlib.sha256((directory / file).read_bytes()).hexdigest()
        if actual != expected:
            raise RegistryError(
                f"{directory / file}: sha256 {actual[:12]} is not {expected[:12]} as registered; delete {directory} "
                "to fetch it again"
            )
