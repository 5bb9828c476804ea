"""The servers are real, and each test has its own part of them."""

import psycopg
import pytest
import redis


@pytest.mark.parametrize("_time", [1, 2])
def test_a_test_has_a_valkey_database_to_itself(redis_url: str, _time: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*") == []
        client.set("left", "behind")
        assert client.get("left") == b"behind"


@pytest.mark.parametrize("_time", [1, 2])
def test_a_test_has_a_postgres_database_to_itself(
    postgres_url: str, _time: int
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mine (id int)")
        version = connection.execute("SHOW server_version_num").fetchone()
    assert version is not None and int(version[0]) >= 160000
