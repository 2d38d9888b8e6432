"""What others print before a line: who, when, how serious, from where. One regular expression for each form.

Named groups tell what is known: ``who`` and ``role`` (a process), ``level``, ``source`` (the logger's file
and line). All repeats are bounded. Compiled on first use, because importing rayguard must stay free.
"""

from __future__ import annotations

import re
from functools import lru_cache

_DATE = r"(?:\d{4}[-/]\d{2}[-/]\d{2}|\d{2}[-/]\d{2}|20\d{6})"
_TIME = r"\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
STAMP = rf"(?:{_DATE}[T -]{_TIME}(?:Z|[+-]\d{{2}}:?\d{{2}})?|{_TIME})"
_LOUD = r"CRITICAL|EXCEPTION|FATAL|ERROR|WARNING|WARN|INFO|DEBUG|TRACE"
LEVEL = rf"(?:{_LOUD}|Error|Warning|Info)"
SERVICE = r"(?P<who>[\w.\-]{1,60}?)\s{1,20}\|"  # as docker compose names one
SOURCE = r"[\w./+-]{1,80}\.(?:py|cc|cpp|h|hpp|cu|c|go|rs):\d{1,6}"
_MACHINE = r"(?:node|gpu|host|worker|ip|dgx|hgx|cn|nid|n|g|h)-?\d[\w.\-]{0,60}"
_TALKS = (
    r"(?=Traceback|  File|\s*\[|\w[\w.]{0,80}(?:Error|Exception)\b|[A-Z]{4,8} |"
    r"\S{0,40}\s*(?:\d{4}-|\d\d:\d\d))"
)
_RAY_PART = r"raylet|gcs_server|autoscaler|dashboard|head|log_monitor|scheduler"
_VLLM_PART = r"Worker_\w{1,20}|EngineCore\w{0,20}|(?:API|Api)Server\w{0,20}|VllmWorker\w{0,20}"

