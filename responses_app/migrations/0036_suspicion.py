from django.db import migrations, models

from responses_app.migrations._in_place import AddColumn


class Migration(migrations.Migration):
    dependencies = [("responses_app", "0035_gone_places")]

    operations = [
        AddColumn("response", "suspicion", models.PositiveSmallIntegerField(db_default=0, default=0)),
        AddColumn("response", "request_name", models.CharField(db_default="", default="", max_length=32)),
    ]
