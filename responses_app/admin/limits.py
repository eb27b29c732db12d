"""Limits of projects and keys, edited in their lists and forms by the rules of `respsite manage set_limits`.

A form has what its user saw beside what they want. So only what they changed is changed, and what somebody else has
changed meanwhile is not overwritten: the form says so instead.
"""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest

from responses_app.protocol.organization import MAX_CENTS
from responses_app.protocol.rate_limits import LIMITS, MOST
from responses_app.stores.audit import Action
from responses_app.watch.auditing import done

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
                text = f"Somebody else has set this to {_shown(now)} meanwhile. Load the page again."
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


def _shown(value: object) -> str:
    return "no limit" if value is None else f"{value:,}"
