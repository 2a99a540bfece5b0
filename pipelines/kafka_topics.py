"""The topics that Kafka must have, and how to get there: ``sparring topics apply``.

Creates what is missing and reports what differs. Left out on purpose: changing settings of a topic that exists (an
operator may have set them for a reason), replication of existing topics, and deleting anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError

from negotiation.events import ADAPTERS_TOPIC, CONVERSATIONS_TOPIC, DEAD_LETTER_TOPIC
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import administration

_DAY_MILLISECONDS = 86_400_000


@dataclass(frozen=True)
class Topic:
    """A topic as it should be or as it is. ``config``: Kafka's own names and values."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """What of an existing topic is not as configured."""

    topic: str
    key: str
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.key} is {self.found}, configured is {self.wanted}"


@dataclass(frozen=True)
class TopicsReport:
    """What was done, or in a dry run would be. ``differences`` are those that remain."""

    created: tuple[str, ...]
    grown: tuple[str, ...]
    unchanged: tuple[str, ...]
    differences: tuple[Difference, ...]


def wanted_topics(settings: KafkaSettings) -> list[Topic]:
    """All of ours. Adapters are compacted: the latest of each key stays."""
    retention = {
        "cleanup.policy": "delete",
        "retention.ms": str(round(settings.retention_days * _DAY_MILLISECONDS)),
    }
    replicas = settings.replication_factor
    # Two copies of whatever was acknowledged. While there is only one broker left events wait in the outbox.
    durable = {"min.insync.replicas": "2"} if replicas > 1 else {}
    return [
        Topic(CONVERSATIONS_TOPIC, settings.partitions, replicas, {**retention, **durable}),
        Topic(DEAD_LETTER_TOPIC, 1, replicas, {**retention, **durable}),
        Topic(ADAPTERS_TOPIC, 1, replicas, {"cleanup.policy": "compact", **durable}),
    ]


def differences(wanted: Topic, found: Topic) -> list[Difference]:
    """What of ``found`` is not as wanted. Settings that we do not set may be anything."""
    pairs = [
        ("partitions", str(found.partitions), str(wanted.partitions)),
        ("replication factor", str(found.replication_factor), str(wanted.replication_factor)),
        *((key, found.config.get(key, "not set"), value) for key, value in wanted.config.items()),
    ]
    return [Difference(wanted.name, key, is_, should) for key, is_, should in pairs if is_ != should]


def apply_topics(settings: KafkaSettings, *, grow: bool = False, dry_run: bool = False) -> TopicsReport:
    """Create what is missing; with ``grow`` add the partitions that are missing. Doing it again does nothing.

    Growing sends later events of a conversation to another partition than its earlier ones: their order is lost for
    conversations open at that moment. Raises EventLogUnavailable.
    """
    wanted = wanted_topics(settings)
    created, grown, unchanged, remaining = [], [], [], []
    with administration(settings) as client:
        existing = existing_topics(client, [topic.name for topic in wanted])
        for topic in wanted:
            found = existing.get(topic.name)
            if found is None:
                if not dry_run:
                    _create(client, topic)
                created.append(topic.name)
                continue
            differing = differences(topic, found)
            if grow and found.partitions < topic.partitions:
                if not dry_run:
                    client.create_partitions({topic.name: topic.partitions})
                grown.append(topic.name)
                differing = [each for each in differing if each.key != "partitions"]
            elif not differing:
                unchanged.append(topic.name)
            remaining += differing
    return TopicsReport(tuple(created), tuple(grown), tuple(unchanged), tuple(remaining))


def existing_topics(client: KafkaAdminClient, names: Sequence[str]) -> dict[str, Topic]:
    """Those of ``names`` that the brokers have, as they are."""
    described = [topic for topic in client.describe_topics(list(names)) if topic["error_code"] == 0]
    if not described:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic["name"]) for topic in described]
    configs = client.describe_configs(resources, config_filter="all")["topic"]
    return {
        topic["name"]: Topic(
            topic["name"],
            len(topic["partitions"]),
            min(len(partition["replica_nodes"]) for partition in topic["partitions"]),
            {key: str(entry["value"]) for key, entry in configs[topic["name"]].items()},
        )
        for topic in described
    }


def _create(client: KafkaAdminClient, topic: Topic) -> None:
    options = {
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "configs": dict(topic.config),
    }
    try:
        client.create_topics({topic.name: options}, wait_for_metadata=True)
    except TopicAlreadyExistsError:
        # Somebody else applied them at the same moment.
        return
