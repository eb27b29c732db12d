"""Files that clients have uploaded: a list, without what is in them."""

from typing import TYPE_CHECKING

from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.admin.lists import ReadOnlyAdmin
from responses_app.admin.search import beginning_with
from responses_app.models import StoredFile
from responses_app.watch.formats import NONE, in_bytes, moment
from responses_app.watch.text import visible

if TYPE_CHECKING:
    from django.db.models import Model, QuerySet


@admin.register(StoredFile)
class StoredFileAdmin(ReadOnlyAdmin):
    """Files, the newest first. Clients delete them, and `respsite manage forget` those of a project."""

    list_display = ("identifier", "named", "size", "purpose", "project_name", "created", "expires")
    list_display_links = None
    ordering = ("-id",)  # in which they came
    search_fields = ("id",)
    search_help_text = "Finds a file by its id or the beginning of it."
    actions = None

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[StoredFile]", search_term: str
    ) -> "tuple[QuerySet[StoredFile], bool]":
        """Search by the id."""
        term = search_term.strip()
        return (beginning_with(queryset, term) if term else queryset), False

    def has_delete_permission(self, request: HttpRequest, obj: "Model | None" = None) -> bool:
        """Nobody: the admin would read all that is in a file to say what goes with it."""
        return False

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: object = None
    ) -> HttpResponseRedirect:
        """The list says all there is."""
        return self.to_list()

    @admin.display(description="file")
    def identifier(self, file: StoredFile) -> SafeString:
        """The id."""
        return format_html('<span class="id">{}</span>', file.pk)

    @admin.display(description="name")
    def named(self, file: StoredFile) -> str:
        """What its client calls it."""
        return visible(file.filename)

    @admin.display(description="size")
    def size(self, file: StoredFile) -> str:
        """How large it is; one that is not whole is being uploaded, or on its way out."""
        return in_bytes(file.bytes) if file.is_whole else f"{in_bytes(file.bytes)}, not whole"

    @admin.display(description="project")
    def project_name(self, file: StoredFile) -> str:
        """Whose it is."""
        return visible(file.project)

    @admin.display(description="created")
    def created(self, file: StoredFile) -> SafeString:
        """When it came."""
        return moment(file.created_at)

    @admin.display(description="expires")
    def expires(self, file: StoredFile) -> SafeString | str:
        """When it goes by itself."""
        return NONE if file.expires_at is None else moment(file.expires_at)
