"""Tools that run in containers: the code interpreter, the shell, and programs that call tools."""
