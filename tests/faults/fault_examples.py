"""Reads ``examples.yaml``: faults as short data, see the head of that file."""

from pathlib import Path

import yaml

from rayguard.faults.fault import ExceptionFact, Fault, Frame, ProcessExit, Role, Silence

SITE = "/opt/env/lib/python3.12/site-packages/"
STDLIB = "/usr/lib/python3.12/"
EXAMPLES = yaml.safe_load((Path(__file__).parent / "examples.yaml").read_text(encoding="utf-8"))


def positives():
    """Return (signature, fault) for each thing that looks like its signature."""
    return [(name, fault_of(one)) for name, entry in EXAMPLES.items() for one in entry.get("is", ())]


def near_misses():
    """Return (look-alike of, signature that it is, fault)."""
    return [
        (name, one["signature"], fault_of(one))
        for name, entry in EXAMPLES.items()
        for one in entry.get("not", ())
    ]


def fault_of(data):
    """Build the fault of one example."""
    silence = data.get("silence")
    return Fault(
        operation=data.get("operation", ""),
        exceptions=tuple(_exception(one) for one in data.get("chain", ())),
        records=tuple(_exception(one) for one in data.get("records", ())),
        exits=tuple(
            ProcessExit(role=Role(one["role"]), pid=one["pid"], exitcode=one.get("exitcode"))
            for one in data.get("exits", ())
        ),
        silence=silence
        and Silence(
            role=Role.ENGINE_CORE,
            silent_s=silence["silent_s"],
            requests=silence["requests"],
            states=tuple((pid, state) for pid, state in silence.get("states", ())),
        ),
        log=tuple(data.get("log", ())),
    )


def frame_of(text):
    """Build a frame from ``file:line function | source line``."""
    place, _, code = text.partition(" | ")
    where, _, function = place.partition(" ")
    file, _, line = where.rpartition(":")
    file = file.replace("site/", SITE, 1) if file.startswith("site/") else file
    return Frame(
        file.replace("std/", STDLIB, 1) if file.startswith("std/") else file, int(line), function, code
    )


def _exception(data):
    return ExceptionFact(
        type_name=data["type"],
        message=data.get("says", ""),
        frames=tuple(frame_of(text) for text in data.get("frames", ())),
        role=Role(data.get("role", "actor")),
        pid=data.get("pid", 0),
    )