_FORMS = (
    # Ray as in "(WorkerDict pid=1, ip=10.0.0.1)", vLLM as in "(EngineCore_0 pid=1)"
    r"(?P<who>\((?:[\w.:<>/+\-=\[\]]{1,120} ){0,3}(?:pid|rank|node_ip|ip)=[^()]{1,120}\))[ :]?",
    rf"(?P<who>\((?:{_RAY_PART}|{_VLLM_PART})(?:[ ,+][^()]{{0,80}})?\))[ :]?",
    # torch: "[rank3]:", torchrun: "[default0]:"; srun -l: "12: "; pdsh: "node01: "
    r"(?P<who>\[(?:rank|default|worker|node|trainer|rollout)[\w.\-]{0,40}\]):? ?",
    r"(?P<who>\[Rank \d{1,6}\]) ?(?=\[|Traceback|  File)",
    rf"(?P<who>\d{{1,5}}): {_TALKS}",
    rf"(?P<who>{_MACHINE}): (?=\S|  )",
    # pytest's summary: "FAILED tests/a.py::test_b - "
    r"(?:FAILED|ERROR) [\w./\-]{1,160}\.py::\S{1,200} - ",
    # grep -r, and grep -n
    r"(?P<who>(?:\.{0,2}/|[\w.\-]{1,60}/)[\w./\-]{0,200}\.(?:log|out|err|txt)):(?:\d{1,9}:)?(?=\S|  )",
    r"\d{1,9}:(?=\[\d{4}-)",
    # kubectl logs --prefix, docker compose
    r"(?P<who>\[pod/[\w./\-]{1,200}\]) ?",
    rf"{SERVICE} (?=Traceback|  File|\[|[A-Z]{{4,8}}[ :]|\d{{4}}-)",
    # containerd as in "2026-01-01T00:00:00.1Z stderr F "
    rf"{STAMP} (?:\d{{1,9}} )?(?P<source>stdout|stderr)(?: [FP]|:) ",
    # a launcher that names the stream as in "bench.node001.gpu0 [stderr] "
    r"(?P<who>[\w.:\-]{1,60}) \[(?P<source>stdout|stderr)\](?: |$)",
    # a service and its instance
    r"(?P<who>\[[A-Za-z][\w.\-]{1,40} [\w.\-]{1,40}\]): (?=\d{4}-)",
    # SGLang as in "[2025-01-01 00:00:00 TP0] "
    rf"\[{STAMP} (?P<who>(?:DP|TP|PP|EP)\d{{1,4}}(?: (?:DP|TP|PP|EP)\d{{1,4}}){{0,3}})\] ?",
    rf"\[{STAMP}\](?:\[(?P<source>[^\]\[]{{1,80}})\])?(?:\s?\[(?P<level>{LEVEL})\])?(?:\s-)?\s?",
    # Ray's C++: "[2022-02-07 04:22:10,942 E 1260 1260] (raylet) file.cc:12: "
    (
        rf"\[{STAMP} (?P<level>[DIWECF])(?P<who> \d{{1,9}} \d{{1,9}})\]\s?"
        rf"(?:\((?P<role>[\w .\-]{{1,40}})\) )?(?P<source>{SOURCE}:)?\s?"
    ),
    # glog and torch: "[E419 10:44:01.858 ProcessGroupNCCL.cpp:616] ", "W1120 18:23:53.2 1234 utils.cpp:68] "
    (
        rf"\[?(?P<level>[DIWEF])\d{{3,4}} {_TIME}(?:\s{{1,4}}\d{{1,9}})?\s"
        r"(?P<source>[\w./\-]{1,100}:\d{1,6})\]\s?(?:\[\d{1,4}\]\s?)?"
    ),
    r"\[(?P<level>[DIWEF]) (?P<source>[\w./\-]{1,100}:\d{1,6})\]\s?",
    # vLLM: "ERROR 05-11 14:20:55 [core.py:399] ", "INFO 02-07 04:22:10 logger.py:12] "
    (
        rf"(?P<level>{LEVEL})[ :]{{1,4}}{STAMP}\s"
        rf"(?:\[(?:[\w.]{{1,80}}/){{0,6}}(?P<source>{SOURCE})\[?\]|(?P<source2>{SOURCE})\]?)\s?"
    ),
    # the same without its level and time: "[core.py:399] "
    r"\[(?P<source>[a-z][\w.\-]{0,80}\.py:\d{1,6})\]\s",
    # loguru as in "2023-10-26 18:20:07 | ERROR | stderr | ", Ray as in "... ERROR worker.py:405 -- "
    rf"{STAMP}\s{{1,4}}\|\s?(?P<level>{LEVEL})\s{{0,8}}\|\s?(?P<source>[\w.:<>\- ]{{1,80}}?)\s(?:\||-)\s?",
    (
        rf"{STAMP}\s{{1,4}}(?:-\s)?(?:(?P<source>[\w.]{{1,80}})\s-\s)?(?P<level>{LEVEL}):?\s{{1,8}}"
        rf"(?P<source2>{SOURCE})?(?:\s?(?:--|-|:)\s)?"
    ),
    # Python's logging as in "2025-01-01 00:00:00,123 trainer WARNING ", "... [trainer] WARNING: "
    rf"{STAMP}\s{{1,4}}\[?(?P<source>[A-Za-z][\w.\-]{{1,60}})\]?\s{{1,8}}(?P<level>{_LOUD}):?\s{{1,8}}",
    rf"{STAMP}\s{{1,4}}\[(?P<level>{LEVEL})\]\s?",
    # a log that was exported as a table
    rf"\"{STAMP}\"\s?",
    # a service that puts its clock before the lines of another program: "2025-01-01 00:00:00.123  >> "
    rf"{STAMP}\s{{1,4}}(?:>>|::|=>)\s{{1,2}}(?=\S|  )",
    # transformers as in "[INFO|trainer.py:123] 2024-01-01 00:00:00,000 >> "; deepspeed
    rf"\[(?P<level>{LEVEL})\|(?P<source>[\w./\-]{{1,80}}:\d{{1,6}})\](?:\s{STAMP})?(?:\s>>)?\s?",
    rf"\[{STAMP}\]\s?\[(?P<level>{LEVEL})\]\s?(?:\[(?P<source>[\w./:\-]{{1,80}})\])?\s?",
    # journald and syslog: "Nov 20 18:00:00 host kernel: "; dmesg: "[12345.678901] "
    (
        rf"[A-Z][a-z]{{2}}\s{{1,2}}\d{{1,2}} {_TIME} (?P<who>[\w.\-]{{1,80}}) "
        r"(?P<source>[\w.\-/]{1,60}(?:\[\d{1,9}\])?): ?"
    ),
    # dmesg -T: "[Thu Mar 20 21:01:25 2025] "
    rf"\[[^\]\[]{{3,24}} {_TIME} \d{{4}}\]\s",
    r"\[\s{0,8}\d{1,9}\.\d{6}\](?:\[\s?[TC]\d{1,9}\])?\s?",
    rf"(?P<level>{LEVEL}):(?P<source>[\w.]{{1,80}}):",
    rf"\[(?P<level>{LEVEL})(?::rayguard)?\]:?\s",  # "[INFO:swift] " stays: it tells whose
    rf"(?P<level>{LEVEL}):?\s(?=\s{{0,8}}(?:File \"|Traceback|[A-Z]\w{{0,60}}(?:Error|Exception): ))",
    rf"(?P<level>{LEVEL})[ :]{{1,4}}{STAMP}\s",
    rf"{STAMP}(?:\s-)?\s",
)
_WIDEST_NAME = 84  # of a service and what pads it, before the bar of docker compose
_STARTS = frozenset('[("./ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789hginwdclrs')


def prefix(text: str) -> re.Match[str] | None:
    """Return the match of a known prefix at the start of ``text``."""
    head = text[:_WIDEST_NAME]
    if text[:1] not in _STARTS and " | " not in head and " [std" not in head:
        return None
    return next((found for found in (form.match(text) for form in _forms()) if found is not None), None)


@lru_cache(maxsize=1)
def _forms() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(form) for form in _FORMS)
