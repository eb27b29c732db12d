"""What all pages of the admin's own have: a policy that lets no script in, whatever a client managed to write."""

from django.template.response import TemplateResponse

POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def html_page(answer: TemplateResponse) -> TemplateResponse:
    """Return an answer with the policy: scripts and styles come from this server's files alone."""
    answer["Content-Security-Policy"] = POLICY
    return answer
