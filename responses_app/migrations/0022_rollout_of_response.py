from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('responses_app', '0021_engine_doors'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='rolloutgeneration',
            index=models.Index(fields=['response_id'], name='rolloutgeneration_of_response'),
        ),
        migrations.RemoveIndex(
            model_name='rolloutgeneration',
            name='rolloutgeneration_response',
        ),
    ]
