"""Django's settings for `bench.bare`: nothing but what it takes to answer."""

ROOT_URLCONF = "bench.bare"
ALLOWED_HOSTS = ["*"]
MIDDLEWARE: list[str] = []
SECRET_KEY = "bench"
