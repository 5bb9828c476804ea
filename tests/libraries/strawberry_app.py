"""GraphQL subscriptions of Strawberry, through its own ASGI app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from itertools import count

import strawberry
from strawberry.asgi import GraphQL
from strawberry.subscriptions import (
    GRAPHQL_SSE_PROTOCOL,
    GRAPHQL_TRANSPORT_WS_PROTOCOL,
    MULTIPART_SUBSCRIPTION_PROTOCOL,
)

from drainmw import Drain, DrainMiddleware

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
logger = logging.getLogger("app")


@strawberry.type
class Query:
    @strawberry.field
    def hello(self) -> str:
        return "hello"


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def numbers(self, pause: float) -> AsyncGenerator[int, None]:
        try:
            for number in count():
                yield number
                await asyncio.sleep(pause)
        finally:
            logger.info("subscription closed")


graphql = GraphQL(
    strawberry.Schema(Query, subscription=Subscription),
    subscription_protocols=[
        GRAPHQL_TRANSPORT_WS_PROTOCOL,
        GRAPHQL_SSE_PROTOCOL,
        MULTIPART_SUBSCRIPTION_PROTOCOL,
    ],
)
# A response of many parts is waited for unless its route says something else.
app = DrainMiddleware(graphql, Drain(policies={"/graphql/parts": "end"}))
