"""Stands in for the worker process, without CUDA: does what the request's plan says."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from gemm_regression.compiler.units import ModuleSource
from gemm_regression.devices.reply import Reply
from gemm_regression.timing.plan import PairPlan, Plan

LATE = 2.0  # seconds


def serve_late(connection: Connection, *given: object) -> None:
    """As `serve`, but ready only after a while."""
    time.sleep(LATE)
    serve(connection)


def serve_if_it_does_not_time(connection: Connection, visible_as: str | None, times: bool) -> None:
    assert not times
    serve(connection)


def die(connection: Connection, *given: object) -> None:
    """Where PyCUDA cannot even be imported."""
    os._exit(7)


def refuse(connection: Connection, *given: object) -> None:
    """Where no context can be made, and each request makes another attempt."""
    while True:
        connection.recv()
        connection.send(Reply(code="OUT_OF_MEMORY", message="cuCtxCreate failed: out of memory"))


def plan(behaviour: str) -> Plan:
    """The plan that makes the worker behave so."""
    return Plan(l2=behaviour)


def _compiled(source: ModuleSource) -> tuple[bytes, str] | str:
    if source.text == "broken":
        return f"{source.entry}: error: no such thing"
    return source.entry.encode(), "gemm"


def serve(connection: Connection, *given: object) -> None:
    """Answers each request with its own process id unless told to misbehave."""
    while True:
        try:
            what, *request = connection.recv()
        except EOFError:
            return
        if what == "stop":
            return
        plan = next((one for one in request if isinstance(one, (Plan, PairPlan))), None)
        behaviour = plan.l2 if plan else ""
        if behaviour == "exit":
            os._exit(7)
        if behaviour == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "hang":
            time.sleep(600)
        value = request if behaviour == "echo" else os.getpid()
        if what == "compile":
            value = [_compiled(source) for source in request[0]]
        failed = {
            "fatal": ("ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
            "refused": ("OUT_OF_MEMORY", "out of memory"),
            "named": ("WRONG", f"{getattr(next(iter(request), None), 'name', '')} on 4x4x4: wrong"),
        }.get(behaviour)
        connection.send(Reply(None, *failed, behaviour == "fatal") if failed else Reply(value))
        if behaviour == "fatal":
            os._exit(0)
