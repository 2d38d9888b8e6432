"""Where the states of a gang's ranks lie: on their nodes, and copied to others."""
