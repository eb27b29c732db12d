from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('responses_app', '0026_organization'),
    ]

    operations = [
        migrations.AddField(
            model_name='project',
            name='retention_hours',
            field=models.IntegerField(null=True),
        ),
    ]
