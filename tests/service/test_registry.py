"""The registry on a real MLflow, database and server: versions under their own names, the very files registered."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from negotiation.adapter import MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, AdapterName
from negotiation.roles import Role
from pipelines.registry import CHALLENGER, CHAMPION, PROMOTED_TAG, MlflowRegistry, RegistryError, model_name

pytestmark = pytest.mark.service


def write_adapter(name: AdapterName, directory: Path, weights: bytes = b"weights") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / WEIGHTS_FILE).write_bytes(weights)
    manifest = AdapterManifest(
        name=str(name),
        role=name.role,
        base_model="tiny",
        base_sha256="0" * 64,
        rank=4,
        target_modules=("q_proj",),
        files={WEIGHTS_FILE: hashlib.sha256(weights).hexdigest()},
    )
    (directory / MANIFEST_FILE).write_text(manifest.model_dump_json(), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *(
                "--backend-store-uri",
                f"sqlite:///{folder}/mlflow.db",
                "--artifacts-destination",
                str(folder / "files"),
            ),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2).close()
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert process.poll() is None, "the MLflow server ended"
                assert time.monotonic() < deadline, "the MLflow server did not come up"
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An empty, migrated database: making one takes seconds, a copy takes none."""
    folder = tmp_path_factory.mktemp("migrated")
    MlflowRegistry(f"sqlite:///{folder}/mlflow.db", folder / "cache", artifact_root=folder / "files")
    return (folder / "mlflow.db").read_bytes()


@pytest.fixture
def registry(tmp_path: Path, migrated: bytes) -> MlflowRegistry:
    (tmp_path / "mlflow.db").write_bytes(migrated)
    return MlflowRegistry(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "cache")


def check_whole_life(registry: MlflowRegistry, folder: Path) -> None:
    assert registry.champion(Role.AGENT) is None
    assert registry.bootstrap(write_adapter) == {Role.AGENT: 1, Role.COUNTERPART: 1}
    assert registry.bootstrap(write_adapter) == {Role.AGENT: 1, Role.COUNTERPART: 1}
    run = registry.start_run("round")
    version = registry.reserve(run)
    assert version == 2
    for role in Role:
        name = AdapterName(role=role, version=version)
        directory = write_adapter(name, folder / str(name), f"{name}".encode())
        for _ in range(2):
            assert registry.register(role, directory, run, {"origin": "test"}) == version
    registry.set_alias(Role.AGENT, CHALLENGER, version)
    registry.promote(Role.AGENT, version, expected=1)
    registry.end_run(run)
    agent, counterpart = registry.champion(Role.AGENT), registry.champion(Role.COUNTERPART)
    assert agent is not None
    assert counterpart is not None
    assert (agent.name, counterpart.name) == ("agent@2", "counterpart@1")
    assert (agent.fetch() / WEIGHTS_FILE).read_bytes() == b"agent@2"
    assert agent.fetch() == agent.fetch()
    assert (counterpart.fetch() / WEIGHTS_FILE).read_bytes() == b"weights"


def test_a_whole_life_on_a_database(registry: MlflowRegistry, tmp_path: Path) -> None:
    check_whole_life(registry, tmp_path)


def test_a_whole_life_on_a_server(server: str, tmp_path: Path) -> None:
    check_whole_life(MlflowRegistry(server, tmp_path / "cache"), tmp_path)


def test_promotion_judges_against_the_champion_that_it_replaces(registry: MlflowRegistry, tmp_path: Path) -> None:
    registry.bootstrap(write_adapter)
    for version in (2, 3):
        run = registry.start_run("round")
        assert registry.reserve(run) == version
        name = AdapterName(role=Role.AGENT, version=version)
        registry.register(Role.AGENT, write_adapter(name, tmp_path / str(name)), run, {})
    registry.promote(Role.AGENT, 3, expected=1)
    registry.promote(Role.AGENT, 3, expected=1)
    promoted = [
        registry.client.get_model_version(model_name(Role.AGENT), str(n)).tags.get(PROMOTED_TAG) for n in (2, 3)
    ]
    assert promoted == [None, "true"]
    with pytest.raises(RegistryError, match="is version 3, but agent@2 was judged against 1"):
        registry.promote(Role.AGENT, 2, expected=1)


def test_a_reserved_version_takes_no_alias_and_other_files_never_replace_a_ready_one(
    registry: MlflowRegistry, tmp_path: Path
) -> None:
    run = registry.start_run("round")
    version = registry.reserve(run)
    with pytest.raises(RegistryError, match="'reserved', not 'ready'"):
        registry.set_alias(Role.AGENT, CHAMPION, version)
    name = AdapterName(role=Role.AGENT, version=version)
    registry.register(Role.AGENT, write_adapter(name, tmp_path / "one"), run, {})
    with pytest.raises(RegistryError, match="registered with other files"):
        registry.register(Role.AGENT, write_adapter(name, tmp_path / "two", b"other"), run, {})
    with pytest.raises(RegistryError, match="not a final adapter of the counterpart"):
        registry.register(Role.COUNTERPART, tmp_path / "one", run, {})
    with pytest.raises(RegistryError, match="reserved by run"):
        registry.register(Role.AGENT, tmp_path / "one", registry.start_run("another"), {})
    with pytest.raises(RegistryError, match="agent@9 is not in the registry"):
        registry.adapter(Role.AGENT, 9)


def test_models_that_drifted_apart_meet_again_at_one_number(registry: MlflowRegistry) -> None:
    registry.bootstrap(write_adapter)
    for _ in range(2):
        registry.client.create_model_version(model_name(Role.AGENT), source="file:///nowhere")
    assert registry.reserve(registry.start_run("round")) == 4
    assert registry.reserve(registry.start_run("round")) == 5


def test_an_interrupted_bootstrap_goes_on_with_the_same_version(registry: MlflowRegistry) -> None:
    def fails(name: AdapterName, directory: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        registry.bootstrap(fails)
    assert registry.champion(Role.AGENT) is None
    assert registry.bootstrap(write_adapter) == {Role.AGENT: 1, Role.COUNTERPART: 1}


def test_files_that_changed_are_never_handed_out(registry: MlflowRegistry, tmp_path: Path) -> None:
    registry.bootstrap(write_adapter)
    champion = registry.champion(Role.AGENT)
    assert champion is not None
    directory = champion.fetch()
    (directory / WEIGHTS_FILE).write_bytes(b"tampered")
    with pytest.raises(RegistryError, match=r"is not .* as registered"):
        champion.fetch()
    source = registry.client.get_model_version(model_name(Role.AGENT), "1").source.removeprefix("file://")
    (Path(source) / WEIGHTS_FILE).write_bytes(b"tampered at the source")
    fresh = MlflowRegistry(registry.tracking_uri, tmp_path / "cache-of-another-replica").champion(Role.AGENT)
    assert fresh is not None
    with pytest.raises(RegistryError, match="as registered"):
        fresh.fetch()


CREATE = """
import sys
from pathlib import Path
from pipelines.registry import MlflowRegistry
MlflowRegistry(sys.argv[1], Path(sys.argv[2]))
"""


def test_processes_that_create_the_database_at_once_all_succeed(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", CREATE, f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
