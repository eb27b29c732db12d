from django.db import migrations, models

from responses_app.migrations._in_place import AddColumn


class Migration(migrations.Migration):
    dependencies = [("responses_app", "0033_brief_responses")]

    operations = [
        AddColumn(
            model_name="response",
            name="playground",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddIndex(
            model_name="response",
            index=models.Index(
                fields=["project", "chat_id", "created_at", "id", "key_id"],
                name="response_page_chat",
                condition=models.Q(playground=True),
            ),
        ),
        migrations.AddIndex(
            model_name="response",
            index=models.Index(
                fields=["project", "created_at", "id", "key_id", "chat_id"],
                name="response_page_newest",
                condition=models.Q(playground=True),
            ),
        ),
    ]
