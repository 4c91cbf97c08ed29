from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import RedisServer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_url(shared_redis: RedisServer) -> str:
    """An empty Redis database."""
    with shared_redis.client as client:
        client.flushall()
    return shared_redis.url
