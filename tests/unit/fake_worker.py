"""Stands in for the worker process, without CUDA: does what the request's plan says."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from gemm_regression.devices.cuda.protocol import Reply, Request
from gemm_regression.timing.plan import Plan

LATE = 2.0  # seconds


def serve_late(connection: Connection) -> None:
    """As `serve`, but ready only after a while."""
    time.sleep(LATE)
    serve(connection)


def serve_if_it_does_not_time(connection: Connection, visible_as: str | None, times: bool) -> None:
    assert not times
    serve(connection)


def die(connection: Connection) -> None:
    """Where PyCUDA cannot even be imported."""
    os._exit(7)


def refuse(connection: Connection) -> None:
    """Where no context can be made, and each request makes another attempt."""
    while True:
        connection.recv()
        connection.send(Reply(code="OUT_OF_MEMORY", message="cuCtxCreate failed: out of memory"))


def plan(behaviour: str) -> Plan:
    """The plan that makes the worker behave so."""
    return Plan(l2=behaviour)


def serve(connection: Connection) -> None:
    """Answers each request with its own process id unless told to misbehave."""
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            return
        if request.what == "stop":
            return
        plan = request.plan or request.pair
        behaviour = plan.l2 if plan else ""
        if behaviour == "exit":
            os._exit(7)
        if behaviour == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "hang":
            time.sleep(600)
        connection.send(_reply(request, behaviour))
        if behaviour == "fatal":
            os._exit(0)


def _reply(request: Request, behaviour: str) -> Reply:
    if behaviour == "fatal":
        return Reply(code="ILLEGAL_ADDRESS", message="an illegal memory access was encountered", fatal=True)
    if behaviour == "refused":
        return Reply(code="OUT_OF_MEMORY", message="out of memory")
    if behaviour == "named":
        return Reply(code="WRONG", message=f"{request.builds[0].name} on 4x4x4: wrong")
    value: Any = os.getpid()
    if request.what == "pair":
        value = [build.name for build in request.builds], request.works
    if behaviour == "echo":
        value = request.plan or request.pair
    if request.what == "prepare":
        value = {build.name: f"{build.name}: error: no such thing" for build in request.builds[1:]}
    return Reply(value=value)
