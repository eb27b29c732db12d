from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("responses_app", "0031_sign_on")]

    operations = [
        migrations.AddIndex(
            model_name="usage",
            index=models.Index(
                models.F("project"),
                models.F("model"),
                models.F("at") - models.F("at") % 86_400,
                models.F("at"),
                models.F("source"),
                models.F("batch"),
                models.F("requests"),
                models.F("input_tokens"),
                models.F("cached_tokens"),
                models.F("output_tokens"),
                name="usage_days",
            ),
        ),
    ]
