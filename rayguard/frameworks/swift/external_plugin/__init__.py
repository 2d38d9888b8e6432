"""A folder for one file: ms-swift puts the folder of a plugin first on the path of each of its processes."""
