"""ms-swift: ``--external_plugins FILE --callbacks rayguard``, where FILE is what ``PLUGIN`` says.

Importing this imports nothing of ms-swift.
"""

from __future__ import annotations

from pathlib import Path

PLUGIN = str(Path(__file__).parent / "external_plugin" / "rayguard_swift.py")
