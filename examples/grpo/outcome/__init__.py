"""What came of a run: judged, drawn, printed, and as one JSON document."""
