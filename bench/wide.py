"""Wide users: images, sensors and embeddings, with more parameters than the users have rows."""

from __future__ import annotations

from bench.wide_worlds import (
    World,
    alike_users,
    cifar_users,
    digit_users,
    embedding_users,
    mnist_users,
    rotated_users,
    sensor_users,
    squared_users,
)

__all__ = [
    "World",
    "alike_users",
    "cifar_users",
    "digit_users",
    "embedding_users",
    "mnist_users",
    "rotated_users",
    "sensor_users",
    "squared_users",
]
