"""Reads ``examples/``: for each signature what it looks like (`is`) and what only looks like it (`not`).

An example is a printed text (``text: |``) or a fault as data: ``records``, ``chain`` (outermost first, as in
``Fault.exceptions``), ``exits``, ``silence``, ``log``. A near miss names the ``signature`` that it really is, or
``unknown``. In frames, "site/" is an installation's site-packages, "std/" the standard library; a frame is written
"file:line function | source line". Texts and messages are those of vLLM 0.32, torch 2.13 and Ray 2.60, or of the
public threads that their signature links to.
"""

from pathlib import Path

import yaml

from rayguard.faults.catalog import Catalog, default_catalog
from rayguard.faults.diagnose import diagnose
from rayguard.faults.fault import ExceptionFact, Fault, Frame, ProcessExit, Role, Silence
from rayguard.logs.report import diagnose_text

SITE = "/opt/env/lib/python3.12/site-packages/"
STDLIB = "/usr/lib/python3.12/"
SIGNATURES = Catalog(default_catalog().signatures)  # not called ours, so that words have no say
FILES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))
EXAMPLES = {
    name: entry for file in FILES for name, entry in yaml.safe_load(file.read_text(encoding="utf-8")).items()
}


def positives():
    """Return (signature, example) for each thing that looks like its signature."""
    return [(name, one) for name, entry in EXAMPLES.items() for one in entry.get("is", ())]


def near_misses():
    """Return (look-alike of, signature that it is, example)."""
    return [(name, one["signature"], one) for name, entry in EXAMPLES.items() for one in entry.get("not", ())]


def verdict_on(example, catalog=SIGNATURES):
    """Return the diagnosis of one example; by its signatures alone, where no catalog is named."""
    if "text" in example:
        return diagnose_text(example["text"], catalog).diagnosis
    return diagnose(fault_of(example), catalog)


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
            why=silence.get("why", ""),
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
