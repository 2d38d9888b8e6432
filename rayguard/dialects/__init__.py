"""How frameworks spell their settings, on a command line or in a file: read and written, nothing run."""
