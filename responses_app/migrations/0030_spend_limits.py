from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("responses_app", "0029_words")]

    operations = [
        migrations.CreateModel(
            name="Organization",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("monthly_spend_cents", models.PositiveBigIntegerField(null=True)),
            ],
        ),
        migrations.AddField("apikey", "monthly_spend_cents", models.PositiveBigIntegerField(blank=True, null=True)),
        migrations.AddField("project", "monthly_spend_cents", models.PositiveBigIntegerField(blank=True, null=True)),
    ]
