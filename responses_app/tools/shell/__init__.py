"""The shell, whose commands run in the containers of the code interpreter."""
