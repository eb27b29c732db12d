"""What the server has beyond its kernel: each folder is a Django app whose `AppConfig` is an `Extension`.

`apps.py` in the folder says what it brings. No extension knows another, and the kernel imports none: EXTENSIONS names
those that are loaded.
"""
