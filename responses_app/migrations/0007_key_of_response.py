from django.db import migrations, models

from responses_app.migrations._in_place import AddColumn


class Migration(migrations.Migration):

    dependencies = [
        ('responses_app', '0006_api_keys'),
    ]

    operations = [
        AddColumn(
            model_name='response',
            name='key_id',
            field=models.CharField(db_default='', default='', max_length=64),
        ),
        migrations.AddIndex(
            model_name='response',
            index=models.Index(condition=models.Q(('key_id', ''), _negated=True), fields=['key_id'], name='response_key'),
        ),
    ]
