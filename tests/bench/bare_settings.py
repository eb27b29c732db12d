"""Django's settings for `tests.bench.bare`: nothing but what it takes to answer."""

ROOT_URLCONF = "tests.bench.bare"
ALLOWED_HOSTS = ["*"]
MIDDLEWARE: list[str] = []
SECRET_KEY = "bench"
