"""The environment of the engines that newer clients of Redis shut out."""

import arq
import redis
import saq


def test_a_job_can_be_enqueued_with_an_older_client(redis_url: str) -> None:
    assert redis.VERSION[0] == 5
    assert arq.VERSION and saq.__version__
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()
