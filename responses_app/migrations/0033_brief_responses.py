from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("responses_app", "0032_usage_days")]

    operations = [
        migrations.CreateModel(
            name="BriefResponse",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("project", models.CharField(default="default", max_length=64)),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={"abstract": False},
        ),
    ]
