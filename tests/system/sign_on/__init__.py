"""Single sign-on: against a real provider in a process of its own, and against a forged one."""
