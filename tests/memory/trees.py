"""Writes the files of a kernel that is not this one."""

from __future__ import annotations

GIB = 1 << 30
UNLIMITED_V1 = 9_223_372_036_854_771_712


def written(root, files):
    """Write ``files`` (path: text) under ``root``."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(str(text))
    return root


def meminfo(total_gib, available_gib, swap_gib=0, swap_free_gib=0):
    """Return the text of /proc/meminfo."""
    rows = {
        "MemTotal": total_gib,
        "MemFree": available_gib / 2,
        "MemAvailable": available_gib,
        "SwapTotal": swap_gib,
        "SwapFree": swap_free_gib,
    }
    lines = [f"{name}: {int(value * (1 << 20)):>15} kB" for name, value in rows.items()]
    return "\n".join([*lines, "HugePages_Total:       0"]) + "\n"


def version_2(place, limit, used, inactive=0, active=0, **more):
    """Return the memory files of one cgroup of version 2 at ``place``."""
    stat = f"anon {used}\nactive_file {active}\ninactive_file {inactive}\nswapcached 0\n"
    return {
        f"{place}memory.max": f"{limit}\n",
        f"{place}memory.current": f"{used}\n",
        f"{place}memory.stat": stat,
        **{f"{place}memory.{name.replace('_', '.')}": text for name, text in more.items()},
    }


def version_1(place, limit, used, inactive=0, active=0):
    """Return the memory files of one cgroup of version 1 at ``place`` under ``memory/``."""
    # The untotalled numbers are this cgroup's without its children: not what is wanted.
    stat = f"cache 7\ninactive_file 1\nactive_file 1\ntotal_inactive_file {inactive}\ntotal_active_file {active}\n"
    return {
        f"memory/{place}memory.limit_in_bytes": limit,
        f"memory/{place}memory.usage_in_bytes": used,
        f"memory/{place}memory.stat": stat,
    }
