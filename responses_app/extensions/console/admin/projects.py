"""Projects and API keys, with their limits.

Their lists change limits, by the rules of `respsite manage set_limits`; those of a project count all its keys together.
A form has the values that its user saw beside those they want. So only what they changed is changed, and what somebody
else has changed meanwhile is not overwritten: the form says so instead.

A key's form makes one and shows it this once; an action revokes keys.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_variables

from responses_app.admin.auditing import done, done_to
from responses_app.extensions.console.admin.lists import ListOnlyAdmin, ReadOnlyAdmin, column
from responses_app.extensions.console.watch.text import NONE, ago, moment, visible
from responses_app.kit.retention import NEVER, kept, parse_retention, written
from responses_app.models import ID_LENGTH
from responses_app.protocol.api_keys import DEFAULT_PROJECT, PROJECT_NAME, SCOPES, names_in
from responses_app.protocol.rate_limits import LIMITS, MOST
from responses_app.resources.audit.fields import Action
from responses_app.resources.projects.callers import create_key, revoke_keys
from responses_app.resources.projects.fields import MAX_CENTS
from responses_app.resources.projects.model import AdminKey, ApiKey, Project

if TYPE_CHECKING:
    pass

SPENDING = "monthly_spend_cents"  # the limit that needs prices; it may also be 0, and larger than all others


def spend_limit(cents: int | None) -> int | None:
    """Return a limit of spending. Raises `ValidationError` where nothing is known of costs."""
    if cents is not None and not settings.RESPSITE.prices:
        raise forms.ValidationError("Nothing is known of costs here. Set PRICES first.")
    return cents


class LimitsForm(forms.ModelForm):
    """Limits, as they were seen and as they are to be."""

    def clean_monthly_spend_cents(self) -> int | None:
        """Take another one where there are prices; one that was set before they went stays."""
        cents: int | None = self.cleaned_data[SPENDING]
        return spend_limit(cents) if SPENDING in self.changed_data else cents

    def clean(self) -> dict[str, Any]:
        """Refuse to overwrite what somebody else has changed since the page was loaded."""
        cleaned = super().clean() or {}
        for name in self.changed_limits:
            now = self.initial.get(name)
            if self.seen(name) != now:
                shown = "no limit" if now is None else f"{now:,}"
                text = f"Somebody else has set this to {shown} meanwhile. Load the page again."
                self.add_error(name, forms.ValidationError(text))
        return cleaned

    @property
    def changed_limits(self) -> list[str]:
        """Which limits this user has changed."""
        return [name for name in self.changed_data if name in LIMITS]

    def seen(self, name: str) -> Any:
        """Return a limit as the page had it; where the request does not tell, as it is."""
        at = self.add_initial_prefix(name)
        if at not in self.data:
            return self.initial.get(name)
        try:
            return self.fields[name].to_python(self.data[at])
        except forms.ValidationError:
            return self.initial.get(name)


class LimitsInPlace(admin.ModelAdmin):
    """Has limits edited; a change holds within 2 s."""

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Take what the command line takes."""
        if db_field.name not in LIMITS:
            return super().formfield_for_dbfield(db_field, request, **kwargs)
        return forms.IntegerField(
            required=False,
            min_value=0 if db_field.name == SPENDING else 1,
            max_value=MAX_CENTS if db_field.name == SPENDING else MOST,
            show_hidden_initial=True,
            label=str(db_field.verbose_name).capitalize(),
            widget=forms.NumberInput(attrs={"class": "rs-limit", "placeholder": "no limit"}),
        )

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> type[forms.ModelForm]:
        """Return the form of a row."""
        return super().get_changelist_form(request, form=LimitsForm, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Change what was changed, as long as it is as it was seen, and record it; in the page's transaction."""
        if not isinstance(form, LimitsForm):
            super().save_model(request, obj, form, change)
            return
        wanted: Mapping[str, Any] = {name: form.cleaned_data[name] for name in form.changed_limits}
        if not wanted:
            return
        seen = {name: form.seen(name) for name in wanted}
        same = {f"{name}__isnull" if value is None else name: value is None or value for name, value in seen.items()}
        rows = type(obj)._default_manager.filter(pk=obj.pk, **same)
        if not rows.update(**wanted):  # between the look of `clean` and now
            text = f"{obj}: somebody else has changed these limits at the same time. Yours are not kept."
            self.message_user(request, text, messages.ERROR)
            return
        project = getattr(obj, "project_id", obj.pk)
        done(request, Action.LIMITS_CHANGED, obj.pk, project=project, **wanted)


class ProjectForm(LimitsForm):
    """What may be changed of a project."""

    retention = forms.CharField(
        required=False, max_length=20,
        help_text="How long it keeps what it stores: never, a number of hours, forever, or server: as the server's "
        "settings say. It holds within 2 s. What is past it is erased, and cannot be had back.",
    )  # fmt: skip
    erase = forms.BooleanField(
        required=False, label="Erase", help_text="Needed for never and for hours: erase what is past it."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.new_retention: tuple[int | None] | None = None  # once it is clean: another one, if that is wanted
        # Who may only look has no field of it.
        if "retention" in self.fields:
            self.fields["retention"].initial = written(self.instance.retention_hours)

    def clean(self) -> dict[str, Any]:
        """Read the retention, and see that its effect is meant."""
        cleaned = super().clean()
        before = self.instance.retention_hours
        try:
            hours = parse_retention(str(cleaned.get("retention") or written(before)))
        except ValueError as problem:
            self.add_error("retention", f"{problem}.")
            return cleaned
        if hours != before:
            self.new_retention = (hours,)
            if hours is not None and hours >= NEVER and not cleaned.get("erase"):
                self.add_error("erase", "Check this, too: what is past the retention is erased for good.")
        return cleaned


@admin.register(Project)
class ProjectAdmin(LimitsInPlace, ReadOnlyAdmin):
    """Projects by their names. They are made with their first key, and erased by `respsite manage forget`."""

    form = ProjectForm
    list_display = ("named", "titled", "keys_counted", "retention_shown", *LIMITS, "created", "archived")
    list_editable = LIMITS
    named = column("project", lambda row: visible(row.name))
    titled = column("name", lambda row: visible(row.title) or NONE)
    keys_counted = column("keys", lambda row: row.key_count)  # revoked ones too
    archived = column("archived", lambda row: moment(row.archived_at) if row.archived_at else NONE)
    # None is what nearly all have: the server's settings say it.
    retention_shown = column(
        "retention", lambda row: NONE if row.retention_hours is None else kept(row.retention_hours)
    )
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = "Finds projects by their name."
    actions = None
    fields = ("name", *LIMITS, "retention", "erase")
    readonly_fields = ("name",)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Project]":
        """Count the keys with them."""
        return super().get_queryset(request).annotate(key_count=Count("keys"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may change projects; a change of limits holds within 2 s."""
        return bool(request.user.has_perm("responses_app.change_project"))

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        """Change what was changed, and record it, in the page's transaction."""
        super().save_model(request, obj, form, change)
        new = form.new_retention if isinstance(form, ProjectForm) else None
        if new is not None:
            Project.objects.filter(pk=obj.pk).update(retention_hours=new[0])
            done(request, Action.RETENTION_CHANGED, obj.pk, project=obj.pk, retention=written(new[0]))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What belongs to a project would stay."""
        return False


MAX_REVOKED = 500  # by one action


class NewKeyForm(forms.ModelForm):
    """What a key is for."""

    project = forms.RegexField(
        regex=f"^{PROJECT_NAME}$", max_length=ID_LENGTH, initial=DEFAULT_PROJECT,
        help_text="Whose it is: what is stored with it is seen with this project's keys alone. A new name makes one.",
    )  # fmt: skip
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in SCOPES],
        required=False,
        help_text="None: it may do everything. A request needs those of all that it names, too: to have the model read "
        "a file, responses.write and files.read.",
    )
    allowed_models = forms.CharField(required=False, help_text="Names, separated by commas. None: all models.")

    class Meta:
        model = ApiKey
        fields = ("project", "name", "expires_at", "scopes", "allowed_models", *LIMITS)

    def clean_project(self) -> str:
        """Take one that is not archived."""
        name = str(self.cleaned_data["project"])
        if Project.objects.filter(pk=name).exclude(archived_at=None).exists():
            raise forms.ValidationError("This project is archived. Choose another one.")
        return name

    def clean_allowed_models(self) -> list[str]:
        """Read names."""
        return names_in(self.cleaned_data["allowed_models"])

    def clean_monthly_spend_cents(self) -> int | None:
        """Take one where there are prices."""
        return spend_limit(self.cleaned_data["monthly_spend_cents"])

    def clean_expires_at(self) -> datetime | None:
        """Take a time that is still to come."""
        at: datetime | None = self.cleaned_data["expires_at"]
        if at is not None and at <= datetime.now(UTC):
            raise forms.ValidationError("Choose a time in the future.")
        return at

    def _post_clean(self) -> None:
        """Make no row of it: `create_key` does, with its digest."""


@admin.register(ApiKey)
class ApiKeyAdmin(LimitsInPlace, ListOnlyAdmin):
    """Keys, the newest first. A revoked one stays, so that it can be seen who had one."""

    form = NewKeyForm
    list_display: Sequence[str] = (
        *("identifier", "named", "project_name", "state_shown", "may", *LIMITS, "created", "used", "expires"),
    )
    list_editable: Sequence[str] = LIMITS
    identifier = column("key", lambda row: format_html('<span class="id" title="{}">{}…</span>', row.pk, row.prefix))
    named = column("name", lambda row: visible(row.name) or NONE)
    project_name = column("project", lambda row: visible(row.project_id))
    # Noted once a minute at most.
    used = column("last used", lambda row: ago(row.last_used_at, datetime.now(UTC)) if row.last_used_at else "never")
    expires = column("expires", lambda row: moment(row.expires_at) if row.expires_at else "never")
    list_select_related = ()
    ordering = ("-created_at",)
    search_fields = ("prefix", "name", "project__name")
    search_help_text = "Finds keys by their beginning, their name or their project."
    actions = ("revoke",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Whoever may add keys."""
        return bool(request.user.has_perm("responses_app.add_apikey"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may change keys: their limits, in the list."""
        return bool(request.user.has_perm("responses_app.change_apikey"))

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Revoking is Django's permission to change."""
        return bool(request.user.has_perm("responses_app.change_apikey"))

    @sensitive_variables("secret")
    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Make a key, and show it."""
        if request.method != "POST" or not self.has_add_permission(request):
            return super().add_view(request, form_url, extra_context)
        form = self.get_form(request)(request.POST)
        if not form.is_valid():
            return super().add_view(request, form_url, extra_context)
        fields = dict(form.cleaned_data)
        # The names of the form's other fields are those of the row.
        with transaction.atomic():
            secret, row = create_key(fields.pop("project"), **fields)
            done(request, Action.KEY_CREATED, row.pk, project=row.project_id)
            self.log_addition(request, row, [{"added": {}}])
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "New API key",
            "secret": secret,
            "key": row,
        }
        response = TemplateResponse(request, "admin/respsite/new_key.html", context)
        response["Cache-Control"] = "no-store"
        return response

    @admin.action(permissions=["revoke"], description="Revoke the selected keys")
    def revoke(self, request: HttpRequest, queryset: "QuerySet[ApiKey]") -> None:
        """Revoke them; connections that are open with them end."""
        # Read once: what is logged below are the same keys that are revoked.
        rows = list(queryset[:MAX_REVOKED])
        with transaction.atomic():
            revoked = revoke_keys([row.pk for row in rows])
            for row in rows:
                self.log_change(request, row, "Revoked.")
            done_to(request, Action.KEY_REVOKED, [(row.pk, row.project_id) for row in rows])
        level = messages.SUCCESS if revoked else messages.WARNING
        self.message_user(request, f"{revoked} revoked; {len(rows) - revoked} were revoked before.", level)

    @admin.display(description="state")
    def state_shown(self, key: ApiKey) -> SafeString:
        """Whether it opens."""
        state = key.state(datetime.now(UTC))
        return format_html('<span class="pill pill-{}">{}</span>', "alive" if state == "good" else "gone", state)

    @admin.display(description="may")
    def may(self, key: ApiKey) -> str:
        """What it is made for."""
        permissions: Sequence[str] = [*key.scopes, *(f"model {name}" for name in key.allowed_models)]
        return visible(", ".join(permissions))[:200] or "everything"


@admin.register(AdminKey)
class AdminKeyAdmin(ApiKeyAdmin):
    """Admin keys, the newest first. They are made on the command line or over the API."""

    list_display = ("identifier", "named", "state_shown", "created", "used", "expires")
    list_editable = ()
    search_fields = ("prefix", "name")
    search_help_text = "Finds admin keys by their beginning or their name."

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: it has no limits."""
        return False

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Revoking is Django's permission to change."""
        return bool(request.user.has_perm("responses_app.change_adminkey"))
