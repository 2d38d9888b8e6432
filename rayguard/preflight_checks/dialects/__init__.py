"""How the frameworks spell their settings: a command or a file read into ``JobSettings``, and back."""
